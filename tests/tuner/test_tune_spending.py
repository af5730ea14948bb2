"""How the time of a study is divided: what is kept for the comparison, and what the run says."""

from __future__ import annotations

import math

from tuner.fakes import measuring

from cputune.tuner.spending import DELAYED_STEPS, MOST_RESERVED, block_seconds, reserved_seconds

LIMIT = 360.0


def test_two_blocks_are_kept_even_if_they_take_more_than_half() -> None:
    known = measuring(LIMIT)
    known.step_seconds = 30.0
    known.saw_start(7.5)
    reserved = reserved_seconds(known, math.log(3.0), 10.0)
    assert reserved > MOST_RESERVED * LIMIT
    assert reserved > block_seconds(known, (30.0, 10.0)) + DELAYED_STEPS * 30.0
