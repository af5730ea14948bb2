"""The confirmation where plans run one after the other, and how rounds become a gain."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator

import pytest
from tuner.fakes import PLANS, FakeRunner, gain_over, measuring, ratio

from cputune.plan import Plan
from cputune.result import Throughput
from cputune.steps import Crashed, Step
from cputune.tuner.confirmation import Confirmation
from cputune.tuner.gains import (
    SLOWER,
    Contender,
    gain_of,
    gain_side_by_side,
    throughput_of,
)
from cputune.tuner.measuring import Findings

Seconds = Callable[[int, int], float]
"""Of the steps of a plan by its number, and how often it was run before."""


def contenders(count: int) -> list[Contender]:
    return [Contender(role="candidate" if i else "baseline", plan=PLANS[i]) for i in range(count)]


def confirmed(
    seconds: Seconds, count: int = 2, most_seconds: float | None = None
) -> tuple[list[Contender], list[int], Findings]:
    """The contenders, and the order in which their plans were run."""

    def script(plan: Plan, before: int) -> Iterable[Step]:
        number = PLANS.index(plan)
        while True:
            yield Step(seconds=seconds(number, before), samples=1)

    runner, (baseline, *rivals) = FakeRunner(script), contenders(count)
    findings = Findings()
    of = measuring(most_seconds, findings=findings)
    Confirmation(of, baseline, rivals).one_after_another(runner)
    return [baseline, *rivals], [PLANS.index(plan) for plan in runner.started], findings


def test_rounds_are_interleaved_and_turned() -> None:
    _, order, _ = confirmed(lambda number, before: 1.0, 3)
    assert order[:6] == [0, 1, 2, 1, 2, 0]


def test_a_clear_gain_is_answered_by_two_rounds() -> None:
    (base, rival), order, _ = confirmed(lambda number, before: (1.0, 0.25)[number])
    assert ratio(base, rival) == pytest.approx(4.0)
    assert (order, base.blocks) == ([0, 1, 1, 0], [0, 1])


def test_the_slower_of_two_rivals_sits_out() -> None:
    (_, slow, fast), order, _ = confirmed(lambda number, before: (1.0, 0.9, 0.3)[number], 3)
    assert (slow.out, fast.out) == (SLOWER, None)
    assert order.count(1) == 2


def failing(number: int, error: Exception) -> Seconds:
    def seconds(of: int, before: int) -> float:
        if of == number and before == 0:
            raise error
        return (1.0, 0.5, 0.5)[of]

    return seconds


def test_a_rival_that_fails_is_out() -> None:
    (base, failed, other), _, _ = confirmed(failing(1, Crashed("rank 0 died")), 3)
    assert (failed.out, other.out) == ("crashed: rank 0 died", None)
    assert ratio(base, other) == pytest.approx(2.0)


def test_a_baseline_that_fails_ends_it() -> None:
    (base, rival), order, _ = confirmed(failing(0, Crashed("rank 0 died")))
    assert (base.out, rival.out, order) == ("crashed: rank 0 died", None, [0])


def test_without_a_rival_nothing_is_run() -> None:
    assert confirmed(lambda number, before: 1.0, 1)[1] == []


def test_a_run_that_does_not_settle_has_twelve_steps() -> None:
    wild: Iterator[float] = iter(())

    def seconds(number: int, before: int) -> float:
        nonlocal wild
        value = next(wild, None)
        if value is None:
            wild = iter((3.0,))
            return 1.0
        return value

    _, _, findings = confirmed(seconds)
    assert {len(turn.step_seconds) for run in findings.confirm_runs for turn in run.taken} == {12}


def test_the_interval_holds_the_true_gain() -> None:
    rng, held = random.Random(3), 0
    for _ in range(100):
        slow = {run: math.exp(rng.gauss(0, 0.05)) for run in range(99)}
        fast = {run: 0.8 * math.exp(rng.gauss(0, 0.05)) for run in range(99)}
        (base, rival), _, _ = confirmed(lambda n, before: (slow, fast)[n][before])  # noqa: B023
        gain = gain_over(base, rival)
        held += gain.low <= math.log(1.25) <= gain.high
    assert held >= 93


def test_rounds_of_one_block_are_compared_with_each_other() -> None:
    base, rival = contenders(2)
    base.logs, rival.logs = [0.1, 0.1, 0.3, 0.3, 0.6, 0.6], [0.0] * 6
    base.blocks = rival.blocks = [0, 0, 1, 1, 2, 2]
    gain = gain_of(base, rival, 0.05)
    assert gain == gain_side_by_side([[0.1, 0.1], [0.3, 0.3], [0.6, 0.6]], 0.05)


def test_a_gain_needs_two_rounds_that_both_have() -> None:
    base, rival = contenders(2)
    base.blocks = [0, 1, 2]
    base.logs, rival.logs = [0.5, None, 0.7], [0.25, 0.3]
    assert gain_of(base, rival, 0.05) is None
    rival.logs.append(0.45)
    gain = gain_over(base, rival)
    assert (gain.pairs, gain.mean) == (2, pytest.approx(0.25))


def half_width(speed: Throughput) -> float:
    assert speed.high / speed.median == pytest.approx(speed.median / speed.low)
    return math.log(speed.high / speed.median)


def test_a_speed_has_an_interval_after_one_round_too() -> None:
    one = throughput_of([math.log(0.5)], 0.05)
    assert one.median == pytest.approx(2.0)
    assert half_width(one) == pytest.approx(2 * math.sqrt(0.05**2 / 3 + 0.02**2))


def test_the_interval_of_a_speed_leans_on_what_is_usual() -> None:
    two = throughput_of([0.0, 0.2], 0.05)
    variance = (0.02 + 2 * 2 * (0.05**2 / 3 + 0.02**2)) / 3
    assert two.median == pytest.approx(math.exp(-0.1))
    assert half_width(two) == pytest.approx(3.159 * math.sqrt(variance / 2), rel=1e-3)
