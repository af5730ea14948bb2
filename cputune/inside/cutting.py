"""Cuts a batch into its samples, in any container and with any number of rows per sample."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cputune.inside.applying.trimming import tensors_of


class UncutError(Exception):
    """A batch cannot be cut into its samples; why."""


def rows_in(batch: object) -> int:
    """The first dimension of the first tensor that has one; 0 without one."""
    counts = (int(tensor.shape[0]) for tensor in tensors_of(batch) if len(tensor.shape))
    return next(filter(None, counts), 0)


def cut_into(
    batch: Any, samples: int, parts: int, rows: int, *, in_turn: bool = False
) -> list[Any]:
    """The batch in parts of as many samples each. Raises UncutError."""
    each = samples // parts
    made = []
    for at in range(0, samples, each):
        made.append(part_of(batch, samples, at, each, rows=rows, in_turn=in_turn))
    return made


def part_of(
    batch: Any, samples: int, at: int, each: int, *, rows: int = 1, in_turn: bool = False
) -> Any:
    """A number of samples of a batch, in the same container. Raises UncutError.

    A sample may have several ``rows`` in a tensor: first all first rows, then all second ones, as
    trl lays pairs of answers, or ``in_turn`` one sample after another.
    """
    within = functools.partial(
        part_of, samples=samples, at=at, each=each, rows=rows, in_turn=in_turn
    )
    if hasattr(batch, "shape"):
        if not len(batch.shape) or (batch.shape[0] == 1 and samples * rows > 1):
            return batch
        places = _places(int(batch.shape[0]), samples, at, each, rows, in_turn)
        if places is None:
            raise UncutError(f"it holds {tuple(batch.shape)} beside {samples * rows} samples")
        return batch[places]
    if isinstance(batch, Mapping):
        parts = {name: within(value) for name, value in batch.items()}
        try:
            return type(batch)(parts)  # type: ignore[call-arg]
        except TypeError:
            return parts
    if isinstance(batch, (list, tuple)):
        places = _places(len(batch), samples, at, each, rows, in_turn)
        if places is not None and not any(hasattr(item, "shape") for item in batch):
            picked = [batch[place] for place in places]
            return picked if isinstance(batch, list) else tuple(picked)
        made = [within(item) for item in batch]
        if isinstance(batch, list):
            return made
        return type(batch)(*made) if hasattr(batch, "_fields") else tuple(made)
    return batch


def _places(
    length: int, samples: int, at: int, each: int, rows: int, in_turn: bool
) -> list[int] | None:
    """Places of ``each`` samples from ``at`` on in a dimension; None if it is not of samples."""
    if length == samples:
        return list(range(at, at + each))
    if length != samples * rows:
        return None
    if in_turn:
        return list(range(at * rows, (at + each) * rows))
    places = []
    for first in range(0, length, samples):
        for n in range(at, at + each):
            places.append(first + n)
    return places
