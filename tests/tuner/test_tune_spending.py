"""How the time of a study is divided: what is kept for the comparison, and what the run says."""

from __future__ import annotations

import math

from tuner.fakes import measuring

from cputune.tuner.measuring import Measuring
from cputune.tuner.spending import (
    DELAYED_STEPS,
    MOST_RESERVED,
    block_seconds,
    reserved_seconds,
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
