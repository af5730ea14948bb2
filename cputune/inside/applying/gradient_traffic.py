"""Sends less of the gradients: of large embeddings the rows that a step touched, or 16 bits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.shared import Setting

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import GradBucket
    from torch.futures import Future

# Of a gradient whose rows are examined: smaller ones are sent faster than examined.
LEAST_NUMBERS = 1 << 18


class Gradients:
    """A communication hook of DistributedDataParallel, on every model that the script wraps.

    ``sparse``: rows of a large gradient that are zero in every rank are not sent, as in the
    embedding of a vocabulary. The ranks first agree on the rows (a byte for each), so the sum is
    that of all gradients. A gradient that once had more than half of its rows is from then on sent
    whole.

    ``bf16``: gradients are rounded to 16 bits, sent and added in them; the result is fp32. torch
    has such a hook, and refuses it on CPUs (torch/nn/parallel/distributed.py,
    ``_check_comm_hook``). A script that registers its own hook keeps it.
    """

    name = "gradients"

    def __init__(self, setting: Setting) -> None:
        wanted = setting.force.torch
        self._sparse = wanted.get("gradients") == "sparse"
        self._bf16 = wanted.get("gradient_precision") == "bf16"
        self._setting = setting
        for name in ("gradients", "gradient_precision"):
            if name in wanted:
                setting.changes[name] = f"{name}={wanted[name]}"
        self._own: set[int] = set()
        self._whole: set[int] = set()
        self._sends = self._sent_rows = False

    def hooks(self) -> list[Hook]:
        """The functions that register a hook, and the call of a model that may have no hook yet."""
        module, ddp = "torch.nn.parallel.distributed", "DistributedDataParallel"
        return [
            (module, f"{ddp}.register_comm_hook", self._note_own),
            (module, f"{ddp}._register_builtin_comm_hook", self._note_own),
            (module, f"{ddp}.forward", self._forward),
        ]

    def report(self) -> dict[str, str]:
        """What a rank shows."""
        reason = ""
        if not self._sends:
            reason = "no DistributedDataParallel of torch adds up its gradients"
        if self._own:
            reason = "the script has a communication hook of its own"
        shown = {}
        if self._bf16:
            shown["gradient_precision"] = reason or "bf16"
        if self._sparse:
            rows = "sparse" if self._sent_rows else "every row of every gradient is touched"
            shown["gradients"] = reason or rows
        return shown

    def _note_own(self, original: Original, ddp: Any, *args: object, **kwargs: object) -> object:
        self._own.add(id(ddp))
        return original(ddp, *args, **kwargs)

    def _forward(self, original: Original, ddp: Any, *args: object, **kwargs: object) -> object:
        """Before its first step a model gets the hook, unless the script has registered its own."""
        if ddp.training and id(ddp) not in self._own and not hasattr(ddp, "_cputune_sends"):
            ddp._cputune_sends = self._sends = True
            # Without annotations: torch compares those of a hook with its own types.
            hook = lambda state, bucket: self.send(state, bucket)  # noqa: E731
            ddp.register_comm_hook(ddp.process_group, hook)
            self._own.discard(id(ddp))
            self._setting.tell()
        return original(ddp, *args, **kwargs)

    def send(self, group: object, bucket: GradBucket) -> Future[Tensor]:
        """Add up a bucket of gradients over the ranks of ``group``, and divide by their number."""
        torch = sys.modules["torch"]
        ranks = torch.distributed
        buffer = bucket.buffer()
        rows = self._rows(group, bucket) if self._sparse else {}
        sent = _packed(torch, bucket.gradients(), rows) if rows else buffer
        dtype = torch.bfloat16 if self._bf16 and buffer.dtype == torch.float32 else buffer.dtype
        small = torch.empty(sent.shape, dtype=dtype)
        torch.div(sent, ranks.get_world_size(group), out=small)  # as torch does, before it adds up
        self._sent_rows = self._sent_rows or bool(rows)

        def received(future: Any) -> Tensor:
            summed = future.value()[0]
            if rows:
                _unpack(summed, bucket.gradients(), rows)
            else:
                buffer.copy_(summed)
            return buffer

        done = ranks.all_reduce(small, group=group, async_op=True)
        future: Future[Tensor] = done.get_future().then(received)
        return future

    def _rows(self, group: object, bucket: GradBucket) -> dict[int, Tensor]:
        """By its place in the bucket, the rows of a gradient that some rank has touched."""
        torch = sys.modules["torch"]
        large = {}
        for place, parameter in enumerate(bucket.parameters()):
            if has_many_rows(parameter) and id(parameter) not in self._whole:
                large[place] = parameter
        if not large:
            return {}
        gradients = bucket.gradients()
        touched = [gradients[place].count_nonzero(1) != 0 for place in large]
        flags = torch.cat(touched).to(torch.uint8)
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX, group=group)
        touched_rows = {}
        parts = flags.split([len(rows) for rows in touched])
        for (place, parameter), flag in zip(large.items(), parts):  # noqa: B905 (Python 3.9)
            rows = flag.nonzero()[:, 0]
            if 2 * len(rows) > len(flag):
                self._whole.add(id(parameter))
            else:
                touched_rows[place] = rows
        return touched_rows


def has_many_rows(parameter: Any) -> bool:
    """Whether it may be the embedding of a vocabulary: large, with more rows than columns."""
    if parameter.dim() != 2 or parameter.numel() < LEAST_NUMBERS:
        return False
    return bool(parameter.shape[0] > parameter.shape[1])


def _packed(torch: Any, gradients: list[Tensor], rows: dict[int, Tensor]) -> Tensor:
    """What is sent of the gradients of a bucket, one after the other."""
    parts = []
    for place, gradient in enumerate(gradients):
        part = gradient
        if place in rows:
            part = gradient.index_select(0, rows[place])
        parts.append(part.reshape(-1))
    packed: Tensor = torch.cat(parts)
    return packed


def _unpack(summed: Tensor, gradients: list[Tensor], rows: dict[int, Tensor]) -> None:
    """Put the sums back; every other row is zero in all ranks."""
    at = 0
    for place, gradient in enumerate(gradients):
        touched = rows.get(place)
        shape = gradient.shape if touched is None else (len(touched), *gradient.shape[1:])
        count = 1
        for length in shape:
            count *= length
        part = summed[at : at + count].view(shape).to(gradient.dtype)
        at += count
        if touched is None:
            gradient.copy_(part)
        else:
            gradient.index_copy_(0, touched, part)
