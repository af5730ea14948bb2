"""The gain of one plan over another, from rounds in which both had their turn."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from cputune.tuner.paired import gain_of_rounds, gain_side_by_side

NOISE = 0.05


def drawn(rng: random.Random, count: int, center: float = 0.1) -> list[float]:
    return [rng.gauss(center, 0.05) for _ in range(count)]


def test_rounds_that_agree_give_what_they_say() -> None:
    gain = gain_side_by_side([[0.1] * 8, [0.1] * 8], NOISE)
    assert gain is not None
    assert gain.pairs == 16
    assert gain.mean == pytest.approx(0.1)
    assert 0.05 < gain.low < 0.1 < gain.high < 0.15


def test_one_round_says_nothing() -> None:
    assert gain_side_by_side([[0.1]], NOISE) is None
    assert gain_of_rounds([0.1], NOISE) is None


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


def test_less_doubt_makes_it_wider() -> None:
    values = drawn(random.Random(2), 12)
    widths = []
    for doubt in (0.1, 0.05, 0.01):
        gain = gain_side_by_side([values], NOISE, doubt=doubt)
        assert gain is not None
        widths.append(gain.half_width)
    assert widths == sorted(widths)


def test_sittings_that_disagree_make_it_wider() -> None:
    rng = random.Random(3)
    first, second = drawn(rng, 10), drawn(rng, 10)
    alike = gain_side_by_side([first, second], NOISE)
    apart = gain_side_by_side([first, [value + 0.2 for value in second]], NOISE)
    assert alike is not None
    assert apart is not None
    assert apart.half_width > 2 * alike.half_width


def test_few_rounds_lean_on_what_is_usual() -> None:
    gain = gain_of_rounds([0.1, 0.1], NOISE)
    assert gain is not None
    assert gain.half_width > 0.05


def test_many_rounds_are_nearly_normal() -> None:
    values = [NormalDist(0.1, 0.05).inv_cdf((i + 0.5) / 200) for i in range(200)]
    gain = gain_of_rounds(values, NOISE)
    assert gain is not None
    assert gain.half_width == pytest.approx(1.96 * 0.05 / math.sqrt(200), rel=0.03)
