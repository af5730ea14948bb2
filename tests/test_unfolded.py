"""Code is spread out to be read: few conditional expressions, a reason beside each number."""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache

import pytest
from sources import Module, modules, one_worker

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

UNFOLDED = ("cli", "host", "library", "records", "report", "stack", "text")
"""Packages in which conditional expressions are rare already."""

MOST_IN_UNFOLDED = 6.0
"""Conditional expressions for 1,000 lines of code in these packages."""


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


@pytest.mark.parametrize("package", UNFOLDED)
def test_packages_that_are_unfolded_stay_so(package: str) -> None:
    count = code = 0
    for module, lines in counted():
        if module.place.startswith(f"{package}/"):
            code += lines
            count += sum(isinstance(node, ast.IfExp) for node in module.nodes)
    # A package of 100 lines may have one.
    assert count <= max(1, MOST_IN_UNFOLDED * code / 1000)


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


def test_each_number_of_a_module_has_its_reason_beside_it() -> None:
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
