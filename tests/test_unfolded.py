"""Code is spread out to be read: few conditional expressions, a reason beside each number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "cputune"
MOST_IN_A_THOUSAND = 26.0
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


def is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.BinOp):
        return is_number(value.left) or is_number(value.right)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_number, value.elts))
    return isinstance(value, ast.UnaryOp) and is_number(value.operand)


def is_reason(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_each_number_of_a_module_has_its_reason_beside_it() -> None:
    """A text behind it, or a comment; that of the last one of some lines is that of all."""
    bare = []
    for path, tree, _ in trees():
        lines = path.read_text(encoding="utf-8").splitlines()
        blocks: list[list[ast.stmt]] = []
        for node in tree.body:
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
                    bare.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert bare == []
