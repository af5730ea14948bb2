"""Which faults are planted in a module: cosmic-ray's operators, where something is decided."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

OPERATORS = (
    # a comparison, at its border and the other way round
    "ReplaceComparisonOperator_Eq_NotEq",
    "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_Lt_Gt",
    "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_LtE_Gt",
    "ReplaceComparisonOperator_Gt_GtE",
    "ReplaceComparisonOperator_Gt_Lt",
    "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_GtE_Lt",
    "ReplaceComparisonOperator_Is_IsNot",
    "ReplaceComparisonOperator_IsNot_Is",
    # a number: one more, and one less
    "NumberReplacer",
    # a sign
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Div",
    "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_FloorDiv_Mul",
    "ReplaceBinaryOperator_Mod_Mul",
    "ReplaceBinaryOperator_Pow_Mul",
    "ReplaceBinaryOperator_BitOr_BitAnd",
    "ReplaceBinaryOperator_BitAnd_BitOr",
    "ReplaceBinaryOperator_LShift_RShift",
    "ReplaceUnaryOperator_USub_UAdd",
    # a condition
    "AddNot",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    # a loop, and what is caught
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ZeroIterationForLoop",
    "ExceptionReplacer",
)
"""Of what cosmic-ray has: one or two faults for each place. All others say the same again."""

Position = tuple[int, int]
Range = tuple[Position, Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault in one module.

    Attributes:
        was, becomes: the first line that differs, stripped.
        source: the whole module with the fault in it.
    """

    module: str
    line: int
    was: str
    becomes: str
    source: str = field(repr=False)


SEED = 11
"""Of the faults that are taken where not all are tried: the same ones in every run."""


def planted(module: str, source: str, *, most: int | None = None) -> Iterator[Mutant]:
    """Every fault that is planted in this module, from its first line to its last; or so many."""
    syntax, tree = get_ast(source), ast.parse(source)
    declared, between = tuple(_declarations(tree)), tuple(_between_values(tree))
    compared = frozenset(_compared(tree))
    places: list[tuple[Position, str, int]] = []
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        found = itertools.chain.from_iterable(
            operator.mutation_positions(node) for node in ast_nodes(syntax)
        )
        for occurrence, (start, _) in enumerate(found):
            nothing = (
                _within(start, declared)
                or ("Binary" in name and not _within(start, between))
                or (name == "AddNot" and start in compared)
            )
            if not nothing:
                places.append((start, name, occurrence))
    if most is not None and len(places) > most:
        places = Random(SEED).sample(sorted(places), most)
    for _, name, occurrence in sorted(places):
        # cosmic-ray replaces no exception whose name has a dot.
        with contextlib.suppress(AttributeError):
            mutated = mutate_code(source, get_operator(f"core/{name}")(), occurrence)
            yield _mutant(module, source, mutated)


def _mutant(module: str, source: str, mutated: str) -> Mutant:
    pairs = zip(source.splitlines(), mutated.splitlines(), strict=False)
    line, (was, becomes) = next(
        (number, pair) for number, pair in enumerate(pairs, start=1) if pair[0] != pair[1]
    )
    return Mutant(
        module=module, line=line, was=was.strip(), becomes=becomes.strip(), source=mutated
    )


def _declarations(tree: ast.Module) -> Iterator[Range]:
    """Where nothing is decided: types, how a record is declared. And where a fault does harm."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from map(_range, node.decorator_list)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield _range(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield _range(node.annotation)
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            yield _range(node.value)  # of zip: an assertion that always holds
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("os.sched_"):
            yield _range(node.args[0])  # 0 is this process, and 1 is that of the whole machine
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield _range(node.test)


def _between_values(tree: ast.Module) -> Iterator[Range]:
    """Where an operator stands between two values: a ``*`` in a signature is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            yield _range(node.left)[1], _range(node.right)[0]


def _compared(tree: ast.Module) -> Iterator[Position]:
    """Conditions whose opposite another operator makes: ``a == b``, ``not a``.

    And those that have no opposite by one word: ``a := b``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            test = node.test
            if isinstance(test, ast.UnaryOp | ast.NamedExpr) or (
                isinstance(test, ast.Compare) and not isinstance(test.ops[0], ast.In | ast.NotIn)
            ):
                yield _range(test)[0]


def _range(node: ast.expr) -> Range:
    # ast counts bytes, parso characters: the lines of ours that decide are ASCII.
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _within(place: Position, ranges: tuple[Range, ...]) -> bool:
    return any(begin <= place < end for begin, end in ranges)
