"""Centres of step times, whatever warm-up and neighbours did to them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputune.tuner.statistics import USUAL_NOISE, Noise, estimate, median, student_t


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


def test_a_run_without_warm_up_has_none() -> None:
    now = estimate(logs(0.5, 0.49, 0.51, 0.5), USUAL_NOISE)
    assert (now.warmup, len(now.kept), now.level) == (0, 4, True)


def test_one_step_five_times_longer_is_left_out() -> None:
    now = estimate(logs(0.5, 2.5, 0.49, 0.51), USUAL_NOISE)
    assert math.exp(now.center) == pytest.approx(0.5, abs=0.005)


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
        noise.learn([rng.gauss(0, 0.12) for _ in range(5)])
    assert noise.deviation == pytest.approx(0.12, rel=0.1)


def test_the_median_of_an_even_count_is_between_the_two_in_the_middle() -> None:
    assert median([4, 1, 3, 2]) == 2.5


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042)]
)
def test_quantiles_of_students_t(freedom: float, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, rel=0.01)
