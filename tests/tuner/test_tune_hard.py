"""Steps as bad machines and scripts have them; what is said of the plans is true all the same."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest
from tuner.fakes import SMALL, FakeKeepingRunner

import cputune
from cputune.plan import Plan
from cputune.ranks.job import Gather
from cputune.result import Result
from cputune.steps import Step

TODAY = cputune.search_space(SMALL.facts, SMALL.workload).baseline

Way = Callable[[int, random.Random], float]
"""The factor of the k-th step of a process."""


def hard(way: Way, *, scale: float = 1.0, steps: int | None = None) -> FakeKeepingRunner:
    """Plans at their true speed, with 3 % of noise, times what is wrong."""
    lives = iter(range(10_000))

    def script(plan: Plan, before: int) -> Iterator[Step]:
        rng, own = random.Random(next(lives)), SMALL.seconds(plan) * scale
        for k in range(10**9 if steps is None else steps):
            yield Step(seconds=own * math.exp(rng.gauss(0, 0.03)) * way(k, rng), samples=8)

    return FakeKeepingRunner(script)


def tuned(runner: FakeKeepingRunner) -> Result:
    try:
        return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, budget=6)
    finally:
        assert not runner.living_now


@pytest.mark.parametrize(
    ("way", "scale", "steps"),
    [
        (lambda k, rng: 1.0, 0.0005 / SMALL.seconds(TODAY), None),
        (lambda k, rng: 1.0, 600 / SMALL.seconds(TODAY), None),
        (lambda k, rng: 1.0, 1.0, 20),
        (lambda k, rng: 3600.0 if k == 21 else 1.0, 1.0, None),
        (lambda k, rng: -1.0 if k == 17 else 1.0, 1.0, None),
        (lambda k, rng: rng.choice((1.0,) * 9 + (2.0,)), 1.0, None),
        (lambda k, rng: 1 + 0.6 * math.exp(-k / 12), 1.0, None),
    ],
    ids=[
        "half a millisecond",
        "ten minutes",
        "over after twenty",
        "suspended in a turn",
        "a clock that jumps",
        "heavy tails",
        "a long warm-up",
    ],
)
def test_the_gain_is_that_of_the_plans(way: Way, scale: float, steps: int | None) -> None:
    result = tuned(hard(way, scale=scale, steps=steps))
    true = SMALL.seconds(result.baseline.plan) / SMALL.seconds(result.best.plan)
    assert result.speedup.low <= true * 1.02
    assert result.speedup.high >= true / 1.02
    assert result.speedup.significant


def test_ranks_of_unequal_speed_are_as_fast_as_the_slowest() -> None:
    def script(plan: Plan, before: int) -> Iterator[Step]:
        rng, ranks = random.Random(before), Gather(2)
        own = SMALL.seconds(plan)
        for number in itertools.count(1):
            for rank, share in enumerate((1.0, 0.6 if number % 2 else 0.9)):
                seconds = own * share * math.exp(rng.gauss(0, 0.03))
                told = ranks.add(rank, number, Step(seconds=seconds, samples=4))
                if told is not None:
                    yield told

    result = tuned(FakeKeepingRunner(script))
    true = SMALL.seconds(result.baseline.plan) / SMALL.seconds(result.best.plan)
    assert result.speedup.low <= true <= result.speedup.high
    assert result.best.samples_per_second.median == pytest.approx(
        8 / SMALL.seconds(result.best.plan), rel=0.05
    )
