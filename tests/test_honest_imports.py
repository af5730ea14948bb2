"""Imports by a string go one way as well; and the world is touched by the rooms that may.

import-linter sees neither. Nothing climbs; what touches the world is listed, and a list that is too
long fails too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import sources
from sources import ROOT, Module

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = sources.one_worker

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
LAYERS: list[str] = CONTRACTS["importlinter"]["contracts"][0]["layers"]
TOUCHES = {
    # The training process itself, the console, and what Python runs before us.
    *("cputune.__main__", "cputune.inside", "cputune.cli", "cputune.host", "cputune.ranks"),
    # What a training process is started as.
    "cputune.apply",
    # `place.py` is a program of its own, which a rank becomes.
    "cputune.plans.placing",
    # Child programs of the doctor.
    "cputune.doctor.looks",
}


def modules() -> Iterator[tuple[str, Module]]:
    for module in sources.modules():
        if "texts" not in module.path.parts:
            parts = module.path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), module


def imported_by_string(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        named = node.args[0]
        if called not in ("import_module", "__import__") or not isinstance(named, ast.Constant):
            continue
        if isinstance(named.value, str) and named.value.startswith("cputune"):
            yield named.value


def height(module: str) -> int:
    """The layer of a module, the lowest is 0."""
    for at, layer in enumerate(reversed(LAYERS)):
        if any(module == one or module.startswith(f"{one}.") for one in layer.split(" | ")):
            return at
    return len(LAYERS)  # the package itself


def test_what_is_imported_by_a_string_does_not_climb() -> None:
    climbs = {
        (name, other)
        for name, module in modules()
        for other in imported_by_string(module)
        if height(other) > height(name)
    }
    assert climbs == set()


TOUCHING = re.compile(
    r"os\.(?:environ\w*|getenv|putenv|getcwd|chdir|open|remove|unlink|rename|replace|mkdir|makedirs"
    r"|rmdir|listdir|scandir|l?stat|access|system|fork|kill|killpg|uname|cpu_count|chmod|exec\w+"
    r"|spawn\w+|posix_spawn\w*|sched_[gs]etaffinity"
    r"|path\.(?:l?exists|is(?:file|dir|link|mount)|samefile|realpath|abspath|expanduser|get\w+))"
    r"|(?:subprocess|tempfile|shutil|socket|glob|urllib\.request)\.[a-z]\w*"
    r"|signal\.(?:signal|getsignal|pthread_\w+)|Path\.(?:cwd|home)"
)
READING = re.compile(
    r"(.*)\.(?:read_text|read_bytes|write_text|write_bytes|exists|is_file|is_dir|mkdir|unlink|chmod"
    r"|iterdir|r?glob|resolve|stat|touch|rename|rmdir|samefile)",
    re.DOTALL,
)
"""Methods of a path; a host has some of them too, and files of the package are read freely."""


def touches_the_world(module: Module) -> bool:
    """Whether a module touches disk, environment, network, signals or processes."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and TOUCHING.fullmatch(ast.unparse(node)):
            return True
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called == "open":
            return True
        method = READING.fullmatch(called)
        if method and not re.search(r"host\b|Host\(\)\)?$|__file__|resources\.files", method[1]):
            return True
    return False


def test_only_the_rooms_that_may_touch_the_world() -> None:
    found = {name for name, module in modules() if touches_the_world(module)}
    allowed = {
        name for name in found for room in TOUCHES if name == room or name.startswith(f"{room}.")
    }
    assert found == allowed
    assert {
        room for room in TOUCHES if not any(n == room or n.startswith(f"{room}.") for n in found)
    } == set()


REMEMBERS = {
    "cputune": "the module of each public name, read once",
    "cputune.cli.output": "--verbose and --json of the command that runs",
    "cputune.cli.signals": "the signal that came",
    "cputune.host.files": "temporary files that a signal must remove",
    "cputune.inside.applying.ending": "what must live as long as the training process",
    "cputune.doctor.looks.rehearse": "what a child program has replaced in torch",
}
"""What a module may change while it runs. Everything else is passed: the Python that trains is a
field of ``HostFacts``, options are records."""

CONTAINERS = ("list", "dict", "set", "deque", "defaultdict", "Counter", "ContextVar", "local")


def remembers(module: Module) -> bool:
    """Whether a function changes a name of the module, or an empty container is filled later."""
    if any(isinstance(node, ast.Global) for node in module.nodes):
        return True
    for node in module.tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        value = node.value
        if isinstance(value, ast.List | ast.Dict) and not ast.unparse(value)[1:-1]:
            return True
        if isinstance(value, ast.Call) and not value.args and not value.keywords:
            called = ast.unparse(value.func).rpartition(".")[2]
        else:
            called = ""
        if called in CONTAINERS:
            return True
    return False


def test_no_module_remembers_what_could_be_passed() -> None:
    assert {name for name, module in modules() if remembers(module)} == set(REMEMBERS)


def defined(module: str) -> set[str]:
    """The names of a module of the package; of a package, its modules too."""
    path = ROOT.joinpath(*module.split("."))
    names = set()
    if path.is_dir():
        names = {entry.stem for entry in path.iterdir()}
        path = path / "__init__"
    text = path.with_suffix(".pyi" if module == "cputune" else ".py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(name.asname or name.name for name in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_what_benchmarks_tools_and_docs_import_exists() -> None:
    """Nothing runs them with each change."""
    missing = []
    for folder in ("benchmarks", "tools", "docs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cputune"):
                    names = {name.name for name in node.names} - {"__version__"}
                    lost = sorted(names - defined(str(node.module)))
                    missing += [f"{path.relative_to(ROOT)}: {node.module}.{name}" for name in lost]
    assert missing == []
