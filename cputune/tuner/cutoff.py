"""A trial in which the time that was given was up, and what is known of it all the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cputune.errors import NoValidTrialError
from cputune.figures import figure
from cputune.plan import Plan
from cputune.result import TIME_UP
from cputune.tuner.reading import Run, count_of_steps

_WORTHWHILE = 6
"""A study that compares anything takes about as long as so many trials of today's launch."""

_STEPS = 8
"""Steps of a trial that is read to its end, warm-up among them, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """The trial that was running when the time was up.

    ``when`` says during what: "after 2 steps", "while importing torch". ``startup_seconds``
    went by before its first step began, as far as it began.
    """

    number: int
    plan: Plan
    when: str
    run: Run
    startup_seconds: float

    def note(self) -> str:
        """For a result: what became of the trial."""
        return f"Trial {self.number} ({self.plan.describe()}) was cut short: {self._known()}."

    def error(self) -> NoValidTrialError:
        """For a study of which this was the first trial, and which has no number."""
        return NoValidTrialError(
            f"{TIME_UP} {self.when} of today's launch, before it had a speed to compare with"
            if self.run.steps
            else f"{TIME_UP} before today's launch made a step: {self._known()}",
            details=self._known() if self.run.steps else None,
            hint=f"give it more: --max-time {self._enough()}",
        )

    def _known(self) -> str:
        start = f"it started for {self.startup_seconds:.0f} s"
        if not self.run.steps:
            return f"{start}, and the time was up {self.when}"
        each = self.run.step_seconds / self.run.steps
        samples = f" of {self.run.samples} samples" if self.run.samples else ""
        return (
            f"{start}, then made {count_of_steps(self.run.steps)}{samples} in "
            f"{figure(each)} s each, and the first steps of a run are slower than the rest"
        )

    def _enough(self) -> str:
        """A time in which a study can compare something, in whole minutes."""
        each = self.run.step_seconds / self.run.steps if self.run.steps else 0.0
        trial = self.startup_seconds + _STEPS * each
        return f"{max(1, math.ceil(_WORTHWHILE * trial / 60))}m"
