"""The gain of one plan over another, from rounds in which both had their turn."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean

import numpy as np
import pytest
from rows import every_row
from tuner.fakes import PLANS, FakeRunner, gain_over, measuring, ratio

from cputune import Plan, Step
from cputune.records.result import Throughput
from cputune.records.steps import Crashed
from cputune.tuner.confirmation import Confirmation
from cputune.tuner.contenders import Contender, gain_of
from cputune.tuner.gains import (
    DELTA,
    DOUBT,
    FREEDOM,
    MOST_BLOCKS,
    NOISE_WEIGHT,
    NOTHING_SEEN,
    PROCESS,
    RESERVE,
    Gain,
    Piece,
    Scattered,
    _fit,
    _scatter,
    blocks_to_decide,
    center_of,
    gain_side_by_side,
    throughput,
)
from cputune.tuner.measuring import Findings
from cputune.tuner.student import students_quantile

NOISE = 0.05


def drawn(rng: random.Random, count: int, center: float = 0.1) -> list[float]:
    return [rng.gauss(center, 0.05) for _ in range(count)]


def test_rounds_that_agree_give_what_they_say() -> None:
    gain = gain_side_by_side([[0.1] * 8] * 3, NOISE)
    assert gain is not None
    assert gain.pairs == 24
    assert gain.mean == pytest.approx(0.1)
    assert 0.0 < gain.low < 0.1 < gain.high < 0.2


def test_a_lone_block_is_as_sure_as_blocks_of_other_plans_let_it_be() -> None:
    whole = gain_side_by_side([[0.5] * 3, [0.51] * 6, [0.49] * 3], NOISE)
    assert whole is not None
    widths = []
    for seen in (NOTHING_SEEN, whole.scattered, Scattered(squares=20.0, freedom=2)):
        gain = gain_side_by_side([[0.2] * 6], NOISE, doubt=0.05, elsewhere=seen)
        assert gain is not None
        widths.append(gain.half_width)
    alone, still, shaky = widths
    assert still < min(shaky, alone)


def test_how_likely_a_fit_is_compares_contrasts_of_the_blocks() -> None:
    """Harville 1974: of a mean that is not known, the likelihood of what does not depend on it."""
    pieces = [
        Piece(block=at // 2, center=center, variance=0.001 * (1 + at), unsettled=math.exp(-at))
        for at, center in enumerate((0.3, 0.12, 0.1, 0.08, 0.11))
    ]
    centres = np.array([piece.center for piece in pieces])
    block, left = (np.array([getattr(one, of) for one in pieces]) for of in ("block", "unsettled"))
    own = np.diag([one.variance for one in pieces]) + 2 * PROCESS**2 * (block[:, None] == block)
    contrasts = np.eye(5)[1:] - np.eye(5)[:-1]

    def likely(settling: float) -> float:
        covariance = contrasts @ (own + settling**2 * np.outer(left, left)) @ contrasts.T
        residuals = contrasts @ centres
        squares = float(residuals @ np.linalg.inv(covariance) @ residuals)
        return -(float(np.linalg.slogdet(covariance)[1]) + squares) / 2

    said = _fit(pieces, 0.2).likely - _fit(pieces, 0.0).likely
    assert said == pytest.approx(likely(0.2) - likely(0.0))
    assert abs(said) > 0.1


def test_a_round_that_was_disturbed_counts_for_one_rank() -> None:
    values = drawn(random.Random(1), 20)
    calm = gain_side_by_side([values], NOISE)
    wild = gain_side_by_side([[*values[:-1], 5.0]], NOISE)
    assert calm is not None
    assert wild is not None
    assert abs(wild.mean - calm.mean) < 0.02
    assert wild.half_width < 1.5 * calm.half_width


def test_many_rounds_scatter_as_they_were_drawn() -> None:
    rng = random.Random(2)
    blocks = [drawn(rng, 200, center) for center in (0.1, 0.4)]
    assert _scatter(blocks, 0.01) == pytest.approx(0.05, rel=0.1)


def test_a_few_rounds_are_taken_to_scatter_as_steps_usually_do() -> None:
    """A round is the difference of two steps. Of a block its middle is no free value."""
    assert _scatter([[0.3]], NOISE) == pytest.approx(math.sqrt(2) * NOISE)
    own = 0.1 / 0.6745 * math.sqrt(2 / 1)
    usual = NOISE_WEIGHT * 2 * NOISE**2
    expected = math.sqrt((usual + own**2) / (NOISE_WEIGHT + 1))
    assert _scatter([[0.0, 0.2]], NOISE) == pytest.approx(expected)


@every_row("count", [3, 6, 12, 30])
def test_the_interval_holds_the_truth(count: int) -> None:
    rng = random.Random(count)
    gains = [gain_side_by_side([drawn(rng, count)], NOISE) for _ in range(400)]
    held = sum(gain is not None and gain.low <= 0.1 <= gain.high for gain in gains)
    assert held >= 0.93 * 400


def test_two_blocks_lean_on_what_processes_usually_differ_by() -> None:
    """Student's t of FREEDOM + 1, of a mean of two whose variance is the prior's alone."""
    of_t = students_quantile(1 - DOUBT / 2, FREEDOM + 1)
    gain = gain_side_by_side([[0.0] * 9, [0.0] * 9], 0.001)
    assert gain is not None
    seen = math.sqrt(2 * PROCESS**2 / 2 * FREEDOM / (FREEDOM + 1))
    assert gain.half_width == pytest.approx(of_t * seen, rel=0.02)


def test_the_centre_is_the_median_of_the_means_of_all_pairs() -> None:
    assert center_of([0.0, 1.0, 2.0, 4.0, 8.0, 16.0]) == 4.0


@every_row(
    ("low", "high", "outcome", "decided"),
    [
        (0.021, 0.1, "faster", True),
        (0.02, 0.1, "faster", False),  # it only just excludes 1
        (-0.1, 0.019, "undecided", False),
        (-0.1, -0.021, "slower", True),
        (-0.1, -0.01, "slower", False),
        (-0.04, 0.04, "equivalent", True),
        (0.0, 0.1, "undecided", False),
    ],
)
def test_a_comparison_goes_on_until_it_is_decided(
    low: float, high: float, outcome: str, decided: bool
) -> None:
    gain = Gain(mean=(low + high) / 2, low=low, high=high, pairs=9)
    assert DELTA == 0.02
    assert (gain.speedup.outcome, gain.is_decided) == (outcome, decided)


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
        assert gain is not None
        held += gain.low <= 0.1 <= gain.high
    assert held >= 0.91 * 200


def test_a_delayed_round_of_a_short_block_does_not_move_it() -> None:
    calm = gain_side_by_side([[0.1] * 6, [0.1, 0.12, 0.08]], NOISE)
    wild = gain_side_by_side([[0.1] * 6, [0.1, 1.2, 0.08]], NOISE)
    assert calm is not None
    assert wild is not None
    assert wild.mean == pytest.approx(calm.mean, abs=0.01)


def test_blocks_that_disagree_make_it_wider() -> None:
    rng = random.Random(3)
    first, second = drawn(rng, 10), drawn(rng, 10)
    alike = gain_side_by_side([first, second], NOISE)
    apart = gain_side_by_side([first, [value + 0.2 for value in second]], NOISE)
    assert alike is not None
    assert apart is not None
    assert apart.half_width > 1.3 * alike.half_width


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
    assert young is not None
    assert young.settles
    assert young.high > 0, "it may be no loss at all"


@pytest.mark.parametrize(("to_come", "settles"), [(0.009, False), (0.011, True), (-0.011, True)])
def test_less_than_half_of_what_counts_as_a_difference_is_no_change(
    to_come: float, settles: bool
) -> None:
    gain = Gain(mean=0.1, low=0.0, high=0.2, pairs=9, to_come=to_come)
    assert gain.settles is settles


def test_what_is_level_is_seldom_said_to_change() -> None:
    rng = random.Random(5)
    gains = [settles(rng, 0.0) for _ in range(200)]
    assert sum(gain is not None and gain.settles for gain in gains) <= 6


def ordered(
    rng: random.Random, effect: float, *, told: bool, blocks: int = 3, apart: float = 0.02
) -> Gain:
    """The gain of 0.1 of processes of which the one that is started last is faster (log)."""
    later = [(-1.0) ** (block + 1) for block in range(blocks)]
    rounds = []
    for place in later:
        center = 0.1 + place * -effect + rng.gauss(0, apart) - rng.gauss(0, apart)
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


def test_an_order_of_starts_without_effect_costs_little() -> None:
    rng = random.Random(7)
    gains = [ordered(rng, 0.0, told=True) for _ in range(300)]
    silent = [ordered(rng, 0.0, told=False) for _ in range(300)]
    width, without = (fmean(gain.half_width for gain in some) for some in (gains, silent))
    assert width < 1.15 * without
    assert sum(gain.low <= 0.1 <= gain.high for gain in gains) >= 0.94 * 300


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
    assert expected is not None
    assert (found.mean, found.half_width) == pytest.approx((expected.mean, expected.half_width))
    silent = gain_side_by_side([[0.0] * 3, [0.1] * 3, [0.2] * 3], 0.05)
    assert silent is not None
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


def test_rounds_are_interleaved_and_turned() -> None:
    _, order, _ = confirmed(lambda number, before: 1.0, 3)
    assert order[:6] == [0, 1, 2, 1, 2, 0]


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


@every_row(
    ("factor", "blocks"), [(1.05, MOST_BLOCKS), (1.1, 7), (1.3, 5), (1.5, 3), (2.0, 2), (5.0, 2)]
)
def test_a_large_gain_needs_fewer_blocks(factor: float, blocks: int) -> None:
    assert blocks_to_decide(math.log(factor), 0.05, 2) == blocks


def half_width(speed: Throughput) -> float:
    assert speed.high / speed.centre == pytest.approx(speed.centre / speed.low)
    return math.log(speed.high / speed.centre)


def test_the_interval_of_a_speed_leans_on_what_is_usual() -> None:
    two = throughput([0.0, 0.2], 0.05)
    variance = (0.02 + NOISE_WEIGHT * 0.05**2) / (NOISE_WEIGHT + 1) / 2 + PROCESS**2
    assert two.centre == pytest.approx(math.exp(-0.1))
    assert half_width(two) == pytest.approx(
        students_quantile(0.975, NOISE_WEIGHT + 1) * math.sqrt(variance), rel=1e-3
    )
    four = throughput([0.0, 0.2], 0.05, processes=4)
    assert half_width(four) < half_width(two)
