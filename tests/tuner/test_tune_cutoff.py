"""What is said of a trial that the end of the time has cut short."""

from __future__ import annotations

import pytest
from tuner.fakes import PLANS

from cputune.tuner.measuring import CutOff
from cputune.tuner.reading import Run


def cut(startup: float, steps: int = 0, seconds: float = 0.0, samples: int | None = None) -> CutOff:
    run = Run(steps=steps, step_seconds=seconds, samples=samples)
    when = f"after {steps} steps" if steps else "while importing torch"
    return CutOff(number=3, plan=PLANS[0], when=when, run=run, startup_seconds=startup)


@pytest.mark.parametrize(
    ("startup", "steps", "seconds", "enough"),
    [
        (0.0, 0, 0.0, "1m"),  # a minute at least
        (10.0, 0, 0.0, "1m"),
        (10.1, 0, 0.0, "2m"),
        (20.0, 2, 20.0, "10m"),  # six trials of 20 s and eight steps of 10 s
    ],
)
def test_six_trials_of_eight_steps_are_enough(
    startup: float, steps: int, seconds: float, enough: str
) -> None:
    hint = cut(startup, steps, seconds).error().hint
    assert hint == f"give it more: --max-time {enough}"


def test_with_a_step_it_says_what_the_steps_took() -> None:
    one = cut(9.4, 2, 5.0, samples=8)
    known = (
        "it started for 9 s, then made 2 steps of 8 samples in 2.5 s each, "
        "and the first steps of a run are slower than the rest"
    )
    assert one.note() == f"Trial 3 ({PLANS[0].describe()}) was cut short: {known}."
    assert one.error().details == known
    assert "after 2 steps of today's launch" in str(one.error())
    assert "2 steps in 2.5 s each" in cut(9.4, 2, 5.0).note()


def test_without_one_it_says_what_it_was_at() -> None:
    error = cut(9.4).error()
    assert str(error).endswith(
        "before today's launch made a step: it started for 9 s, "
        "and the time was up while importing torch"
    )
    assert error.details is None


def test_runs_that_others_delayed_are_no_start_of_this_one() -> None:
    cut = CutOff(
        number=0,
        plan=PLANS[0],
        when="while it started",
        run=Run(),
        startup_seconds=30.0,
        delayed_runs=2,
    )
    error = cut.error()
    assert "before today's launch had a quiet run: other processes delayed 2 runs" in str(error)
    assert error.details == "started again, it took 30 s, and the time was up while it started"
    assert error.hint is not None
    assert "--wait-quiet 10m" in error.hint
    assert "--max-time 3m" in error.hint
