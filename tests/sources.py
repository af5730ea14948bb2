"""The modules of the package, each read and parsed once for all tests that look at source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cputune"

one_worker = pytest.mark.xdist_group("sources")
"""Of tests that read all modules: parsing takes seconds, and each worker would do it again."""


class Module(NamedTuple):
    """A module: where it is, its text, its syntax tree and all nodes of it."""

    path: Path
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]

    @property
    def place(self) -> str:
        """Its path below the package."""
        return self.path.relative_to(PACKAGE).as_posix()


@cache
def modules() -> tuple[Module, ...]:
    """All modules of the package, in the order of their paths."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        found.append(Module(path, text, tree, tuple(ast.walk(tree))))
    return tuple(found)
