"""What a batch holds, as a number that those of ranks add up to, however they are padded."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from cputune.inside.carry.batches import IGNORED, encodings_of, masks_of


def contents_of(batch: object) -> int | None:
    """The sum of a digest of each sample, whatever their order; None where they cannot be told.

    Padding is left out: columns that a mask leaves out, labels of -100, and what is repeated at the
    end of a row.
    """
    if isinstance(batch, list) and batch and not any(hasattr(item, "shape") for item in batch):
        return _sum(_digest(repr(row).encode()) for row in batch)
    parts = list(_named(batch, ""))
    count = next((int(tensor.shape[0]) for _, tensor in parts if len(tensor.shape)), 0)
    if not count:
        return None
    rows = [hashlib.blake2b(digest_size=8) for _ in range(count)]
    masks = [mask for encoding in encodings_of(batch) for mask in masks_of(encoding).values()]
    for name, tensor in parts:
        if not len(tensor.shape) or tensor.shape[0] != count:
            continue
        values = tensor.detach().cpu()
        mask = next((each for each in masks if each.shape == values.shape[: each.ndim]), None)
        for number, row in enumerate(rows):
            kept = None if mask is None else mask[number] != 0
            row.update(name.encode())
            row.update(_bytes(_without_padding(values[number], kept)))
    return _sum(int.from_bytes(row.digest(), "big") for row in rows)


MOST_SAMPLES = 2_000_000
"""Of a data set whose order is gone through; more would take seconds."""


def end_of_epoch(sampler: object, accumulation: int) -> list[int] | None:
    """The places in an epoch that this rank's last step takes; None where they cannot be told.

    Who makes batches of places (torch, accelerate's shards of ranks) makes them here of places in
    their order, so that nothing is drawn, and no sample is read.
    """
    try:
        ordered = _in_order(sampler)
        count, last = 0, deque[Any](maxlen=max(1, accumulation))
        for batch in ordered:
            last.append(batch)
            count += 1
    except (AttributeError, TypeError, ValueError):
        return None
    taken = count % accumulation or accumulation
    return [int(place) for batch in list(last)[-taken:] for place in batch]


def _in_order(sampler: Any) -> Any:
    """A sampler of batches over places in their order. Raises TypeError where it has no length."""
    changed = copy.copy(sampler)
    if hasattr(sampler, "batch_sampler"):  # of accelerate, one rank's share
        changed.batch_sampler = _in_order(sampler.batch_sampler)
        return changed
    length = len(sampler.sampler)
    if length > MOST_SAMPLES:
        raise ValueError(length)
    changed.sampler = range(length)
    return changed


def _named(batch: object, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors in a batch, each by the names that lead to it."""
    if hasattr(batch, "shape") and hasattr(batch, "detach"):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key in sorted(batch, key=str):
            yield from _named(batch[key], f"{name}.{key}")
    elif isinstance(batch, (list, tuple)):
        for number, part in enumerate(batch):
            yield from _named(part, f"{name}.{number}")


def _without_padding(row: Any, kept: Any) -> Any:
    if kept is not None:
        row = row[kept]
    if row.ndim == 0:
        return row
    if not row.is_floating_point():
        row = row[row != IGNORED]
    if kept is None and len(row) > 1:
        other = (row != row[-1]).flatten(1).any(1) if row.ndim > 1 else row != row[-1]
        positions = other.nonzero()
        row = row[: int(positions[-1]) + 1] if len(positions) else row[:0]
    return row


def _bytes(row: Any) -> bytes:
    flat = row.contiguous().reshape(-1)
    held: bytes = flat.view(sys.modules["torch"].uint8).numpy().tobytes() if flat.numel() else b""
    return held


def _digest(held: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(held, digest_size=8).digest(), "big")


def _sum(digests: Iterator[int]) -> int:
    return sum(digests) % (1 << 64)
