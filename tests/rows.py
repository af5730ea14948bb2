"""All rows of a table in one item, for rows that take milliseconds and share nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def every_row(
    names: str | Sequence[str],
    table: Iterable[Any],
    ids: Iterable[Any] | Callable[[Any], object] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Take what ``pytest.mark.parametrize`` takes, and make one item of it.

    Each row is tried, in a folder of its own, and the item fails with the names of all rows that
    fail. The first failure is its cause.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [_values(row, len(keys)) for row in table]
    named = _names(cases, ids)

    def around(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tried(*args: Any, **fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            folder = fixtures.get("tmp_path")
            for number, (name, values) in enumerate(zip(named, cases, strict=True)):
                row = dict(zip(keys, values, strict=True))
                if folder is not None:
                    fixtures["tmp_path"] = folder / str(number)
                    fixtures["tmp_path"].mkdir()
                try:
                    test(*args, **fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:
                    failed[name] = error
            if failed:
                first = next(iter(failed.values()))
                message = f"{len(failed)} of {len(cases)} rows fail: {', '.join(failed)}"
                raise AssertionError(message) from first

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in keys]
        tried.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return tried

    return around


def _values(row: Any, width: int) -> tuple[Any, ...]:
    if hasattr(row, "marks"):
        assert not row.marks, "a row with a mark of its own needs an item of its own"
        return tuple(row.values)
    if width == 1:
        return (row,)
    return tuple(row)


def _names(
    cases: Sequence[tuple[Any, ...]], ids: Iterable[Any] | Callable[[Any], object] | None
) -> list[str]:
    if ids is None:
        return [f"{number}: {values!r:.60}" for number, values in enumerate(cases)]
    if callable(ids):
        return [
            f"{number}: {' '.join(str(ids(v)) for v in values)}"
            for number, values in enumerate(cases)
        ]
    return [f"{number}: {name}" for number, name in enumerate(ids)]


def like_others(values: Iterable[Any]) -> list[Any]:
    """These values of a parameter in the weekly run alone: they are like others that stay."""
    return [pytest.param(value, marks=pytest.mark.matrix) for value in values]
