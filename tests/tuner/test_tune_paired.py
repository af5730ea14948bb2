"""The gain of one plan over another, from rounds in which both had their turn."""

from __future__ import annotations

import math
import random

import pytest

from cputune.tuner.gains import (
    DELTA,
    Gain,
    _students_quantile,
    center_of,
    gain_side_by_side,
)

NOISE = 0.05


def drawn(rng: random.Random, count: int, center: float = 0.1) -> list[float]:
    return [rng.gauss(center, 0.05) for _ in range(count)]


def test_rounds_that_agree_give_what_they_say() -> None:
    gain = gain_side_by_side([[0.1] * 8, [0.1] * 8], NOISE)
    assert gain is not None
    assert gain.pairs == 16
    assert gain.mean == pytest.approx(0.1)
    assert 0.0 < gain.low < 0.1 < gain.high < 0.2


def test_a_round_that_was_disturbed_counts_for_one_rank() -> None:
    values = drawn(random.Random(1), 20)
    calm = gain_side_by_side([values], NOISE)
    wild = gain_side_by_side([[*values[:-1], 5.0]], NOISE)
    assert calm is not None
    assert wild is not None
    assert abs(wild.mean - calm.mean) < 0.02
    assert wild.half_width < 1.5 * calm.half_width


@pytest.mark.parametrize("count", [3, 6, 12, 30])
def test_the_interval_holds_the_truth(count: int) -> None:
    rng = random.Random(count)
    gains = [gain_side_by_side([drawn(rng, count)], NOISE) for _ in range(400)]
    held = sum(gain is not None and gain.low <= 0.1 <= gain.high for gain in gains)
    assert held >= 0.93 * 400


def test_rounds_that_scatter_more_than_steps_do_make_it_wider() -> None:
    rng = random.Random(30)
    blocks = [[rng.gauss(0.1, 10 * NOISE) for _ in range(30)] for _ in range(400)]
    gains = [gain_side_by_side([block], NOISE) for block in blocks]
    held = sum(gain is not None and gain.low <= 0.1 <= gain.high for gain in gains)
    assert held >= 0.93 * 400


def test_the_centre_is_the_median_of_the_means_of_all_pairs() -> None:
    assert center_of([0.0, 1.0, 2.0, 4.0, 8.0, 16.0]) == 4.0


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (0.021, 0.1, "faster"),
        (0.02, 0.1, "undecided"),
        (-0.1, 0.019, "same"),
        (0.0, 0.1, "undecided"),
    ],
)
def test_there_are_three_answers(low: float, high: float, answer: str) -> None:
    assert DELTA == 0.02
    assert Gain(mean=0.0, low=low, high=high, pairs=9).answer == answer


@pytest.mark.parametrize(
    ("freedom", "quantile", "within"),
    [(3, 3.182, 8e-3), (4, 2.776, 3e-3), (5, 2.571, 2e-3), (6, 2.447, 1e-3), (10, 2.228, 2e-4)],
)
def test_quantiles_of_students_t(freedom: int, quantile: float, within: float) -> None:
    assert _students_quantile(freedom) == pytest.approx(quantile, rel=within)


@pytest.mark.parametrize("apart", [0.0, 0.013, 0.03])
@pytest.mark.parametrize("blocks", [2, 4, 8])
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


def test_less_doubt_makes_it_wider() -> None:
    values = drawn(random.Random(2), 12)
    widths = []
    for doubt in (0.1, 0.05, 0.01):
        gain = gain_side_by_side([values], NOISE, doubt=doubt)
        assert gain is not None
        widths.append(gain.half_width)
    assert widths == sorted(widths)


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
    ages = [[20.0] * 9, [5.0] * 5, [5.0] * 5]
    young = gain_side_by_side([[-0.1] * 9, [-0.3] * 5, [-0.3] * 5], NOISE, ages=ages)
    assert young is not None
    assert young.settles
    assert young.high > 0, "it may be no loss at all"


def test_what_is_level_is_seldom_said_to_change() -> None:
    rng = random.Random(5)
    gains = [settles(rng, 0.0) for _ in range(200)]
    assert sum(gain is not None and gain.settles for gain in gains) <= 6
