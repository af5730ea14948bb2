"""The house itself: how dense its code is, what may touch the world, and who imports what.

import-linter does not see imports by a string. What touches the world is listed, and a list that is
too long fails too.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from sources import ROOT, Module, modules, one_worker

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = one_worker

SUMS = (ast.Add, ast.Sub, ast.Mult)
LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Call)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)

MOST_IN_A_THOUSAND = {
    "conditional expressions": 11.5,
    "comprehensions": 26.0,
    "star-unpackings": 15.5,
}
"""For 1,000 lines of code, docstrings, comments and empty lines not counted. The limits may be
lowered; the goal for star-unpackings is 8."""


@cache
def counted() -> list[tuple[Module, int]]:
    """The modules, each with its lines of code."""
    return [(module, lines_of_code(module)) for module in modules()]


def lines_of_code(module: Module) -> int:
    """Lines with code on them: docstrings, comments and empty lines do not count."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in module.nodes:
        if is_reason(node):
            lines.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


def stars_in(node: ast.AST) -> int:
    """How often a literal or a call unpacks something: ``(*a, b)``, ``f(*a)``, ``{**a}``."""
    if isinstance(node, ast.Dict):
        return node.keys.count(None)
    if isinstance(node, ast.Call):
        return sum(isinstance(value, ast.Starred) for value in node.args)
    if isinstance(node, LITERALS):
        return sum(isinstance(value, ast.Starred) for value in node.elts)
    return 0


@pytest.mark.parametrize("kind", MOST_IN_A_THOUSAND)
def test_folded_expressions_become_fewer(kind: str) -> None:
    count = code = 0
    for module, lines in counted():
        code += lines
        for node in module.nodes:
            if kind == "conditional expressions":
                count += int(isinstance(node, ast.IfExp))
            elif kind == "comprehensions":
                count += int(isinstance(node, COMPREHENSIONS))
            else:
                count += stars_in(node)
    assert 1000 * count / code <= MOST_IN_A_THOUSAND[kind]


def is_boolean(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Compare) or (isinstance(called, ast.Name) and called.id == "bool")


def test_no_boolean_is_added_or_multiplied() -> None:
    wrong = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, SUMS):
                sides = [node.left, node.right]
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, SUMS):
                sides = [node.value]
            else:
                continue
            if any(map(is_boolean, sides)):
                wrong.append(f"{module.place}:{node.lineno}")
    # An array of booleans is one of numbers: how blocks share their processes.
    assert [place for place in wrong if not place.startswith("tuner/gains.py")] == []


def test_a_conditional_expression_is_read_at_a_glance() -> None:
    """It holds no other one and assigns nothing, and stands on three lines at the most."""
    wrong = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.IfExp):
                inner = [one for one in ast.walk(node) if one is not node]
                long = (node.end_lineno or node.lineno) - node.lineno > 2
                if long or any(isinstance(one, (ast.IfExp, ast.NamedExpr)) for one in inner):
                    wrong.append(f"{module.place}:{node.lineno}")
    assert wrong == []


def is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) or is_number(value.right)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_number, value.elts))
    return isinstance(value, ast.UnaryOp) and is_number(value.operand)


def is_reason(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def test_each_number_of_a_module_has_its_reason_next_to_it() -> None:
    """A text behind it, or a comment; that of the last one of some lines is that of all."""
    bare = []
    for module in modules():
        lines = module.text.splitlines()
        blocks: list[list[ast.stmt]] = []
        for node in module.tree.body:
            adjoins = blocks and (blocks[-1][-1].end_lineno or 0) + 1 == node.lineno
            if adjoins and not is_reason(blocks[-1][-1]):
                blocks[-1].append(node)
            else:
                blocks.append([node])
        for block in blocks:
            commented = lines[block[0].lineno - 2].startswith("#")
            if commented or is_reason(block[-1]):
                continue
            for node in block:
                value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
                commented = "#" in lines[node.lineno - 1]
                if value is not None and is_number(value) and not commented:
                    bare.append(f"{module.place}:{node.lineno}")
    assert bare == []


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


def named() -> Iterator[tuple[str, Module]]:
    """Each module with its dotted name, but for the texts of scripts."""
    for module in modules():
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
        for name, module in named()
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
    found = {name for name, module in named() if touches_the_world(module)}
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
    assert {name for name, module in named() if remembers(module)} == set(REMEMBERS)


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


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The dotted names that a file imports, names out of modules included."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def intrusions(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Imports of a private module, or of a private name of a module, from outside its package."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for name in imports(nodes):
        parts = name.split(".")
        if parts[0] != "cputune":
            continue
        for at, part in enumerate(parts):
            owner = ".".join(parts[:at])
            private = part.startswith("_") and not part.startswith("__")
            if private and package != owner and not package.startswith(f"{owner}."):
                yield f"{path.relative_to(ROOT)} imports {name}"


def test_no_one_imports_what_is_private_elsewhere() -> None:
    files = [(module.path, module.nodes) for module in modules()]
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        files.append((path, tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))))
    assert [said for path, nodes in files for said in intrusions(path, nodes)] == []
