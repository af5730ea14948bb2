"""The content of a batch as a number: the sum over ranks is the same however they are padded."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from cputune.inside.applying.trimming import IGNORED, encodings_of, masks_of


def contents_of(batch: object) -> int | None:
    """The sum of a digest of each sample, in any order. None if it cannot be computed.

    Left out is padding: columns without mask, labels of -100, zeros and repeated whole numbers at
    the end of a row.
    """
    rows = rows_of(batch)
    if not rows:
        return None
    return _sum(_digest(row) for row in rows)


def rows_of(batch: object) -> list[dict[str, Any]]:
    """What each row of a batch holds, by name, without its padding; none if it has no rows."""
    if isinstance(batch, list) and batch and not any(hasattr(item, "shape") for item in batch):
        return [{"": repr(row)} for row in batch]
    parts = list(_named(batch, ""))
    count = next((int(tensor.shape[0]) for _, tensor in parts if len(tensor.shape)), 0)
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    masks = []
    for encoding in encodings_of(batch):
        for pair in masks_of(encoding).items():
            masks.append(pair)
    for name, tensor in parts:
        if not len(tensor.shape) or tensor.shape[0] != count:
            continue
        values = tensor.detach().cpu()
        mask = _mask_of(name, values, masks)
        for number, row in enumerate(rows):
            kept = None
            if mask is not None:
                kept = mask[number] != 0
            row[name] = _without_padding(values[number], kept)
    return rows


# Of a data set whose order is gone through; more would take seconds.
MOST_SAMPLES = 2_000_000


def end_of_epoch(sampler: object, accumulation: int) -> list[int] | None:
    """The places in an epoch that this rank's last step takes. None if they are not known.

    The script's own batch samplers run over places in order, so nothing is drawn, and no sample is
    read.
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
    places = []
    for batch in list(last)[-taken:]:
        places += [int(place) for place in batch]
    return places


def _in_order(sampler: Any) -> Any:
    """A sampler of batches over places in their order. Raises TypeError if it has no length."""
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


def _mask_of(name: str, values: Any, masks: list[tuple[str, Any]]) -> Any:
    """The mask that belongs to a tensor: of several, the one with the nearest name."""
    fits = [(of, mask) for of, mask in masks if mask.shape == values.shape[: mask.ndim]]
    last = name.rpartition(".")[2]
    for of, mask in fits:
        before, _, after = of.partition("attention_mask")
        if len(fits) > 1 and last.startswith(before) and last.endswith(after):
            return mask
    if fits:
        return fits[0][1]
    return None


def _without_padding(row: Any, kept: Any) -> Any:
    if kept is not None:
        row = row[kept]
    if row.ndim == 0:
        return row
    if not row.is_floating_point():
        row = row[row != IGNORED]
    if kept is None and len(row):
        if row.ndim > 1:
            columns = row.flatten(1)
        else:
            columns = row[:, None]
        last = columns[-1]
        repeats = len(row) > 1 and not row.is_floating_point() and bool((columns[-2] == last).all())
        if repeats or not last.any():
            positions = (columns != last).any(1).nonzero()
            one = 1 if last.any() else 0  # of what is repeated all along, one is left
            if len(positions):
                row = row[: int(positions[-1]) + 1]
            else:
                row = row[:one]
    return row


def _bytes(row: Any) -> bytes:
    flat = row.contiguous().reshape(-1)
    held: bytes = flat.view(sys.modules["torch"].uint8).numpy().tobytes() if flat.numel() else b""
    return held


def _digest(row: Mapping[str, Any]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for name, value in row.items():
        digest.update(name.encode())
        digest.update(value.encode() if isinstance(value, str) else _bytes(value))
    return int.from_bytes(digest.digest(), "big")


def _sum(digests: Iterator[int]) -> int:
    return sum(digests) % (1 << 64)
