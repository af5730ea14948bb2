"""The baseline and the best two, measured side by side."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from tuner.fakes import SMALL

import cputune
from cputune.steps import Contended, Crashed
from cputune.tuner.confirm import LEAST_ROUNDS, MOST_ROUNDS, Contender, confirm, gain_of
from cputune.tuner.race import Race, Verdict
from cputune.tuner.reading import Run

PLANS = list(cputune.search_space(SMALL.facts, SMALL.workload).plans())


def contenders(*seconds: float) -> list[Contender]:
    return [
        Contender(
            role="baseline" if i == 0 else "candidate",
            plan=PLANS[i],
            believed=(math.log(s), 0.05),
        )
        for i, s in enumerate(seconds)
    ]


def runner(
    seconds: dict[int, Callable[[int], float]], order: list[int] | None = None
) -> Callable[[int, Contender, Callable[[Sequence[float]], Verdict]], Run]:
    """Runs that take what ``seconds`` says for a plan in a round, step after step."""

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        index = PLANS.index(contender.plan)
        if order is not None:
            order.append(index)
        done = Run()
        while not done.logs or verdict(done.logs) == "more":
            done.logs.append(math.log(seconds[index](number)))
        return done

    return run


def test_rounds_are_interleaved_and_turned() -> None:
    order: list[int] = []
    base, *rivals = contenders(1.0, 0.9, 0.9)
    steady = {i: (lambda number, s=s: s) for i, s in enumerate((1.0, 0.9, 0.9))}
    confirm(base, rivals, Race(), runner(steady, order))
    assert order[:6] == [0, 1, 2, 1, 2, 0]


def test_a_clear_gain_needs_few_rounds() -> None:
    base, rival = contenders(1.0, 0.25)
    confirm(base, [rival], Race(), runner({0: lambda n: 1.0, 1: lambda n: 0.25}))
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert gain.pairs == LEAST_ROUNDS
    assert math.exp(gain.mean) == pytest.approx(4.0)
    assert gain.low > 0


def test_what_changes_on_the_machine_hits_both_alike() -> None:
    base, rival = contenders(1.0, 0.8)

    def slower(base_seconds: float) -> Callable[[int], float]:
        return lambda number: base_seconds * (1 + number)

    confirm(base, [rival], Race(), runner({0: slower(1.0), 1: slower(0.8)}))
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert math.exp(gain.mean) == pytest.approx(1.25)


def test_no_gain_is_looked_at_to_the_end() -> None:
    rng = random.Random(2)
    base, rival = contenders(1.0, 1.0)
    noisy = {i: (lambda number: math.exp(rng.gauss(0, 0.05))) for i in (0, 1)}
    confirm(base, [rival], Race(), runner(noisy))
    gain = gain_of(base, rival, 0.05)
    assert gain is not None
    assert gain.pairs <= MOST_ROUNDS
    assert gain.low < 0


def test_of_two_rivals_the_slower_sits_out() -> None:
    order: list[int] = []
    base, *rivals = contenders(1.0, 0.9, 0.6)
    steady = {i: (lambda number, s=s: s) for i, s in enumerate((1.0, 0.9, 0.6))}
    confirm(base, rivals, Race(), runner(steady, order))
    assert order.count(1) == 1
    assert order.count(2) >= 2


def test_a_rival_that_fails_is_out_and_a_delayed_one_is_not() -> None:
    base, *rivals = contenders(1.0, 0.5, 0.5)

    def run(
        number: int, contender: Contender, verdict: Callable[[Sequence[float]], Verdict]
    ) -> Run:
        if contender is rivals[0]:
            return Run(failure=Crashed("rank 0 died"))
        if contender is rivals[1] and number == 0:
            return Run(failure=Contended("others"))
        done = Run()
        while not done.logs or verdict(done.logs) == "more":
            done.logs.append(contender.believed[0])
        return done

    confirm(base, rivals, Race(), run)
    assert rivals[0].out == "crashed: rank 0 died"
    assert rivals[1].out is None
    assert rivals[1].logs[0] is None
    gain = gain_of(base, rivals[1], 0.05)
    assert gain is not None
    assert math.exp(gain.mean) == pytest.approx(2.0)


def test_when_time_is_up_it_ends() -> None:
    order: list[int] = []
    base, rival = contenders(1.0, 0.97)
    steady = {0: lambda n: 1.0, 1: lambda n: 0.97}
    confirm(base, [rival], Race(), runner(steady, order), out_of_time=lambda: len(order) >= 3)
    assert len(order) == 3


def test_the_interval_holds_the_true_gain() -> None:
    rng = random.Random(3)
    held = 0
    for _ in range(200):
        base, rival = contenders(1.0, 0.8)
        noisy = {
            i: (lambda number, s=s: s * math.exp(rng.gauss(0, 0.05)))
            for i, s in enumerate((1.0, 0.8))
        }
        confirm(base, [rival], Race(), runner(noisy))
        gain = gain_of(base, rival, 0.05)
        assert gain is not None
        held += gain.low <= math.log(1.25) <= gain.high
    assert held >= 185
