"""The gain of one plan over another, from rounds in which both had their turn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from statistics import fmean

import pytest
from rows import every_row
from tuner.fakes import PLANS, FakeRunner, gain_over, measuring, ratio

from cputune import Plan, Step
from cputune.records.result import Throughput
from cputune.records.steps import Crashed
from cputune.tuner.confirmation import Confirmation
from cputune.tuner.contenders import Contender
from cputune.tuner.gains import MOST_BLOCKS, RESERVE, Gain, blocks_to_decide, gain_side_by_side
from cputune.tuner.measuring import Findings

NOISE = 0.05


def test_rounds_that_agree_give_what_they_say() -> None:
    gain = gain_side_by_side([[0.1] * 8] * 3, NOISE)
    assert gain.pairs == 24
    assert gain.mean == pytest.approx(0.1)
    assert 0.0 < gain.low < 0.1 < gain.high < 0.2


@every_row(
    ("mean", "half", "further", "can"),
    [
        (0.0, 0.06, 2, True),  # four blocks make it +-2.3 %: equivalent
        (0.0, 0.5, 1, False),
        (0.06, 0.08, 2, True),  # +-3 %: faster
        (0.02, 0.2, 0, False),
    ],
)
def test_it_goes_on_as_long_as_that_can_decide_it(
    mean: float, half: float, further: int, can: bool
) -> None:
    gain = Gain(mean=mean, low=mean - half, high=mean + half, pairs=9)
    assert gain.can_be_decided(2, further) is can


def test_how_long_it_takes_to_decide_is_said() -> None:
    gain = Gain(mean=0.05, low=-0.05, high=0.15, pairs=9)
    assert gain.half_width_after(4, 0) == pytest.approx(0.1)
    further = next(more for more in range(20) if gain.half_width_after(4, more) < 0.05)
    assert 3 < further < 12
    assert gain.seconds_to_decide(4, 30.0) == pytest.approx(RESERVE * 30.0 * (4 + further) / 4)
    assert Gain(mean=0.0, low=-1.0, high=1.0, pairs=9).seconds_to_decide(20, 30.0) is None


@every_row("apart", [0.0, 0.013, 0.03])
@every_row("blocks", [2, 4, 8])
def test_the_interval_covers_what_processes_differ_by(blocks: int, apart: float) -> None:
    rng, held = random.Random(blocks), 0
    for _ in range(200):
        centers = [0.1 + rng.gauss(0, apart) - rng.gauss(0, apart) for _ in range(blocks)]
        rounds = [[center + rng.gauss(0, 0.05) for _ in range(5)] for center in centers]
        gain = gain_side_by_side(rounds, NOISE)
        held += gain.low <= 0.1 <= gain.high
    assert held >= 0.91 * 200


def test_a_delayed_round_of_a_short_block_does_not_move_it() -> None:
    calm = gain_side_by_side([[0.1] * 6, [0.1, 0.12, 0.08]], NOISE)
    wild = gain_side_by_side([[0.1] * 6, [0.1, 1.2, 0.08]], NOISE)
    assert wild.mean == pytest.approx(calm.mean, abs=0.01)


def settles(rng: random.Random, off: float) -> Gain | None:
    """The gain of 0.1, by ``off`` (log) at the first step of the processes of three blocks."""
    ages = [list(range(8, 20)), list(range(3, 8)), list(range(3, 50))]
    rounds = [[0.1 - off * math.exp(-a / 20) + rng.gauss(0, 0.05) for a in b] for b in ages]
    return gain_side_by_side(rounds, NOISE, ages=ages)


def test_what_still_changes_with_the_steps_of_a_process_is_not_taken_for_the_gain() -> None:
    rng = random.Random(4)
    gains = [settles(rng, 0.33) for _ in range(100)]
    held = sum(gain is not None and gain.low <= 0.1 <= gain.high for gain in gains)
    assert held >= 93
    old = [[20.0] * 9, [5.0] * 5, [5.0] * 5]
    young = gain_side_by_side([[-0.1] * 9, [-0.3] * 5, [-0.3] * 5], NOISE, ages=old)
    assert young.settles
    assert young.high > 0, "it may be no loss at all"


def test_what_is_level_is_seldom_said_to_change() -> None:
    rng = random.Random(5)
    gains = [settles(rng, 0.0) for _ in range(200)]
    assert sum(gain is not None and gain.settles for gain in gains) <= 6


def ordered(rng: random.Random, effect: float, *, told: bool) -> Gain:
    """The gain of 0.1 of processes of which the one that is started last is faster (log)."""
    later = [-1.0, 1.0, -1.0]
    rounds = []
    for place in later:
        center = 0.1 + place * -effect + rng.gauss(0, 0.02) - rng.gauss(0, 0.02)
        rounds.append([center + rng.gauss(0, 0.02) for _ in range(5)])
    # The baseline is slower by the effect if it was started first.
    gain = gain_side_by_side(rounds, NOISE, later=later if told else None)
    assert gain is not None
    return gain


def test_an_odd_number_of_blocks_is_not_biased_by_the_order_of_starts() -> None:
    rng = random.Random(6)
    told, silent = ([ordered(rng, 0.08, told=knows) for _ in range(300)] for knows in (True, False))
    bias = [abs(fmean(gain.mean for gain in gains) - 0.1) for gains in (told, silent)]
    assert bias[0] < 0.01 < 0.02 < bias[1] < 0.03
    width = [fmean(gain.half_width for gain in gains) for gains in (told, silent)]
    assert 1.5 * width[0] < width[1]
    assert sum(gain.low <= 0.1 <= gain.high for gain in told) >= 0.94 * 300


def test_a_gain_knows_in_which_order_the_plans_were_started() -> None:
    base, rival = contenders(2)
    for block, place in enumerate((-0.5, 0.5, None)):
        for _ in range(3):
            base.add(block, 0.1 * block, place=place)
            rival.add(block, 0.0, place=None if place is None else -place)
    expected = gain_side_by_side(
        [[0.0] * 3, [0.1] * 3, [0.2] * 3], 0.05, ages=[[math.inf] * 3] * 3, later=[-1.0, 1.0, 0.0]
    )
    found = gain_over(base, rival)
    assert (found.mean, found.half_width) == pytest.approx((expected.mean, expected.half_width))
    silent = gain_side_by_side([[0.0] * 3, [0.1] * 3, [0.2] * 3], 0.05)
    assert found.half_width != pytest.approx(silent.half_width, rel=1e-3)


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

    runner, findings = FakeRunner(script), Findings()
    compared = Confirmation(measuring(most_seconds, findings=findings), PLANS[0], PLANS[1:count])
    compared.one_after_another(runner)
    order = [PLANS.index(plan) for plan in runner.started]
    return [compared.baseline, *compared.rivals], order, findings


def test_a_clear_gain_is_answered_by_two_rounds() -> None:
    (base, rival), order, _ = confirmed(lambda number, before: (1.0, 0.25)[number])
    assert ratio(base, rival) == pytest.approx(4.0)
    assert (order, base.blocks) == ([0, 1, 1, 0], [0, 1])


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


def test_without_a_rival_nothing_is_run() -> None:
    assert confirmed(lambda number, before: 1.0, 1)[1] == []


def test_the_interval_holds_the_true_gain() -> None:
    rng, held = random.Random(3), 0
    for _ in range(100):
        slow = {run: math.exp(rng.gauss(0, 0.05)) for run in range(99)}
        fast = {run: 0.8 * math.exp(rng.gauss(0, 0.05)) for run in range(99)}
        (base, rival), _, _ = confirmed(lambda n, before: (slow, fast)[n][before])  # noqa: B023
        gain = gain_over(base, rival)
        held += gain.low <= math.log(1.25) <= gain.high
    assert held >= 93


@every_row(
    ("factor", "blocks"), [(1.05, MOST_BLOCKS), (1.1, 7), (1.3, 5), (1.5, 3), (2.0, 2), (5.0, 2)]
)
def test_a_large_gain_needs_fewer_blocks(factor: float, blocks: int) -> None:
    assert blocks_to_decide(math.log(factor), 0.05, 2) == blocks


def half_width(speed: Throughput) -> float:
    assert speed.high / speed.centre == pytest.approx(speed.centre / speed.low)
    return math.log(speed.high / speed.centre)
