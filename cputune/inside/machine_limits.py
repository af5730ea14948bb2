"""The limit of this process's cores: a matmul on all its threads, the best of several."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Rows and columns of the matmul: large enough that its threads are busy; both factors have 34
# MB in fp32.
SIZE = 2048

# For slow types: a matmul of 2048 rows in bf16 takes half a minute without instructions for it.
SMALL = 512

# It is repeated for these seconds, and at least so often.
SECONDS, TRIES = 0.8, 4


def gflops(torch: Any, dtype: str) -> float:
    """GFLOP/s of a product of two square matrices of this type ("float32", "bfloat16")."""
    factor = torch.randn(SIZE, SIZE).to(getattr(torch, dtype))
    small = factor[:SMALL, :SMALL].contiguous()
    with torch.no_grad():
        torch.mm(small, small)
        if _once(lambda: torch.mm(small, small)) * (SIZE / SMALL) ** 3 > SECONDS:
            factor = small
        return 2 * len(factor) ** 3 / _best(lambda: torch.mm(factor, factor)) / 1e9


def _best(work: Callable[[], object]) -> float:
    """The shortest time in seconds, after an uncounted warm-up."""
    work()
    times: list[float] = []
    while len(times) < TRIES or sum(times) < SECONDS:
        times.append(_once(work))
    return min(times)


def _once(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
