"""How long a run is read, and what is learnt from it."""

from __future__ import annotations

import math
import random

import pytest
from rows import every_row

from cputune.tuner.race import (
    LONG_STEP_SECONDS,
    USUAL_NOISE,
    Estimate,
    Noise,
    Race,
    estimate,
    spread,
)

WARMING = (1.0, 1.0, 0.66, 0.62, 0.57, 0.49, 0.49, 0.5, 0.49)
"""The first steps of BERT on two cores, in seconds."""


def logs(*seconds: float) -> list[float]:
    return [math.log(value) for value in seconds]


def taught(*runs: tuple[float, ...]) -> Race:
    race = Race()
    for run in runs:
        race.learn(logs(*run), race.estimate(logs(*run)), completed=True)
    return race


def test_a_first_run_is_read_until_it_is_level() -> None:
    race = Race()
    verdicts = [race.verdict(logs(*WARMING[:n])) for n in range(1, len(WARMING) + 1)]
    assert verdicts == ["more"] * 8 + ["enough"]


def test_a_run_that_never_settles_has_24_steps() -> None:
    falling = [-0.1 * i for i in range(30)]
    assert [Race().verdict(falling[:n]) for n in (23, 24)] == ["more", "enough"]


def test_half_of_the_usual_warm_up_is_believed_before_any_was_seen() -> None:
    guesses = [Race().lost([0.0] * n) for n in range(1, 8)]
    left = [-guess.center for guess in guesses]
    assert left == pytest.approx([0.55, 0.375, 0.225, 0.15, 0.1, 0.05, 0.0])
    first, last = guesses[0], guesses[-1]
    assert first.error == pytest.approx(math.hypot(0.05 * math.sqrt(6 / 6), 1.1 / 2, 0.025))
    assert last.error == pytest.approx(math.hypot(Race().estimate([0.0] * 7).error, 0.025))


@every_row(
    ("seen", "typical", "most"),
    [
        ([], 0.55, 1.1),
        ([0.2], 0.2, 0.55),
        ([0.9], 0.55, 0.95),
        ([0.1, 0.2], 0.2, 0.25),
        ([0.6, 0.7], 0.6, 0.75),
        ([-0.3, -0.2], 0.0, 0.05),
        ([0.6, 0.7, 0.8], 0.6, 0.85),
        ([0.1, 0.2, 0.3, 0.4], 0.3, 0.45),
        ([0.1, 0.2, 0.3, 0.4, 0.5], 0.3, 0.45),
    ],
)
def test_a_first_step_lies_as_far_above_the_rest_as_most_that_were_seen(
    seen: list[float], typical: float, most: float
) -> None:
    guess = Race(excesses=[seen]).lost([1.0])
    assert 1.0 - guess.center == pytest.approx(typical)
    assert guess.error == pytest.approx(math.hypot(0.05, most / 2, 0.05 / 2))


@pytest.mark.parametrize(("excess", "warmup"), [(0.08, 1), (0.07, 0)])
def test_warm_up_is_what_stands_out_of_the_noise(excess: float, warmup: int) -> None:
    assert Race(excesses=[[excess] * 2, [0.0] * 2]).warmup == warmup
    assert Race().warmup == 1


@every_row(
    ("steps", "verdict"),
    [
        ([2.49], "more"),  # one step alone may have been delayed
        ([2.51], "lost"),  # taken off: that, the most of a first step, noise, wander
        ([0.91] * 2, "more"),  # some plans touch their memory in the second step
        ([0.92] * 2, "lost"),
        ([0.22] * 3, "lost"),
        ([0.9, 0.8, 0.5], "more"),  # it still gets faster
        ([0.9, 0.8, 0.65], "lost"),
        ([0.9, 0.55, 0.4], "lost"),  # no faster than noise makes it
        ([0.21, 0.5], "more"),
        ([0.1, 0.5, 0.9], "lost"),
        ([0.125] * 4, "enough"),
        ([0.13] * 4, "lost"),
    ],
)
def test_lost_is_what_cannot_get_as_fast_as_the_fastest(steps: list[float], verdict: str) -> None:
    race = Race(
        fastest=Estimate(center=0.0, error=0.02, kept=(0.0,) * 5, warmup=0, level=True),
        excesses=[[0.1, 0.2], *[[0.0, 0.0]] * 5],
    )
    assert race.verdict(steps) == verdict


def test_the_fastest_is_the_fastest_whenever_it_came() -> None:
    race = taught((0.5,) * 5, (0.4,) * 5, (0.6,) * 5)
    assert race.fastest.center == pytest.approx(math.log(0.4))


def test_a_run_that_is_shorter_than_the_warm_up_teaches_none() -> None:
    race = taught(WARMING)
    assert race.warmup == 5
    for steps, learnt in ((7, 1), (8, 2)):
        short = logs(*WARMING[:steps])
        race.learn(short, race.estimate(short), completed=True)
        assert len(race.excesses[0]) == learnt


@pytest.mark.parametrize(
    ("steps", "warmup"),
    [([0.2] * 2 + [0.0] * 2, 2), ([0.3] * 3 + [0.0], 0), ([0.2] * 6 + [0.0] * 2, 0)],
)
def test_the_rest_is_the_later_half_and_three_steps_at_least(
    steps: list[float], warmup: int
) -> None:
    assert estimate(steps, 0.05).warmup == warmup


@pytest.mark.parametrize(("steps", "warmup"), [(5, 3), (4, 0)])
def test_steps_are_skipped_if_two_follow(steps: int, warmup: int) -> None:
    assert estimate([0.0] * steps, 0.05, skip=3).warmup == warmup


@every_row(
    ("noise", "last", "kept"), [(0.1, 0.4, 5), (0.1, 0.45, 4), (0.01, 0.12, 5), (0.01, 0.2, 4)]
)
def test_steps_far_above_the_median_were_delayed(noise: float, last: float, kept: int) -> None:
    assert len(estimate([0.0, 0.0, 0.0, 0.0, last], noise).kept) == kept


@every_row(
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


def test_the_error_is_that_of_the_mean() -> None:
    now = estimate([0.0, 0.02, 0.0, 0.02], 0.05)
    assert now.error == pytest.approx(spread(now.kept, 0.05) / 2)


def test_noise_is_learnt_from_the_steps() -> None:
    rng = random.Random(1)
    noise = Noise()
    assert noise.deviation == pytest.approx(USUAL_NOISE)
    for _ in range(100):
        noise.learn([rng.gauss(3, 0.12) for _ in range(5)])
    assert noise.deviation == pytest.approx(0.12, rel=0.1)


def test_two_level_steps_suffice_if_steps_are_long() -> None:
    logs = [2.0, 1.0, 1.01]
    race = Race()
    assert race.verdict(logs) == "more"
    race.step_seconds = LONG_STEP_SECONDS
    assert race.verdict(logs) == "enough"
    assert race.verdict(logs[:2]) == "more"
