"""What takes the time of a study, in words, before anything has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.report.progress import duration, most_trials
from cputune.tuner.final import MOST_RIVALS
from cputune.tuner.sidebyside import LEAST_ROUNDS, MOST_SECONDS, SITTINGS
from cputune.tuner.timing import PROFILE_STEPS

if TYPE_CHECKING:
    from cputune.tuner.space import SearchSpace


def time_lines(space: SearchSpace, budget: int, most_seconds: float | None) -> tuple[str, ...]:
    """What a study is made of, before it is known how long a start and a step take."""
    trials = most_trials(space, budget)
    whole = "" if most_seconds is None else f", all within {duration(most_seconds)} (--max-time)"
    lines = [
        f"what takes the time{whole}:",
        f"  search: {trials} trials, each a start and some steps",
    ]
    if trials > 1:
        rivals = min(MOST_RIVALS, trials - 1)
        lines += [
            f"  confirmation: {1 + rivals} plans side by side, then today's launch, the best and "
            f"those between them; up to {sum(MOST_SECONDS):.0f} s of their steps, or "
            f"{SITTINGS * LEAST_ROUNDS} turns of each",
            f"  profile: the best plan once more, {PROFILE_STEPS} steps",
        ]
    return (*lines, "  how long a start and a step take here, the first trials show")
