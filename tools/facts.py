"""Write ``cputune/stack/interface.zip``: the public interface of the libraries, release by release.

    python tools/facts.py [--wheels FOLDER]

It reads the wheels of each minor release that ``cputune/stack/stack.toml`` knows (of libraries that
are not in it: the last patch of each minor release) and the torch that is installed beside this
Python. Wheels are downloaded with pip into a cache folder outside of the repository. Sources are
parsed with ``ast``; nothing is imported. ``cputune/stack/interface.py`` says what the file holds.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs
from packaging.version import Version

from cputune.stack.interface import FILE, KINDS, PACKAGES, Kind
from cputune.stack.tables import load

TARGET = Path(__file__).resolve().parent.parent / "cputune" / "stack" / FILE
SHORTEST_MESSAGE = 24
"""Characters of a message that are not filled in: a shorter one names no release."""

LONGEST_MESSAGE = 160
"""What is kept of a message: its beginning tells it from others."""

PRIVATE = ("Trainer", "Accelerator", "AcceleratorState", "GradientState", "PartialState")
"""Classes whose private methods and attributes are kept: scripts and libraries override and set
them."""

PARSER = 4
"""Raise it if what is read of a source file changes: then kept results are not used again."""

Names = dict[str, set[str]]


@dataclass
class Module:
    """What one source file shows.

    ``names``: what can be imported from it. ``exported``: its ``__all__``. ``stars``: modules whose
    names it exports too. ``callables``: arguments by ``Class.method`` or function; the arguments
    of a
    class are those of its ``__init__``. ``bases``: by class. ``members``: methods and attributes by
    class. ``messages``: what it raises. ``renamed``: old names of arguments, with the new.
    """

    names: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    stars: set[str] = field(default_factory=set)
    whole_models: bool = False
    callables: Names = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    members: Names = field(default_factory=dict)
    messages: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    options: set[str] = field(default_factory=set)


# --- one source file -------------------------------------------------------------------


def read_module(text: str, *, is_package: bool, of_model: bool) -> Module:
    """What a source file shows; of a model's file only its names, ``forward`` and messages."""
    found = Module()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # templates, and Python 2
        return found
    for node in _top_level(tree):
        _names_of(node, found)
        if isinstance(node, ast.ImportFrom) and (is_package or (node.level and not of_model)):
            _imported(node, found)
        if isinstance(node, ast.ClassDef):
            _class(node, found, of_model=of_model)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not of_model:
            found.callables[node.name] = _arguments(node)
    if not is_package:
        found.stars.clear()
    _everywhere(tree, found)
    found.whole_models = is_package and "define_import_structure" in text
    return found


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run at import, those below ``if`` and ``try`` too."""
    waiting = list(reversed(tree.body))
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                waiting.extend(reversed(getattr(node, name, [])))
        for handler in getattr(node, "handlers", []):
            waiting.extend(reversed(handler.body))


def _names_of(node: ast.stmt, found: Module) -> None:
    """The names that a statement makes; of a lazy package also those that it lists."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        found.names.add(node.name)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _assigned(target, node.value, found)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        _assigned(node.target, node.value, found)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Attribute) and _is_structure(call.func.value):
            for argument in call.args:
                found.names |= _texts(argument)


def _imported(node: ast.ImportFrom, found: Module) -> None:
    for alias in node.names:
        if alias.name == "*":
            found.stars.add("." * node.level + (node.module or ""))
        else:
            found.names.add(alias.asname or alias.name)


def _assigned(target: ast.expr, value: ast.expr | None, found: Module) -> None:
    if isinstance(target, ast.Name) and target.id == "__all__":
        found.exported |= _texts(value)
    elif isinstance(target, ast.Name) and not target.id.startswith("_"):
        found.names.add(target.id)
    if _is_structure(target):
        _structure(value, found)


def _is_structure(target: ast.expr) -> bool:
    """``_import_structure``, or an item of it."""
    if isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Name) and target.id.endswith("import_structure")


def _structure(value: ast.expr | None, found: Module) -> None:
    """The names of a lazy module: ``{"training_args": ["TrainingArguments"]}``."""
    if isinstance(value, ast.Dict):
        for key, names in zip(value.keys, value.values, strict=True):
            found.names |= _texts(names) | _texts(key)
    elif value is not None:
        found.names |= _texts(value)


def _texts(value: ast.expr | None) -> set[str]:
    """The strings of a list, a tuple, or of one string."""
    if value is None:
        return set()
    texts = (node.value for node in ast.walk(value) if isinstance(node, ast.Constant))
    return {
        text for text in texts if isinstance(text, str) and text.replace(".", "").isidentifier()
    }


def _class(node: ast.ClassDef, found: Module, *, of_model: bool) -> None:
    """Bases, members and the arguments of methods; of a model's class only ``forward``."""
    found.bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    members = set()
    fields = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            fields.add(each.target.id)
        elif isinstance(each, ast.Assign):
            members |= {target.id for target in each.targets if isinstance(target, ast.Name)}
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            members |= {each.name, *(_set_on_self(each) if each.name == "__init__" else ())}
            if not of_model or each.name == "forward":
                _method(each, node.name, found)
    if of_model:
        return
    named = (ast.unparse(each).partition("(")[0] for each in node.decorator_list)
    if any(name.rpartition(".")[2] == "dataclass" for name in named):
        found.callables[node.name] = fields
    found.members[node.name] = {
        one for one in members | fields if not one.startswith("_") or _is_kept(one, node.name)
    }


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, found: Module) -> None:
    if node.name == "__init__":
        found.callables[owner] = _arguments(node)
    elif not node.name.startswith("_") or _is_kept(node.name, owner):
        found.callables[f"{owner}.{node.name}"] = _arguments(node)


def _is_kept(name: str, owner: str) -> bool:
    """Whether a private name of a class is kept; never one that Python itself calls."""
    return owner in PRIVATE and not name.startswith("__")


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Its parameters, and what it takes out of ``**kwargs``."""
    taken = node.args
    names = {each.arg for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)}
    if taken.kwarg is not None:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                of_kwargs = ast.unparse(call.func.value) == taken.kwarg.arg
                if of_kwargs and call.func.attr in ("pop", "get"):
                    names |= _texts(call.args[0])
        names.add("**")
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and _called(decorator) == "deprecate_kwarg":
            names |= {old for old, _ in _deprecated(decorator)}
    return names - {"self", "cls"}


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _everywhere(tree: ast.Module, found: Module) -> None:
    """What is raised, which options are parsed and which arguments have new names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = template(node.exc.args[0])
            if len(message.replace("{}", "")) >= SHORTEST_MESSAGE:
                found.messages.add(message[:LONGEST_MESSAGE])
        elif isinstance(node, ast.Call):
            if _called(node) == "add_argument":
                texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
                found.options |= {each for each in texts if str(each).startswith("--")}
            elif _called(node) == "deprecate_kwarg":
                found.renamed.update(_deprecated(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for said in _RENAMED.finditer(node.value[:600]):
                found.renamed.setdefault(said[1], said[2])


_RENAMED = re.compile(
    r"[`'\"](?:--)?(\w+)[`'\"](?: argument| parameter)? is deprecated[^`'\"]*?"
    r"(?:[Uu]se|in favou?r of|by|to)\s+(?:the )?[`'\"](?:--)?(\w+)[`'\"]"
)


def _deprecated(call: ast.Call) -> Iterator[tuple[str, str]]:
    """``@deprecate_kwarg("tokenizer", new_name="processing_class", version="5.0.0")``."""
    given = {each.arg: each.value for each in call.keywords}
    old = call.args[0] if call.args else given.get("old_name")
    new = given.get("new_name")
    if isinstance(old, ast.Constant) and isinstance(new, ast.Constant) and new.value:
        yield str(old.value), str(new.value)


def template(value: ast.expr) -> str:
    """The text of a message, with ``{}`` for what is filled in; empty if it is no text."""
    return " ".join(_template(value).split())


def _template(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in value.values)
        return "".join(map(str, parts))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _template(value.left) + _template(value.right)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mod):
        return re.sub(r"%[-#0-9.]*[a-z]", "{}", _template(value.left))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr == "format":
            return re.sub(r"\{[^{}]*\}", "{}", _template(value.func.value))
        return ""
    return "{}" if isinstance(value, (ast.Name, ast.Attribute, ast.Call)) else ""


# --- one release -----------------------------------------------------------------------

_PASSED_OVER = re.compile(
    r"(?:^|/)(?:tests?|testing|benchmark|examples?|templates)/|/convert_|/modular_"
)
_OTHER_FRAMEWORK = re.compile(r"modeling_(?:tf|flax)_")
"""Of these files only what the package exports of them is taken."""

_OF_MODEL = re.compile(r"^transformers/models/(?!auto/)")


def sources(package: str, place: Path) -> Iterator[tuple[str, bytes]]:
    """The source files of a wheel, or of an installed package, by their path below the package."""
    if place.is_dir():
        for path in sorted(place.joinpath(package).rglob("*.py*")):
            if path.suffix in (".py", ".pyi"):
                yield path.relative_to(place).as_posix(), path.read_bytes()
        return
    with zipfile.ZipFile(place) as wheel:
        for name in sorted(wheel.namelist()):
            if name.startswith(f"{package}/") and name.endswith(".py"):
                yield name, wheel.read(name)


def read_release(package: str, place: Path, cache: Path) -> dict[str, Module]:
    """The modules of one release, by dotted name. A file that was read before is not parsed
    again.
    """
    found = {}
    for path, content in sources(package, place):
        if _PASSED_OVER.search(path):
            continue
        name = path.rpartition(".")[0].removesuffix("/__init__").replace("/", ".")
        if _OTHER_FRAMEWORK.search(path):
            listed = re.search(rb"^__all__ = \[([^\]]*)\]", content, re.MULTILINE)
            exported = set(re.findall(r"\w+", listed[1].decode() if listed else ""))
            found[name] = Module(names=exported, exported=exported)
            continue
        key = hashlib.sha256(f"{PARSER} {Path(path).name} ".encode() + content).hexdigest()
        kept = cache / key[:2] / key
        if kept.exists():
            found[name] = Module(**pickle.loads(kept.read_bytes()))
            continue
        found[name] = read_module(
            content.decode(errors="replace"),
            is_package=path.endswith(("__init__.py", ".pyi")),
            of_model=bool(_OF_MODEL.match(path)),
        )
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(f".{os.getpid()}").write_bytes(pickle.dumps(vars(found[name])))
        kept.with_suffix(f".{os.getpid()}").replace(kept)
    return found


def facts_of(package: str, modules: Mapping[str, Module]) -> Iterator[tuple[Kind, str, str]]:
    """Each fact of a release: its kind, the place, and the name."""
    for name, module in modules.items():
        yield "modules", package, name
        of_module: dict[Kind, Iterable[str]] = {
            "symbols": sorted(_exported(name, modules)),
            "messages": module.messages,
            "options": module.options,
        }
        of_owner: dict[Kind, Mapping[str, Iterable[str]]] = {
            "arguments": module.callables,
            "bases": module.bases,
            "members": module.members,
        }
        for kind, names in of_module.items():
            yield from ((kind, name, one) for one in names)
        for kind, owners in of_owner.items():
            for owner, names in owners.items():
                yield from ((kind, f"{name}:{owner}", one) for one in names)
        yield from (("renamed", old, new) for old, new in module.renamed.items())


def _exported(name: str, modules: Mapping[str, Module], depth: int = 0) -> set[str]:
    """What can be imported from a module, by way of ``*`` and of lazy packages too."""
    module = modules[name]
    names = set(module.names)
    if depth > 4:
        return names
    for star in module.stars:
        level = len(star) - len(star.lstrip("."))
        parts = name.split(".")
        base = ".".join(parts[: len(parts) - level + 1]) if level else ""
        other = ".".join(filter(None, (base, star.lstrip("."))))
        if other in modules:
            below = modules[other]
            names |= below.exported or _exported(other, modules, depth + 1)
    if module.whole_models:
        prefix = f"{name}.models." if name == "transformers" else f"{name}."
        for other, below in modules.items():
            if other.startswith(prefix):
                names |= below.exported
    return names


# --- all releases ----------------------------------------------------------------------


def spans(indexes: Iterable[int]) -> str:
    """Numbers of releases as ranges: ``0-3,7``."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def is_kept(package: str, kind: Kind, place: str) -> bool:
    """Whether a question may need it. One release of torch tells nothing of its messages."""
    if package == "torch":
        return kind in ("modules", "symbols", "arguments", "options") and "._" not in place
    return not (kind == "bases" and place.startswith("transformers.models."))


def gathered(package: str, places: list[Path], cache: Path) -> dict[str, dict[str, dict[str, str]]]:
    """By kind and place: ranges of releases, each with the names that these releases have."""
    seen: dict[str, dict[tuple[str, str], list[int]]] = {kind: defaultdict(list) for kind in KINDS}
    for index, place in enumerate(places):
        for kind, at, name in facts_of(package, read_release(package, place, cache)):
            seen[kind][at, name].append(index)
        print(f"{package}: {place.name}", file=sys.stderr)
    document: dict[str, dict[str, dict[str, str]]] = {}
    for kind, facts in seen.items():
        rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for (at, name), indexes in facts.items():
            rows[at][spans(indexes)].append(name)
        separator = "\n" if kind == "messages" else " "
        document[kind] = {
            at: {ranges: separator.join(sorted(names)) for ranges, names in sorted(by.items())}
            for at, by in sorted(rows.items())
            if is_kept(package, kind, at)
        }
    return document


def releases_of(package: str) -> list[str]:
    """Those of the stack table; of other packages the last patch of each minor on the index."""
    if package in ("transformers", "accelerate"):
        return [str(version) for version in load().library(package).read]  # type: ignore[arg-type]
    argv = [sys.executable, "-m", "pip", "index", "versions", package]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    listed = re.search(r"Available versions: (.*)", said)
    last: dict[tuple[int, int], Version] = {}
    for version in sorted(Version(text) for text in (listed[1] if listed else "").split(", ")):
        last[version.major, version.minor] = version
    return [str(version) for version in last.values()]


def wheel(package: str, version: str, folder: Path) -> Path | None:
    """The wheel of a release, downloaded if the folder does not have it; None if there is none."""
    pattern = f"{package}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        argv = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
        ]
        argv += ["--python-version", "3.12", "--dest", str(folder), f"{package}=={version}"]
        subprocess.run(argv, check=False, stderr=subprocess.DEVNULL)
    return next(iter(folder.glob(pattern)), None)


def read_package(
    package: str, folder: Path
) -> tuple[str, list[str], dict[str, dict[str, dict[str, str]]]]:
    """A package, its releases that have a wheel, and what they show."""
    cache = folder / "parsed"
    if package == "torch":
        site = Path(sysconfig.get_path("purelib"))
        (metadata,) = site.glob("torch-*.dist-info")
        version = Version(metadata.name.split("-")[1].removesuffix(".dist")).base_version
        return package, [version], gathered(package, [site], cache)
    wheels = {version: wheel(package, version, folder) for version in releases_of(package)}
    found = {version: path for version, path in wheels.items() if path is not None}
    return package, list(found), gathered(package, list(found.values()), cache)


def main() -> None:
    """Read all, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    default = platformdirs.user_cache_path("cputune") / "wheels"
    parser.add_argument("--wheels", type=Path, default=default, help="where wheels are kept")
    folder = parser.parse_args().wheels
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2) as pool:
        found = list(pool.map(read_package, PACKAGES, [folder] * len(PACKAGES)))
    with zipfile.ZipFile(TARGET, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        _write(target, "releases", {package: releases for package, releases, _ in found})
        for package, _, document in found:
            for kind, rows in document.items():
                _write(target, f"{package}/{kind}", rows)
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes", file=sys.stderr)


def _write(target: zipfile.ZipFile, name: str, document: object) -> None:
    """One member. Its date is fixed, so that the same facts give the same file."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    member = zipfile.ZipInfo(f"{name}.json", date_time=(2026, 1, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_DEFLATED
    target.writestr(member, text, compresslevel=9)


if __name__ == "__main__":
    main()
