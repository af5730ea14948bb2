"""Runs a script, or ``-m`` and a module, as ``python`` would, with the parts of a plan set."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from cputune.inside.applying.hooking import Hook, set_hooks


def hooks_of(parts: Iterable[Any]) -> list[Hook]:
    """The hooks of these parts; observers of the rank find them in ``cputune_applied``."""
    parts = list(parts)
    sys.modules["cputune_applied"] = module = ModuleType("cputune_applied")
    module.parts = {part.name: part for part in parts}  # type: ignore[attr-defined]
    hooks: list[Hook] = []
    for part in parts:
        hooks += part.hooks()
    return hooks


def run_script(argv: Sequence[str]) -> None:
    """Run ``argv[0]`` as ``__main__``, or after ``-m`` a module, with the rest as arguments."""
    safe_path = getattr(sys.flags, "safe_path", False)  # 3.11 and later
    script = os.path.abspath(argv[0])
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        if not safe_path:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(argv)
    if not os.path.isfile(script):
        runpy.run_path(script, run_name="__main__")  # searches a folder itself
        return
    if not safe_path:  # where the script really lies, links resolved
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    # Not run_path: its __main__ goes away with it, and what is left at exit needs it.
    sys.modules["__main__"] = module = ModuleType("__main__")
    module.__dict__.update(__file__=script, __cached__=None, __builtins__=builtins)
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def refuse(reason: str) -> NoReturn:
    """End the process: the script cannot be run as planned."""
    sys.stderr.write(f"error: {reason}\nhint: tune this script, or emit a plan of fewer ranks\n")
    sys.stderr.flush()
    os._exit(3)


def say(text: str) -> None:
    """The first rank prints what is changed."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"apply_plan.py: {text}\n")


def main(parts: Iterable[Any], run: Callable[[Sequence[str]], None] = run_script) -> None:
    """Run the script of the command line with these parts."""
    if len(sys.argv) < 2:
        sys.exit("usage: apply_plan.py SCRIPT ARGUMENTS...")
    set_hooks(hooks_of(parts))
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file, which the script would not search
    run(sys.argv[1:])
