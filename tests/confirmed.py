"""A confirmation as a study leaves it, for tests that make a result by hand."""

from __future__ import annotations

from typing import Any

from cputune import ConfirmRun, Plan
from cputune.records.result import Throughput

UNCOMPARED: dict[str, Any] = {"speedup": None, "not_compared": "the time limit was reached"}
"""Fields of a result in which nothing was compared."""

BUSY: dict[str, Any] = {**UNCOMPARED, "not_compared": "others computed here", "disturbed": True}


def confirmed(
    today: Plan, *others: Plan, blocks: int = 2, turns: int = 5
) -> tuple[ConfirmRun, ...]:
    """Today's launch and these plans in so many blocks; the first has processes of trials."""
    rate = Throughput(centre=10.0, low=9.7, high=10.3)
    return tuple(
        ConfirmRun(
            round=block,
            role="candidate" if plan != today else "baseline",
            plan=plan,
            samples_per_second=rate,
            turns=turns,
            kept=block == 0,
        )
        for block in range(blocks)
        for plan in (today, *others)
    )
