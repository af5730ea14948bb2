"""Centres of step times, whatever warm-up and neighbours did to them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputune.tuner.race import USUAL_NOISE, Noise, estimate, spread


def logs(*seconds: float) -> list[float]:
    return [math.log(value) for value in seconds]


def test_warm_up_is_found_and_does_not_count() -> None:
    now = estimate(logs(1.0, 1.0, 0.66, 0.62, 0.57, 0.49, 0.49, 0.5), USUAL_NOISE)
    assert now.level
    assert now.warmup == 5
    assert math.exp(now.center) == pytest.approx(0.493, abs=0.01)


@pytest.mark.parametrize("seen", [3, 5])
def test_steps_that_still_get_faster_are_not_level(seen: int) -> None:
    assert not estimate(logs(1.0, 1.0, 0.66, 0.62, 0.57)[:seen], USUAL_NOISE).level


@pytest.mark.parametrize(
    ("noise", "first", "warmup"),
    [(0.1, 0.25, 0), (0.1, 0.3, 1), (0.01, 0.07, 0), (0.01, 0.09, 1)],
)
def test_warm_up_are_steps_that_lie_far_above_the_rest(
    noise: float, first: float, warmup: int
) -> None:
    assert estimate([first, *[0.0] * 5], noise).warmup == warmup


@pytest.mark.parametrize(
    ("steps", "warmup"),
    [([0.2] * 2 + [0.0] * 2, 2), ([0.3] * 3 + [0.0], 0), ([0.2] * 6 + [0.0] * 2, 0)],
)
def test_the_rest_is_the_later_half_and_three_steps_at_least(
    steps: list[float], warmup: int
) -> None:
    assert estimate(steps, 0.05).warmup == warmup


@pytest.mark.parametrize(("steps", "warmup"), [(5, 3), (4, 0)])
def test_steps_are_skipped_where_two_follow(steps: int, warmup: int) -> None:
    assert estimate([0.0] * steps, 0.05, skip=3).warmup == warmup


@pytest.mark.parametrize(
    ("noise", "last", "kept"), [(0.1, 0.4, 5), (0.1, 0.45, 4), (0.01, 0.12, 5), (0.01, 0.2, 4)]
)
def test_steps_far_above_the_median_were_delayed(noise: float, last: float, kept: int) -> None:
    assert len(estimate([0.0, 0.0, 0.0, 0.0, last], noise).kept) == kept


@pytest.mark.parametrize(
    ("steps", "noise", "level"),
    [
        ([0.0], 0.05, False),  # one says nothing
        ([0.0, 0.0], 0.05, True),
        ([0.0, 0.0, 1.0, 1.0], 0.05, False),  # no more than half count
        ([0.0, 0.34, 0.0], 0.1, True),
        ([0.0, 0.4375, 0.0], 0.125, True),
        ([0.0, 0.39, 0.0], 0.1, False),  # too wide
        ([0.0, 0.09, 0.0], 0.01, True),
        ([0.0, 0.11, 0.0], 0.01, False),
        ([0.12, 0.06, 0.0], 0.05, False),  # falling
        ([0.12, 0.12, 0.06, 0.0], 0.05, False),
        ([0.12, 0.12, 0.0], 0.05, True),
        ([0.12, 0.0, 0.0], 0.05, True),
        ([0.125, 0.0625, 0.0], 0.0625, True),  # so little is noise
    ],
)
def test_level_are_steps_that_neither_scatter_widely_nor_fall(
    steps: list[float], noise: float, level: bool
) -> None:
    assert estimate(steps, noise).level == level


def test_the_scatter_of_few_steps_is_held_by_what_is_known_beforehand() -> None:
    assert spread([5.0, 5.2], 0.1) == pytest.approx(math.sqrt((0.02 + 6 * 0.01) / (1 + 6)))


def test_the_interval_is_as_wide_as_the_error_of_the_mean() -> None:
    now = estimate([0.0, 0.02, 0.0, 0.02], 0.05)
    assert now.error == pytest.approx(spread(now.kept, 0.05) / 2)
    assert now.high - now.center == pytest.approx(1.96 * now.error)
    assert now.center - now.low == pytest.approx(1.96 * now.error)


def test_without_steps_there_is_no_centre() -> None:
    with pytest.raises(ValueError, match="no steps"):
        estimate([], USUAL_NOISE)


@given(
    values=st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    noise=st.floats(0.005, 0.3),
    shift=st.floats(-3, 3),
)
def test_the_centre_lies_among_the_steps_and_moves_with_them(
    values: list[float], noise: float, shift: float
) -> None:
    now = estimate(values, noise)
    assert min(values) - 1e-9 <= now.center <= max(values) + 1e-9
    assert now.error > 0
    assert 0 <= now.warmup < len(values)


def test_delays_and_noise_leave_the_centre_where_it_is() -> None:
    rng = random.Random(1)
    off = []
    for _ in range(300):
        steps = [rng.gauss(0, 0.05) + (math.log(5) if rng.random() < 0.03 else 0) for _ in range(8)]
        now = estimate(steps, 0.05)
        off.append(abs(now.center) / now.error)
    assert sum(value < 1.96 for value in off) / len(off) > 0.9


def test_noise_is_learnt_from_the_steps() -> None:
    rng = random.Random(1)
    noise = Noise()
    assert noise.deviation == pytest.approx(USUAL_NOISE)
    for _ in range(100):
        noise.learn([rng.gauss(3, 0.12) for _ in range(5)])
    assert noise.deviation == pytest.approx(0.12, rel=0.1)


@pytest.mark.parametrize(("steps", "deviation"), [([0.0, 0.0], 0.01), ([0.0, 9.0], 0.3)])
def test_noise_is_never_less_or_more_than_is_plausible(
    steps: list[float], deviation: float
) -> None:
    noise = Noise()
    noise.learn(steps * 20)
    assert noise.deviation == deviation
