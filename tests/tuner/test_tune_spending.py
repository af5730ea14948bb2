"""How the time of a study is divided: what is kept for the comparison, and what the run says."""

from __future__ import annotations

import math

import pytest
from machines import AVX512, TODAY, Model, machine, simulated
from rows import every_row
from starting import tuned
from tuner.fakes import PLANS, measuring

from cputune.records.result import COMPLETED, Trial, Turn
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


@pytest.mark.parametrize("step_seconds", [0.05, 1.0, 10.0])
def test_a_larger_gain_is_compared_in_less_time(step_seconds: float) -> None:
    known = after_baseline(step_seconds)
    seconds = []
    for factor in (1.2, 1.5, 3.0):
        seconds.append(comparison_seconds(known, math.log(factor), step_seconds / factor))
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > 1.2 * seconds[-1]


def test_at_most_half_of_the_time_is_kept_for_a_small_gain() -> None:
    known = after_baseline(5.0)
    small = math.log(1.05)
    assert comparison_seconds(known, small, 4.8) > MOST_RESERVED * LIMIT
    assert reserved_seconds(known, small, 4.8) == MOST_RESERVED * LIMIT


def test_two_blocks_are_kept_even_if_they_take_more_than_half() -> None:
    known = after_baseline(30.0)
    reserved = reserved_seconds(known, math.log(3.0), 10.0)
    assert reserved > MOST_RESERVED * LIMIT
    assert reserved > block_seconds(known, (30.0, 10.0)) + DELAYED_STEPS * 30.0


@every_row(
    ("round_seconds", "first", "later"), [(1.0, 6, 3), (5.0, 4, 2), (15.0, 2, 2), (40.0, 1, 1)]
)
def test_longer_rounds_are_fewer(round_seconds: float, first: int, later: int) -> None:
    assert least_rounds(round_seconds, first=True) == first
    assert least_rounds(round_seconds, first=False) == later


def test_longer_steps_leave_time_for_fewer_plans() -> None:
    trials = [trials_in_time(after_baseline(step)) for step in (0.3, 3.0, 10.0, 30.0)]
    assert trials == sorted(trials, reverse=True)
    assert trials[0] > 12
    assert trials[-1] == 0


def test_a_study_that_is_resumed_knows_how_long_a_step_takes() -> None:
    known = measuring(LIMIT)
    trial = Trial(
        number=0,
        plan=PLANS[0],
        state=COMPLETED,
        steps=4,
        step_seconds=50.0,
        origin="baseline",
        taken=Turn(place=0, step_seconds=(20.0, 10.0, 11.0, 9.0)),
    )
    known.recall(trial)
    assert known.settled == {PLANS[0]: 10.0}


def test_with_long_steps_the_answer_comes_and_the_rest_is_named() -> None:
    """A step of the current launch takes ten seconds on 16 cores without bf16."""
    facts = machine(cores_per_socket=16, isa=AVX512, libraries=("tcmalloc",), packages=TODAY)
    slow = simulated("slow", facts, Model(work=60.0, bandwidth=4.0), batch=32)
    runner = slow.runner(1)
    result = tuned(runner, slow.workload, facts, budget=20, seed=1)
    assert result.outcome == "faster"
    assert len(result.trials) >= 3
    assert runner.spent_seconds < LIMIT + 60
    (note,) = (note for note in result.notes if "others may be faster" in note)
    assert "cputune tune" in note
    assert "--max-time" in note
    assert not any("time limit was reached" in note for note in result.notes)
