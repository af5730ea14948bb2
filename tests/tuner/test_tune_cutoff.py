"""What is said of a trial that the end of the time has cut short."""

from __future__ import annotations

from dataclasses import replace

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


def test_it_says_when_and_whether_others_delayed_runs_before() -> None:
    one = cut(9.4, 2, 5.0, samples=8)
    assert one.note() == f"Trial 3 ({PLANS[0].describe()}) was cut short after 2 steps."
    assert str(one.error()).endswith("had a speed to compare with: after 2 steps")
    assert "while importing torch" in str(cut(9.4).error())
    assert "--wait-quiet" not in str(one.error().hint)
    assert "--wait-quiet 10m" in str(replace(one, delayed_runs=2).error().hint)
