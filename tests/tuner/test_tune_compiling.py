"""Steps in which torch.compile is at work, where a script asks for it."""

from __future__ import annotations

import math

import pytest

from cputune.steps import Step
from cputune.tuner.reading import Rules, Run, take


def test_a_step_that_was_compiled_in_does_not_count() -> None:
    run = Run()
    compiling = Step(seconds=40.4, samples=8, compile_seconds=38.0, delayed_seconds=30.0)
    for step in (compiling, *[Step(seconds=0.4, samples=8)] * 2):
        take(run, step, Rules())
    assert run.logs == [pytest.approx(math.log(0.4 / 8))] * 2
    assert (run.steps, run.delayed) == (3, 0)
