"""Checks whether versions fit each other: one rule for each pair of packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial

from packaging.version import Version

from cputune.stack.interface import symbol
from cputune.stack.tables import (
    BUILT_FOR_TORCH,
    COMPILED,
    DISTRIBUTIONS,
    LIBRARIES,
    REMEMBERED,
    Compiled,
    Conflict,
    ImportedName,
    Library,
    Versions,
    load,
    minor,
    satisfies,
)

# Returns what is wrong, with both versions; None if they fit, or if it is not known.
Rule = Callable[[Versions], "str | None"]


def declared(v: Versions, name: Library, other: str, *, key: str = "") -> str | None:
    """Check what a release requires of another package. ``key`` is another column of the table."""
    version, installed = v.get(name), v.get(other)
    if version is None or installed is None:
        return None
    return _declared(name, version, other, installed, key or other)


@lru_cache(maxsize=REMEMBERED)
def _declared(
    name: Library, version: Version, other: str, installed: Version, column: str
) -> str | None:
    needs = load().library(name).needs_of(version)
    specifier = getattr(needs, column, "")
    if satisfies(installed, specifier):
        return None
    return f"{name} {version} needs {other} {specifier}, found {installed}"


def transformers_torch(v: Versions) -> str | None:
    """Below this version of torch transformers ignores it, or fails."""
    return declared(v, "transformers", "torch", key="torch_at_run_time")


def ipex_torch(v: Versions) -> str | None:
    """IPEX checks major.minor of torch when it is imported, and is linked against it."""
    if v.ipex is None or v.torch is None or minor(v.ipex) == minor(v.torch):
        return None
    return f"intel_extension_for_pytorch {v.ipex} was built for torch {_x(v.ipex)}, not {v.torch}"


def oneccl_torch(v: Versions) -> str | None:
    """The bindings are linked against one torch release."""
    return built_for_torch(v, "oneccl")


def built_for_torch(v: Versions, name: Compiled) -> str | None:
    """A package that is linked against one torch release, installed with another one.

    Bindings newer than the tables fit the torch of the same minor. An unknown torchvision or
    torchaudio is not judged.
    """
    version = v.get(name)
    if version is None or v.torch is None:
        return None
    row = load().row(name, version)
    if row is not None:
        built_for = row.torch
    elif name == "oneccl":
        built_for = f"=={_x(version)}.*"
    else:
        return None
    if satisfies(v.torch, built_for):
        return None
    package = f"{DISTRIBUTIONS[name]} {version}"
    return f"{package} was built for torch {built_for.lstrip('=')}, not {v.torch}"


def trainer_arguments(v: Versions) -> str | None:
    """Parsing of arguments in transformers 4.56 needs a type from accelerate."""
    return _beside_accelerate(v, "trainer-arguments")


def trainer_calls(v: Versions) -> str | None:
    """Trainer calls accelerate in ways that some of its releases do not support."""
    return _beside_accelerate(v, "trainer-calls")


def _beside_accelerate(v: Versions, behaviour: str) -> str | None:
    if v.transformers is None or v.accelerate is None:
        return None
    row = load().transformers.does(behaviour, v.transformers)
    if row is None or not satisfies(v.accelerate, row.accelerate):
        return None
    return f"transformers {v.transformers} beside accelerate {v.accelerate}: {row.claim}"


def imported_names(v: Versions) -> str | None:
    """A release imports a name that the installed release of another package does not have."""
    for library in LIBRARIES:
        for row in load().library(library).imports:
            problem = imported_name(v, library, row)
            if problem is not None:
                return problem
    return None


def imported_name(v: Versions, library: Library, row: ImportedName) -> str | None:
    """The same of one name."""
    version, other = v.get(library), v.get(row.of)
    if version is None or other is None or not row.covers(version):
        return None
    home = row.home or row.of
    presence = symbol(row.of, home, row.name)
    if presence is None or presence.at(other):
        return None
    return (
        f"{library} {version} imports {row.name} from {home}, which {row.of} {other} does not "
        f"have ({row.of} has it {presence.range_text()})"
    )


def conflicts(v: Versions, *, trains: bool) -> str | None:
    """What a release does beside another one, although no metadata forbid it."""
    for library in LIBRARIES:
        for row in load().library(library).conflicts:
            problem = conflict(v, library, row)
            if problem is not None and row.trains is trains:
                return problem
    return None


def conflict(v: Versions, library: Library, row: Conflict) -> str | None:
    """The same of one row."""
    version, other = v.get(library), v.get(row.of)
    if version is None or other is None or not row.covers(version, other):
        return None
    return f"{library} {version} beside {row.of} {other}: {row.says}"


def numpy_torch(v: Versions) -> str | None:
    """Before 2.3, torch was compiled against numpy 1 and does not work with numpy 2."""
    row = load().row("torch", v.torch)
    if v.numpy is None or row is None or satisfies(v.numpy, row.numpy):
        return None
    return f"torch {v.torch} needs numpy {row.numpy}, found {v.numpy}"


def numpy_libraries(v: Versions) -> str | None:
    """Some releases of transformers and accelerate require numpy below 2."""
    return declared(v, "transformers", "numpy") or declared(v, "accelerate", "numpy")


def python_wheels(v: Versions) -> str | None:
    """Compiled packages have wheels for some Pythons, Python libraries require a minimum."""
    for name in DISTRIBUTIONS:
        problem = python_wheel(v, name)
        if problem:
            return problem
    return None


def python_wheel(v: Versions, name: str) -> str | None:
    """Why this package cannot be installed in this Python. None if it can."""
    if v.python is None:
        return None
    if name in LIBRARIES:
        return declared(v, name, "python")
    if name == "numpy":
        return _numpy_wheel(v)
    if name not in COMPILED:
        return None
    row = load().row(name, v.get(name))
    tag = f"cp{v.python.major}{v.python.minor}"
    if row is None or row.tags is None or tag in row.tags:
        return None
    package = f"{DISTRIBUTIONS[name]} {v.get(name)}"
    return f"{package} has no wheel for Python {_x(v.python)}, only {', '.join(row.tags)}"


def _transformers_torch(v: Versions) -> str | None:
    return transformers_torch(v) or declared(v, "transformers", "torch")


def _rules() -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Each rule with the packages that can break it; those that depend on another one come last."""
    for name in DISTRIBUTIONS:
        yield (name,), partial(python_wheel, name=name)
    yield ("transformers", "torch"), _transformers_torch
    for rule in (trainer_arguments, trainer_calls):
        yield ("transformers", "accelerate"), rule
    pinned = ("numpy", "tokenizers", "huggingface_hub")
    for library in LIBRARIES:
        for other in sorted(DISTRIBUTIONS, key=pinned.__contains__):
            needed = any(getattr(row, other, "") for row in load().library(library).needs)
            # which torch transformers accepts is checked at run time
            if needed and (library, other) != ("transformers", "torch"):
                yield (library, other), partial(declared, name=library, other=other)
    yield from _rules_of_pairs()
    yield ("numpy", "torch"), numpy_torch
    yield ("ipex", "torch"), ipex_torch
    for built in BUILT_FOR_TORCH:
        yield (built, "torch"), partial(built_for_torch, name=built)


def _rules_of_pairs() -> Iterator[tuple[tuple[str, ...], Rule]]:
    for library in LIBRARIES:
        table = load().library(library)
        for row in table.imports:
            yield (library, row.of), partial(imported_name, library=library, row=row)
        for pair in table.conflicts:
            if not pair.trains:
                yield (library, pair.of), partial(conflict, library=library, row=pair)


@cache
def rules() -> tuple[tuple[tuple[str, ...], Rule], ...]:
    return tuple(_rules())


def declared_by(name: str, version: Version | None) -> Iterator[tuple[str, str]]:
    """Yield what a release requires, by the tables: short names and specifiers."""
    if version is None:
        return
    if name in LIBRARIES:
        needs = load().library(name).needs_of(version)
        for other in DISTRIBUTIONS:
            specifier = getattr(needs, other, "")
            if specifier:
                yield other, specifier
    elif name in BUILT_FOR_TORCH:
        row = load().row(name, version)
        if row is not None and row.torch:
            yield "torch", row.torch


@cache
def _numpy_wheel(v: Versions) -> str | None:
    """The newest Python for which a release of numpy has wheels. None if that is not exceeded."""
    if v.python is None or v.numpy is None:
        return None
    for row in load().numpy_pythons:
        is_meant = row.first <= minor(v.numpy) <= row.last
        if is_meant and minor(v.python) > row.newest:
            newest = f"{row.newest[0]}.{row.newest[1]}"
            return f"numpy {v.numpy} has no wheel for Python {_x(v.python)}, only to {newest}"
    return None


def pythons() -> tuple[str, ...]:
    """Python versions with a torch in the tables, the oldest first."""
    tags = set[str]()
    for torch in load().torch:
        tags.update(tag.rstrip("t") for tag in torch.tags or ())
    return tuple(sorted((f"{tag[2]}.{tag[3:]}" for tag in tags), key=Version))


def pythons_for(versions: Versions) -> tuple[str, ...]:
    """Python versions for which all of these packages have wheels, the oldest first."""
    texts: list[str] = []
    for text in pythons():
        if not python_wheels(versions.changed(python=Version(text))):
            texts.append(text)
    return tuple(texts)


def misfitting(versions: Versions) -> tuple[tuple[str, ...], ...]:
    """For each rule that these versions break, the packages that can be changed."""
    return tuple(names for names, _ in _broken_rules(versions))


def misfits(versions: Versions) -> tuple[str, ...]:
    """The problems of these versions."""
    return tuple(problem for _, problem in _broken_rules(versions))


def _broken_rules(versions: Versions) -> Iterator[tuple[tuple[str, ...], str]]:
    installed = {name for name in DISTRIBUTIONS if versions.get(name) is not None}
    for names, rule in rules():
        # A rule needs all of its packages, so most rules are skipped.
        if installed.issuperset(names):
            problem = rule(versions)
            if problem is not None:
                yield names, problem


def _x(version: Version) -> str:
    return f"{version.major}.{version.minor}"
