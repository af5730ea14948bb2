"""What comes after the search, foretold from a start and a step."""

from __future__ import annotations

import pytest

from cputune.tuner.confirmation import LEAST_ROUNDS, MOST_SECONDS, Pace, end_seconds


def test_short_steps_take_what_the_confirmation_has_at_most() -> None:
    pace = Pace(start_seconds=1.0, step_seconds=0.1)
    assert end_seconds(pace, rivals=2, changes=2) == pytest.approx(MOST_SECONDS + 6 * 0.1)


def test_long_steps_take_the_rounds_that_there_are_at_least() -> None:
    pace = Pace(start_seconds=0.0, step_seconds=2.9)
    awake, new = (2.9 * (2 * LEAST_ROUNDS + steps) for steps in (2, 4))
    assert end_seconds(pace, rivals=1, changes=1) == pytest.approx(2 * (awake + new) + 6 * 2.9)


def test_each_change_on_the_way_lives_in_the_second_block() -> None:
    pace = Pace(start_seconds=40.0, step_seconds=0.1)
    none, one, three = (end_seconds(pace, rivals=2, changes=count) for count in (0, 1, 3))
    assert none == one
    assert three - one == pytest.approx(2 * (40.0 + (4 + 7 * LEAST_ROUNDS) * 0.1))


def test_without_a_rival_the_profile_alone_comes() -> None:
    pace = Pace(start_seconds=2.0, step_seconds=1.0)
    assert end_seconds(pace, rivals=0, changes=1) == 6.0
