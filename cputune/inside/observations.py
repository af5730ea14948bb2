"""What torch does on the cores of this rank, found out by trying.

Whether a knob is offered follows from what is seen here, not from the name of the processor. On a
quiet machine it takes about 30 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Of a mask that is drawn to see how fast: 0.7 ms at the speed of one thread of torch.
ELEMENTS = 1 << 17

# Rows and columns of matrices that are multiplied to see how fast: 2 ms in bf16 without
# instructions for it.
SIZE = 256

# Each is repeated for these seconds, and at least so often.
ENOUGH_SECONDS, TRIES = 0.01, 3


def mask_seconds(torch: Any) -> float:
    """Seconds that torch takes to draw an element of a mask.

    They are drawn from another generator, so that the training draws what it would have drawn.
    Random bytes are not timed here: beside other processes they were seen to take 100 times as long
    for a moment, because all threads have to be there. A trial times them.
    """
    generator, mask = torch.Generator(), torch.empty(ELEMENTS)
    return _shortest(lambda: mask.bernoulli_(0.9, generator=generator)) / ELEMENTS


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
