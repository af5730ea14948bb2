"""One rule for private modules: a leading underscore means that only its own package imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from sources import ROOT, modules, one_worker

pytestmark = one_worker


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


def test_nobody_imports_what_is_private_elsewhere() -> None:
    files = [(module.path, module.nodes) for module in modules()]
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        files.append((path, tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))))
    assert [said for path, nodes in files for said in intrusions(path, nodes)] == []
