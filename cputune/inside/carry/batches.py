"""The columns of a batch that are padding in all of its samples: seen by its masks, and cut off."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BatchEncoding


MULTIPLE = 8
"""Of columns that are left: 3.0 times as fast as padded where 16 was 2.9 times and 64 2.0 times;
1 was 3.3 times, within the scatter (benchmarks/padding.py, docs/measuring.md)."""

IGNORED = -100
"""The label that torch's losses pass over."""


def tensors_of(batch: object) -> Iterator[Any]:
    """The tensors in a batch, however deep."""
    if hasattr(batch, "shape"):
        yield batch
        return
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, Iterable) and not isinstance(parts, (str, bytes)):
        for part in parts:
            yield from tensors_of(part)


def masks_of(batch: object) -> dict[str, Tensor]:
    """The masks of samples × tokens, by name."""
    if not isinstance(batch, Mapping):
        return {}
    return {
        str(name): value
        for name, value in batch.items()
        if "attention_mask" in str(name) and getattr(value, "ndim", 0) == 2
    }


def counted(batch: object) -> tuple[int, int, int]:
    """Tokens that are padding, all tokens, and those that are left where the batch is cut."""
    padding = tokens = left = 0
    columns = lengths(batch)
    for mask in masks_of(batch).values():
        samples, length = mask.shape
        padding += int((mask == 0).sum())
        tokens += samples * length
        left += samples * columns[length]
    return padding, tokens, left


def lengths(batch: Any) -> dict[int, int]:
    """For each length that a mask has, how many columns are left where the tail is cut.

    Labels of tokens keep their columns.
    """
    used: dict[int, int] = {}
    for mask in masks_of(batch).values():
        length = int(mask.shape[1])
        used[length] = max(used.get(length, 1), _last(mask != 0))
    for name, value in batch.items() if used else ():
        labels = "label" in str(name) and getattr(value, "ndim", 0) > 1
        if labels and not value.is_floating_point() and value.shape[1] in used:
            length = int(value.shape[1])
            used[length] = max(used[length], _last(value != IGNORED))
    return {length: min(length, -(-last // MULTIPLE) * MULTIPLE) for length, last in used.items()}


def _last(used: Tensor) -> int:
    """The columns up to the last one in which any sample has something."""
    found = used.flatten(2).any(2).any(0) if used.ndim > 2 else used.any(0)
    positions = found.nonzero()
    return int(positions[-1]) + 1 if len(positions) else 1


def cut(batch: BatchEncoding, columns: Mapping[int, int]) -> BatchEncoding:
    """The batch without its tail: every tensor that has a dimension of such a length.

    The first dimension is that of samples. Of numbers (embeddings) the last one may be as long by
    chance, so only the second is cut; of masks and tokens all of them.
    """
    if all(length == left for length, left in columns.items()):
        return batch
    shorter = copy.copy(batch)
    for name, value in batch.items():
        dimensions = getattr(value, "ndim", 0)
        if dimensions < 2:
            continue
        by_position = "mask" in str(name) or not value.is_floating_point()
        for dimension in range(1, dimensions) if by_position else (1,):
            left = columns.get(int(value.shape[dimension]), value.shape[dimension])
            value = value.narrow(dimension, 0, left)
        shorter[name] = value.contiguous()  # losses take a view of labels
    return shorter
