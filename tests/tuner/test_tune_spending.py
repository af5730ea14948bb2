"""How the time of a study is divided: what is kept for the comparison, and what the run says."""

from __future__ import annotations

import math

from tuner.fakes import measuring

from cputune.tuner.measuring import Measuring
from cputune.tuner.spending import (
    DELAYED_STEPS,
    MOST_RESERVED,
    block_seconds,
    comparison_seconds,
    least_rounds,
    reserved_seconds,
    trials_in_time,
)

LIMIT = 360.0


def after_baseline(step_seconds: float, start_seconds: float = 7.5) -> Measuring:
    """A study of six minutes whose baseline has been measured."""
    known = measuring(LIMIT)
    known.step_seconds = step_seconds
    known.saw_start(start_seconds)
    return known


def test_two_blocks_are_kept_even_if_they_take_more_than_half() -> None:
    known = after_baseline(30.0)
    reserved = reserved_seconds(known, math.log(3.0), 10.0)
    assert reserved > MOST_RESERVED * LIMIT
    assert reserved > block_seconds(known, (30.0, 10.0)) + DELAYED_STEPS * 30.0


def test_a_larger_gain_is_compared_in_less_time_and_a_small_one_in_half_of_all() -> None:
    known = after_baseline(5.0)
    gains = {math.log(factor): 5.0 / factor for factor in (1.05, 1.2, 1.5, 3.0)}
    seconds = [comparison_seconds(known, gain, step) for gain, step in gains.items()]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[1] > 1.2 * seconds[-1]
    assert seconds[0] > MOST_RESERVED * LIMIT
    small = min(gains)
    assert reserved_seconds(known, small, gains[small]) == MOST_RESERVED * LIMIT


def test_longer_steps_leave_time_for_fewer_plans_and_rounds() -> None:
    trials = [trials_in_time(after_baseline(step)) for step in (0.3, 3.0, 10.0, 30.0)]
    assert trials == sorted(trials, reverse=True)
    assert trials[0] > 12
    assert trials[-1] == 0
    rounds = [(least_rounds(one, first=True), least_rounds(one, first=False)) for one in (1, 15)]
    assert rounds == [(6, 3), (2, 2)]
