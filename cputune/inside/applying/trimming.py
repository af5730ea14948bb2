"""The columns of a batch that are padding in all of its samples: found by its masks, and cut
off.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


# Columns that are left are a multiple of it: 3.0 times as fast as padded; 16 was 2.9 times and
# 64 2.0 times; 1 was 3.3 times, within the scatter (benchmarks/readings.md).
MULTIPLE = 8

# The label that torch's losses ignore.
IGNORED = -100


def tensors_of(batch: object) -> Iterator[Any]:
    """The tensors in a batch, however deep."""
    if hasattr(batch, "shape"):
        yield batch
        return
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, Iterable) and not isinstance(parts, (str, bytes)):
        for part in parts:
            yield from tensors_of(part)


def masks_of(batch: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The masks of an encoding, by name: samples × tokens, or with more dimensions before tokens.

    A mask of more dimensions with floating numbers is added to scores: 0 is not padding there.
    """
    masks = {}
    for name, value in batch.items():
        dimensions = getattr(value, "ndim", 0) if "attention_mask" in str(name) else 0
        if dimensions == 2 or (dimensions > 2 and not value.is_floating_point()):
            masks[str(name)] = value
    return masks


def encodings_of(batch: object) -> Iterator[Mapping[Any, Any]]:
    """The mappings with a mask that a batch is, or has, however deep."""
    if isinstance(batch, Mapping) and masks_of(batch):
        yield batch
    if isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from encodings_of(part)


def counted(batch: object) -> tuple[int, int, int]:
    """Tokens that are padding, all tokens, and those that are left if the batch is cut."""
    padding = tokens = kept = 0
    for encoding in encodings_of(batch):
        tails = tails_of(encoding)
        for name, mask in masks_of(encoding).items():
            padding += int((mask == 0).sum())
            tokens += mask.numel()
            kept += mask.numel() // tails[name].length * tails[name].left
    return padding, tokens, kept


@dataclass(frozen=True)
class Tail:
    """How many columns a mask, or labels without one, have, and how many are left."""

    length: int
    left: int

    def with_used(self, columns: int, multiple: int) -> Tail:
        """With at least this many columns left, to a multiple."""
        rounded = -(-columns // multiple) * multiple
        return Tail(self.length, min(self.length, max(self.left, rounded)))


def tails_of(encoding: Mapping[Any, Any], multiple: int = MULTIPLE) -> dict[str, Tail]:
    """What is left of each mask of an encoding, and of labels without a mask.

    Labels of tokens keep their columns. Those of a decoder are as long as its longest target.
    """
    tails = {}
    for name, mask in masks_of(encoding).items():
        length = int(mask.shape[-1])
        tails[name] = Tail(length, 0).with_used(_last(mask != 0, mask.ndim - 1), multiple)
    labels_alone = {}
    for name, value in encoding.items():
        labels = "label" in str(name) and getattr(value, "ndim", 0) > 1
        if not labels or value.is_floating_point():
            continue
        # The masks of all dimensions are found before a tail changes: of several masks the one
        # that leaves the most counts.
        masks = {}
        for at in range(1, value.ndim):
            mask_name = _speaks_for(str(name), int(value.shape[at]), tails)
            if mask_name is not None:
                masks[at] = mask_name
        for at, mask_name in masks.items():
            tails[mask_name] = tails[mask_name].with_used(_last(value != IGNORED, at), multiple)
        if not masks and value.ndim == 2:
            length = int(value.shape[1])
            labels_alone[str(name)] = Tail(length, 0).with_used(
                _last(value != IGNORED, 1), multiple
            )
    return {**tails, **labels_alone}


def _speaks_for(name: str, length: int, tails: Mapping[str, Tail]) -> str | None:
    """The mask that says which columns of a tensor are used.

    ``query_attention_mask`` is for ``query_input_ids``, ``attention_mask_2`` for ``input_ids_2``.
    Of several the one with the nearest name, else the one that leaves the most.
    """
    alike, most = None, -1
    for mask, tail in tails.items():
        before, _, after = mask.partition("attention_mask")
        named_so = name.startswith(before) and name.endswith(after)
        if tail.length == length and named_so and len(before) + len(after) > most:
            alike, most = mask, len(before) + len(after)
    if alike is not None:
        return alike
    as_long = [mask for mask, tail in tails.items() if tail.length == length]
    return max(as_long, key=lambda mask: tails[mask].left, default=None)


def _last(used: Tensor, at: int) -> int:
    """The columns, along a dimension, up to the last one in which any sample has something."""
    positions = used.movedim(at, -1).flatten(0, -2).any(0).nonzero()
    return int(positions[-1]) + 1 if len(positions) else 1


def has_tail(batch: object, multiple: int = MULTIPLE) -> bool:
    """Whether anything of a batch would be cut off."""
    for encoding in encodings_of(batch):
        for tail in tails_of(encoding, multiple).values():
            if tail.left < tail.length:
                return True
    return False


def cut(batch: Any, multiple: int = MULTIPLE) -> Any:
    """The batch without its tails: each encoding in it is cut by its own masks, to a multiple.

    The first dimension is that of samples. Of numbers (embeddings) the last one may be as long by
    chance, so only the second is cut; of masks and tokens all of them.
    """
    if not has_tail(batch, multiple):
        return batch
    if isinstance(batch, tuple):
        parts = [cut(part, multiple) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        return [cut(part, multiple) for part in batch]
    shorter = copy.copy(batch)
    tails = tails_of(batch, multiple) if masks_of(batch) else {}
    for name, value in batch.items():
        if getattr(value, "ndim", 0) >= 2:
            shorter[name] = _shortened(str(name), value, tails)
        elif isinstance(value, (Mapping, list, tuple)):
            shorter[name] = cut(value, multiple)
    return shorter


def _shortened(name: str, value: Tensor, tails: Mapping[str, Tail]) -> Tensor:
    """A tensor of an encoding without the columns that its masks leave out."""
    by_position = "mask" in name or not value.is_floating_point()
    for dimension in range(1, value.ndim) if by_position else (1,):
        mask = _speaks_for(name, int(value.shape[dimension]), tails)
        if mask is not None:
            value = value.narrow(dimension, 0, tails[mask].left)
    return value.contiguous()  # losses take a view of labels
