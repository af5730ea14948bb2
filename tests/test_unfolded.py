"""Code is spread out to be read: conditional expressions do not grow, no boolean is a number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "cputune"
MOST_IN_A_THOUSAND = 26.5
"""Lines of which so many hold a conditional expression. It may be lowered; the goal is 10."""

SUMS = (ast.Add, ast.Sub, ast.Mult)


def trees() -> Iterator[tuple[Path, ast.Module, int]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, ast.parse(text), text.count("\n")


def test_conditional_expressions_become_fewer() -> None:
    found = lines = 0
    for _, tree, count in trees():
        found += sum(isinstance(node, ast.IfExp) for node in ast.walk(tree))
        lines += count
    assert 1000 * found / lines <= MOST_IN_A_THOUSAND


def is_boolean(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Compare) or (isinstance(called, ast.Name) and called.id == "bool")


def test_no_boolean_is_added_or_multiplied() -> None:
    wrong = []
    for path, tree, _ in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, SUMS):
                sides = [node.left, node.right]
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, SUMS):
                sides = [node.value]
            else:
                continue
            if any(map(is_boolean, sides)):
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    # An array of booleans is one of numbers: how blocks share their processes.
    assert [place for place in wrong if not place.startswith("tuner/gains.py")] == []


def test_a_conditional_expression_is_read_at_a_glance() -> None:
    """It holds no other one and assigns nothing, and stands on three lines at the most."""
    wrong = []
    for path, tree, _ in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.IfExp):
                inner = [one for one in ast.walk(node) if one is not node]
                long = (node.end_lineno or node.lineno) - node.lineno > 2
                if long or any(isinstance(one, (ast.IfExp, ast.NamedExpr)) for one in inner):
                    wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert wrong == []
