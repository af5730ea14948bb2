"""How long it takes after the search: the confirmation, what each change is worth, the profile.

Foretold from what the trials have shown; a study that is given less time ends sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cputune.tuner.seat import steps_of_turn
from cputune.tuner.sidebyside import LEAST_ROUNDS, MOST_SECONDS, SITTINGS

WARMUP_STEPS = 4
"""Of a contender, before its first turn, about."""

PROFILE_STEPS = 10
"""Of the run that is profiled, those that settle among them, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that a plan takes here from its start to its first step, and for a step."""

    start_seconds: float
    step_seconds: float


def end_seconds(pace: Pace, *, rivals: int, changes: int) -> float:
    """What comes after the search takes at most, about.

    ``rivals`` are measured beside today's launch, and then the plans of so many ``changes``
    that lead to the best of them.
    """
    profile = pace.start_seconds + PROFILE_STEPS * pace.step_seconds
    if not rivals:
        return profile
    more = len(MOST_SECONDS) - SITTINGS
    seats = (1 + rivals, 1 + max(1, changes), *[2] * more)
    return profile + sum(map(partial(_sitting_seconds, pace), seats, MOST_SECONDS))


def _sitting_seconds(pace: Pace, seats: int, most: float) -> float:
    """One after the other starts and warms up; then all take turns."""
    begun = seats * (pace.start_seconds + WARMUP_STEPS * pace.step_seconds)
    round_ = seats * sum(steps_of_turn(pace.step_seconds, lone=False)) * pace.step_seconds
    return begun + max(most, LEAST_ROUNDS * round_)
