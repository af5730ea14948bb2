"""The seam between the tuner and whatever runs a plan: real processes, a model, a table.

Nothing else in ``tune/`` may know which of them it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cputune.plan import Plan

DELAYED_SHARE = 0.1
"""A step is delayed where a thread waited this share of it for a CPU: 0.003 in quiet
times, 0.48 beside one busy neighbour."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of the whole job, over all its ranks.

    Attributes:
        seconds: wall time from the end of the step before to the end of this one,
            the slowest rank's.
        samples: samples that all ranks together took.
        loss: the loss that was reported, averaged over ranks; None where there is none.
        delayed_seconds: how long the most delayed thread of any rank was runnable but
            not running during this step (``/proc/PID/task/*/schedstat``, second field),
            because of others: what a rank's own threads do to each other is the plan's.
    """

    seconds: float
    samples: int
    loss: float | None = None
    delayed_seconds: float = 0.0

    @property
    def delayed(self) -> bool:
        """Whether others kept it waiting so long that its time says nothing of the plan."""
        return self.delayed_seconds > DELAYED_SHARE * self.seconds


class Runner(Protocol):
    """Runs one plan at a time.

    ``steps`` starts the plan and yields its steps for as long as it is read; closing the
    iterator ends the trial and everything it started. It raises ``TrialError`` where the
    plan fails. A runner may also offer ``observed() -> tuple[Mapping, ...]``, what the
    ranks of the last trial saw, and ``close()``.
    """

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Start the plan and yield its optimizer steps, endlessly."""
        ...


class TrialError(Exception):
    """A trial that gives no number, and why. ``kind`` is the word for machines."""

    kind = "failed"

    def __init__(self, reason: str, *, details: str | None = None, **context: Any) -> None:
        super().__init__(reason)
        self.details = details
        self.context = context


class Infeasible(TrialError):  # noqa: N818
    """The plan cannot run here as asked: the state in the ranks is not the plan's."""

    kind = "infeasible"


class Crashed(TrialError):  # noqa: N818
    """A rank died; ``details`` is the tail of its stderr."""

    kind = "crashed"


class OutOfMemory(Crashed):
    """A rank was killed for memory, or said that it could not have any."""

    kind = "out of memory"


class TimedOut(TrialError):  # noqa: N818
    """No step came for too long."""

    kind = "timed out"


class NoMeasurement(TrialError):  # noqa: N818
    """The job ended well, but before enough steps were seen."""

    kind = "no measurement"


class Contended(TrialError):  # noqa: N818
    """Something else on the machine delayed the steps, again and again."""

    kind = "contended"


class Diverged(TrialError):  # noqa: N818
    """The loss is not what the fp32 run with the same seed and data gave."""

    kind = "diverged"
