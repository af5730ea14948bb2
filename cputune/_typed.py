"""Whether a record holds what its annotations say, for documents that come from outside."""

from __future__ import annotations

import collections.abc
import types
import typing
from dataclasses import is_dataclass
from typing import Any


def mismatch(record: Any) -> str | None:
    """The first field that has another type than annotated, in words; None where all fit.

    ``record`` is a dataclass; records, tuples and mappings in it are looked into.
    """
    return _in_record(record, "")


def _in_record(record: Any, where: str) -> str | None:
    for name, expected in typing.get_type_hints(type(record)).items():
        found = _in_value(getattr(record, name), expected, f"{where}{name}")
        if found is not None:
            return found
    return None


def _in_value(value: Any, expected: Any, where: str) -> str | None:
    origin = typing.get_origin(expected)
    wrong = f"{where} cannot be {str(value)[:40]!r}"
    if expected is Any:
        return None
    if origin in (typing.Union, types.UnionType):
        answers = [_in_value(value, choice, where) for choice in typing.get_args(expected)]
        return None if None in answers else answers[0]
    if origin is tuple:
        if not isinstance(value, tuple):
            return wrong
        kind = typing.get_args(expected)[0]
        found = (_in_value(part, kind, f"{where}[{n}]") for n, part in enumerate(value))
        return next((answer for answer in found if answer is not None), None)
    if origin is collections.abc.Mapping:
        if not isinstance(value, collections.abc.Mapping):
            return wrong
        key_kind, kind = typing.get_args(expected)
        for key, part in value.items():
            found_here = _in_value(key, key_kind, where) or _in_value(part, kind, f"{where}.{key}")
            if found_here is not None:
                return found_here
        return None
    if isinstance(value, bool) and expected is not bool:
        return wrong
    if not isinstance(value, (int, float) if expected is float else expected):
        return wrong
    return _in_record(value, f"{where}.") if is_dataclass(expected) else None
