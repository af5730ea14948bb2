"""Exchanging a function of a module that is loaded for the same one with a fault in it."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Set
from pathlib import Path
from types import CodeType, FunctionType


class Exchange:
    """The functions of one module, as they live in this process, but for those that have run."""

    def __init__(self, place: Path, ran: Set[CodeType]) -> None:
        self._module = compile(place.read_text(encoding="utf-8"), str(place), "exec")
        self._living: dict[CodeType, list[FunctionType]] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType) and found.__code__ not in ran:
                self._living.setdefault(found.__code__, []).append(found)

    def functions(self, source: str) -> list[tuple[FunctionType, CodeType]]:
        """The functions that this fault changes, each with its new code.

        None where something else changes: a constant, a default, a class.
        """
        faulty = compile(source, self._module.co_filename, "exec")
        changed = list(_changed(self._module, faulty))
        if not all(_is_function(old) and old in self._living for old, _ in changed):
            return []
        return [(function, new) for old, new in changed for function in self._living[old]]


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions, or the module or the classes themselves, that differ."""
    if _is_function(old):
        if _told(old, deep=True) != _told(new, deep=True):
            yield old, new
        return
    if _told(old, deep=False) != _told(new, deep=False):
        yield old, new
    for old_part, new_part in zip(_parts(old), _parts(new), strict=False):
        yield from _changed(old_part, new_part)


def _told(code: CodeType, *, deep: bool) -> tuple[object, ...]:
    """What code does, without the places of its lines; ``deep``: and what is in it does."""
    constants = tuple(repr(one) for one in code.co_consts if not isinstance(one, CodeType))
    within = tuple(_told(part, deep=True) for part in _parts(code)) if deep else ()
    return code.co_name, code.co_code, code.co_names, code.co_varnames, constants, within


def _parts(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _is_function(code: CodeType) -> bool:
    """Whether it is no module and no class: these run once, as they are loaded."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)
