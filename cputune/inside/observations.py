"""What torch does on the cores of this rank, found out by trying.

Whether a knob is offered follows from what is seen here, not from the name of the processor. On a
quiet machine it takes less than 50 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cputune.inside.applying.dropout import RandomBytes

ELEMENTS = 1 << 17
"""Of a mask that is drawn to see how fast: 0.7 ms at the speed of one thread of torch."""

SIZE = 256
"""Rows and columns of matrices that are multiplied to see how fast: 2 ms in bf16 without
instructions for it."""

ENOUGH_SECONDS, TRIES = 0.01, 3
"""Each is repeated for these seconds, and at least so often."""


def mask_seconds(torch: Any) -> tuple[float, float]:
    """Seconds per element of a mask: as torch draws it, and from random bytes.

    Both draw from a generator of their own, so that the training draws what it would have drawn.
    """
    generator = torch.Generator()
    mask, random_bytes = torch.empty(ELEMENTS), RandomBytes(torch)
    by_torch = _shortest(lambda: mask.bernoulli_(0.9, generator=generator))
    from_bytes = _shortest(lambda: random_bytes.fill(mask, 0.9, generator))
    return by_torch / ELEMENTS, from_bytes / ELEMENTS


def bf16_time(torch: Any) -> float:
    """How many times as long a product of matrices in bf16 takes as in fp32."""
    # Not drawn: torch's generator belongs to the training.
    factor = torch.linspace(-1, 1, SIZE * SIZE).view(SIZE, SIZE)
    rounded = factor.to(torch.bfloat16)
    with torch.no_grad():
        exact = _shortest(lambda: torch.mm(factor, factor))
        return _shortest(lambda: torch.mm(rounded, rounded)) / exact


def _shortest(work: Callable[[], object]) -> float:
    """The shortest of some tries, in seconds, after an uncounted one."""
    work()
    tries: list[float] = []
    while len(tries) < TRIES or sum(tries) < ENOUGH_SECONDS:
        begun = time.perf_counter()
        work()
        tries.append(time.perf_counter() - begun)
    return min(tries)
