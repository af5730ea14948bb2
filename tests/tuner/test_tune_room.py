"""How many plans can live side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuner.fakes import SMALL

from cputune.layout import baseline_plan
from cputune.result import COMPLETED, FAILED, State, Trial
from cputune.tuner.living import most_living

GIB = 1 << 30


def trial(*peaks: float, state: State = COMPLETED) -> Trial:
    ranks = tuple({"peak_bytes": int(peak * GIB)} for peak in peaks)
    return Trial(number=0, plan=baseline_plan(SMALL.facts), state=state, observed=ranks)


@pytest.mark.parametrize(
    ("free", "trials", "room"),
    [
        (16, [trial(2)], 6),
        (16, [trial(2), trial(2, 2)], 3),
        (16, [trial(2), trial(90, state=FAILED)], 6),
        (2, [trial(2)], 0),
        (2, [trial(), trial()], 2),
        (2, [trial(0)], 1),
        (2, [trial(2, state=FAILED)], 1),
    ],
    ids=[
        "one rank",
        "the largest",
        "what failed",
        "no room",
        "no processes",
        "silent",
        "none that ran",
    ],
)
def test_the_room(free: float, trials: list[Trial], room: int) -> None:
    memory = replace(SMALL.facts.memory, available_bytes=free * GIB)
    assert most_living(replace(SMALL.facts, memory=memory), trials) == room


def test_the_limit_of_a_container_counts() -> None:
    limits = replace(SMALL.facts.limits, memory_bytes=4 * GIB)
    assert most_living(replace(SMALL.facts, limits=limits), [trial(1)]) == 3
