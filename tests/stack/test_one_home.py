"""Versions are compared in cputune/stack/ and nowhere else."""

import ast
import re
from collections.abc import Iterator

from sources import Module, modules, one_worker

pytestmark = one_worker
ALLOWED = {
    # Linux is no package: its versions are read out of /proc/version, and no table has them.
    "doctor/checks/precision.py": {"(5, 16)"},
}


def is_release(node: ast.AST) -> bool:
    """``(4, 32)``, or a string such as ``"1.13"`` and ``">=1.13"``."""
    if isinstance(node, ast.Tuple):
        numbers = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        whole = all(type(number) is int for number in numbers)
        return 2 <= len(numbers) == len(node.elts) <= 3 and whole
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return re.fullmatch(r"[<>=!~]*\s*\d+(\.\d+)+(\.dev\d+)?", node.value) is not None


def version_literals(module: Module) -> Iterator[str]:
    """Literals that are compared, by themselves or by a name of the module, or made a Version."""
    compared = [node for node in module.nodes if isinstance(node, ast.Compare)]
    sides = [
        side
        for node in compared
        if not isinstance(node.ops[0], (ast.In, ast.NotIn))
        and ast.unparse(node.left) != "sys.version_info"
        for side in (node.left, *node.comparators)
    ]
    names = {name.id for side in sides for name in ast.walk(side) if isinstance(name, ast.Name)}
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            sides += node.args if called in ("Version", "SpecifierSet", "satisfies") else []
        elif isinstance(node, ast.Assign) and names & {ast.unparse(t) for t in node.targets}:
            sides += [node.value, *getattr(node.value, "elts", ())]
    yield from (ast.unparse(side) for side in sides if is_release(side))


def test_no_version_is_compared() -> None:
    rest = [module for module in modules() if not module.place.startswith("stack/")]
    found = {module.place: set(version_literals(module)) for module in rest}
    assert {name: literals for name, literals in found.items() if literals} == ALLOWED
