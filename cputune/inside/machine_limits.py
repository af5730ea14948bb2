"""What the cores of this process can do at most: a matrix product, and a pass over memory.

    python machine_limits.py

In a process of its own it prints JSON: GFLOP/s of a large product in fp32 and in bf16, and the
bandwidth of memory in GB/s (a triad, ``a = b + s * c``), on all its threads. The best of some
tries counts: what is asked for is the limit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

SIZE = 2048
"""Rows and columns of the product: large enough that its threads are busy, 34 MB in fp32 for
both factors, so that it also runs where memory is short."""

SMALL = 512
"""Rows and columns where a product takes long: one of 2048 rows in bf16 takes half a minute
without instructions for it."""

TRIAD_BYTES = 192 << 20
"""Of each of the three tensors of the triad: no cache holds them."""

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


def gigabytes_per_second(torch: Any) -> float:
    """The bandwidth that a triad of fp32 numbers sees: two reads and one write each."""
    b = torch.ones(TRIAD_BYTES // 4)
    c, a = torch.ones_like(b), torch.empty_like(b)
    return 3 * TRIAD_BYTES / _best(lambda: torch.add(b, c, alpha=3.0, out=a)) / 1e9


def _best(work: Callable[[], object]) -> float:
    """The shortest of several times in seconds; a first, uncounted try warms up."""
    work()
    times: list[float] = []
    while len(times) < TRIES or sum(times) < SECONDS:
        times.append(_once(work))
    return min(times)


def _once(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    import torch

    limits = {
        "threads": torch.get_num_threads(),
        "fp32": gflops(torch, "float32"),
        "bf16": gflops(torch, "bfloat16"),
        "memory": gigabytes_per_second(torch),
    }
    sys.stdout.write(json.dumps({"limits": limits}) + "\n")


if __name__ == "__main__":
    main()
