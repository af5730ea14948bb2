"""Answers that were once wrong: a fallen plan, a crash laid on neighbours, memory that runs out,
a busy machine of which nothing was said."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import SMALL, FakeKeepingRunner, FakeLife, FakeRunner, truthful, tune

import cputune
from cputune import Plan, Step
from cputune.records.steps import Crashed

TODAY = SMALL.seconds(cputune.search_space(SMALL.facts, SMALL.workload).baseline)


class Falling(FakeRunner):
    """Its trials are as they are; the baseline, or each other plan, dies when it lives again."""

    todays = False

    def living(self, plan: Plan) -> FakeLife:
        return FakeLife(died() if plan.as_found is self.todays else self.steps(plan))


def died() -> Iterator[Step]:
    raise Crashed("rank 0 died: exit code 1")
    yield


def test_what_fell_in_its_confirmation_is_not_recommended(golden: Golden) -> None:
    result = tune(Falling(truthful()), budget=6)
    assert result.best.plan.as_found
    assert result.speedup is None
    golden(str(result.not_compared))


def test_a_disturbed_study_that_is_interrupted_leaves_what_it_has_and_why() -> None:
    class FakeBusy:
        """Others delay every step, and the user has enough."""

        taken = 0

        def steps(self, plan: Plan) -> Iterator[Step]:
            while True:
                self.taken += 1
                if self.taken > 60:
                    raise KeyboardInterrupt
                yield Step(seconds=SMALL.seconds(plan), samples=8, delayed_seconds=0.5)

    with pytest.raises(cputune.Interrupted) as caught:
        tune(FakeBusy())
    result = caught.value.result
    assert result.disturbed
    for words in ("interrupted", "Its numbers are not reliable: other processes"):
        assert any(words in note for note in result.notes)


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


@every_row(
    ("way", "scale", "steps"),
    [
        (lambda k, rng: 1.0, 0.0005 / TODAY, None),  # half a millisecond
        (lambda k, rng: 1.0, 600 / TODAY, None),  # ten minutes
        (lambda k, rng: 1.0, 1.0, 20),  # over after twenty
        (lambda k, rng: 3600.0 if k == 21 else 1.0, 1.0, None),  # suspended in a turn
        (lambda k, rng: -1.0 if k == 17 else 1.0, 1.0, None),  # a clock that jumps
        (lambda k, rng: rng.choice((1.0,) * 9 + (2.0,)), 1.0, None),  # heavy tails
        (lambda k, rng: 1 + 0.6 * math.exp(-k / 12), 1.0, None),  # a long warm-up
    ],
)
def test_the_gain_is_that_of_the_plans(way: Way, scale: float, steps: int | None) -> None:
    result = tune(hard(way, scale=scale, steps=steps), budget=6)
    true = SMALL.seconds(result.baseline.plan) / SMALL.seconds(result.best.plan)
    assert result.speedup.low <= true * 1.02
    assert result.speedup.high >= true / 1.02
    assert result.speedup.significant
