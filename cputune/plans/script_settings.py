"""Lines of a script that set the number of threads, or the precision of the weights. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_HALF = ("bfloat16", "float16", "half")

Kind = Literal["threads", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSetting:
    """One such line.

    Attributes:
        value: the number of threads or the type ("bfloat16") as written; None if the script
            computes it.
        function: the function around it; empty at the top level and in ``main``.
    """

    kind: Kind
    line: int
    code: str
    value: str | None
    function: str = ""


def settings_of(text: str) -> tuple[ScriptSetting, ...]:
    """The settings of a script in the order of their lines; none if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own words
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(sorted(_in(tree, ""), key=lambda setting: setting.line))


def named(setting: ScriptSetting, script: str) -> str:
    """``train.py:2 os.environ["OMP_NUM_THREADS"] = "1"``."""
    return f"{script.rpartition('/')[2]}:{setting.line} {setting.code}"


def _in(node: ast.AST, function: str) -> Iterator[ScriptSetting]:
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and child.name != "main":
            inside = child.name
        for kind, value in _read(child):
            code = ast.unparse(child).split("\n")[0]
            yield ScriptSetting(
                kind=kind,
                line=child.lineno,  # type: ignore[attr-defined]
                code=code if len(code) <= 80 else f"{code[:77]}...",
                value=value,
                function=inside,
            )
        yield from _in(child, inside)


def _read(node: ast.AST) -> Iterator[tuple[Kind, str | None]]:
    """What a node sets itself; the nodes inside of it are read separately."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _names_threads(target):
                yield "threads", _constant(node.value)
    if isinstance(node, ast.Call):
        name = ""
        if isinstance(node.func, ast.Name):
            name = node.func.id
        if isinstance(node.func, ast.Attribute):
            called = node.func.attr
        else:
            called = name
        yield from _threads(node, called)
        yield from _weights(node, called)


def _threads(node: ast.Call, called: str) -> Iterator[tuple[Kind, str | None]]:
    """``torch.set_num_threads(4)``, ``os.putenv(…)``, ``os.environ.update(…)``."""
    if called == "set_num_threads" and node.args:
        yield "threads", _constant(node.args[0])
    elif called == "putenv" and len(node.args) == 2:
        if _constant(node.args[0]) in THREAD_VARIABLES:
            yield "threads", _constant(node.args[1])
    elif called == "update" and ast.unparse(node.func) in ("os.environ.update", "environ.update"):
        yield from _updated(node)


def _updated(node: ast.Call) -> Iterator[tuple[Kind, str | None]]:
    """``os.environ.update({"OMP_NUM_THREADS": "4"})``, or with keywords."""
    for argument in node.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if key is not None and _constant(key) in THREAD_VARIABLES:
                    yield "threads", _constant(value)
    for keyword in node.keywords:
        if keyword.arg in THREAD_VARIABLES:
            yield "threads", _constant(keyword.value)


def _weights(node: ast.Call, called: str) -> Iterator[tuple[Kind, str | None]]:
    """``.to(torch.bfloat16)``, ``.bfloat16()``, ``dtype=…`` of ``from_pretrained``."""
    if called in ("bfloat16", "half") and isinstance(node.func, ast.Attribute) and not node.args:
        yield "weights", "bfloat16" if called == "bfloat16" else "float16"
    elif called in ("to", "set_default_dtype"):
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            if _type_name(value) in _HALF:
                yield "weights", _type_name(value)
    elif called in ("from_pretrained", "from_config"):
        for keyword in node.keywords:
            if keyword.arg in ("dtype", "torch_dtype") and _type_name(keyword.value) in _HALF:
                yield "weights", _type_name(keyword.value)


def _names_threads(node: ast.Subscript) -> bool:
    """Whether this is ``os.environ["OMP_NUM_THREADS"]``."""
    is_environ = ast.unparse(node.value) in ("os.environ", "environ")
    return is_environ and _constant(node.slice) in THREAD_VARIABLES


def _constant(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return None


def _type_name(node: ast.expr) -> str | None:
    """``bfloat16`` of ``torch.bfloat16`` and of ``"bfloat16"``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return _constant(node)
