"""The interface between the tuner and whatever runs a plan: processes, a model, or recorded
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from cputune.plans.plan import Plan
from cputune.plans.workload import Workload

# A step is delayed if a thread waited for a CPU during this share of it. Measured: 0.003 on a
# quiet machine, 0.48 next to one busy process.
DELAYED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of the whole job, over all ranks.

    Attributes:
        seconds: wall time from the end of the previous step, of the slowest rank.
        samples: of all ranks together.
        loss: averaged over the ranks. None if it was not reported.
        delayed_seconds: how long the most delayed thread of any rank was runnable but not
            running because of other processes (``/proc/PID/task/*/schedstat``, second field).
            Waiting for threads of the same rank is not counted.
        size: numbers in the largest batch of a rank, 0 if not known; batches of different
            lengths have different work.
    """

    seconds: float
    samples: int
    loss: float | None = None
    delayed_seconds: float = 0.0
    size: int = 0

    @property
    def delayed(self) -> bool:
        """True if others delayed it so much that its time says nothing about the plan."""
        return self.delayed_seconds > DELAYED_SHARE * self.seconds


class Runner(Protocol):
    """Runs one plan at a time. This is all that the tuner needs.

    Closing the iterator ends the trial and everything that it started. It raises ``TrialError`` if
    the plan fails. A runner that can do more implements the protocols below.
    """

    def steps(self, plan: Plan) -> Iterator[Step]: ...


@runtime_checkable
class ObservingRunner(Runner, Protocol):
    """A runner that also has the reports of the ranks of its last trial."""

    def observed(self) -> tuple[Mapping[str, Any], ...]:
        """One mapping of plain JSON values per rank of the last trial. Empty before the first
        step.
        """
        ...


@runtime_checkable
class LearningRunner(Runner, Protocol):
    """A runner that learns from its trials what a script trains, and on which data."""

    @property
    def workload(self) -> Workload: ...

    @property
    def data(self) -> str | None:
        """The data of the last trial in words. None before its first step."""
        ...


@runtime_checkable
class CheckingRunner(LearningRunner, Protocol):
    """A runner that can check with the model of your launch whether plans are equivalent."""

    def check_model(self, questions: Sequence[str] = ...) -> None:
        """Start your current launch once more, unmeasured; ``workload`` then has the answers."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalEnd:
    """How the whole script, shortened, has ended with a plan.

    Attributes:
        failed: why the plan must not be used; empty if it may be.
        compared: what was compared with your current launch: "files", "keys", "metrics".
        not_run: why it was not run.
    """

    failed: str = ""
    compared: tuple[str, ...] = ()
    not_run: str = ""


@runtime_checkable
class RehearsingRunner(Runner, Protocol):
    """A runner that can run a whole script with a plan, shortened to a few steps."""

    def rehearse(self, plan: Plan, seconds: float) -> RehearsalEnd | None:
        """Run a whole script, shortened, with a plan of another number of ranks.

        It takes at most ``seconds``. None: there is nothing to rehearse.
        """
        ...


class Living(Protocol):
    """A started plan, which is stopped while others have their turns."""

    def turn(self, steps: int) -> Sequence[Step]: ...

    def close(self) -> None: ...


@runtime_checkable
class ReportingLiving(Living, Protocol):
    """A started plan that also has the reports of its ranks."""

    def reports(self) -> tuple[Mapping[str, Any], ...]:
        """As ``ObservingRunner.observed``; also after it was closed."""
        ...


@runtime_checkable
class ProfilingLiving(Living, Protocol):
    """A started plan that can be profiled."""

    def profile(self) -> Sequence[Mapping[str, Any]]:
        """The report of each rank (``cputune.inside.messages.Profiled``) on some more steps.

        Raises ``TrialError`` if the plan fails, and ``TimeUp``.
        """
        ...


@runtime_checkable
class KeepingRunner(Runner, Protocol):
    """A runner that can keep the processes of a trial for the comparison."""

    def keep(self) -> Living | None:
        """Stop the plan whose steps are being read and return it, or None: closing the steps
        does not end it.
        """
        ...


@runtime_checkable
class LivingRunner(Runner, Protocol):
    """A runner that can have several plans started at once."""

    def living(self, plan: Plan) -> Living:
        """Start a plan in new processes. ``turn`` raises ``TrialError``, and ``TimeUp`` with a
        ``PunctualRunner``.
        """
        ...


@runtime_checkable
class PunctualRunner(Runner, Protocol):
    """A runner that waits for a step no longer than the time limit allows."""

    def keep_to(self, seconds_left: Callable[[], float]) -> None:
        """From now on, raise ``TimeUp`` instead of waiting for a step if no time is left.

        A step that follows others is waited for, as long as the slowest of them took.
        """
        ...


@runtime_checkable
class PatientRunner(Runner, Protocol):
    """A runner with a limit on the time until a plan's first step."""

    def start_within(self, seconds: float) -> None:
        """From now on, end a plan with ``TimedOut`` if it has no first step after ``seconds``."""
        ...


BEFORE_ITS_FIRST_STEP = "before its first step"
# Reported of a launch that waited: more time would not help.
NOTHING_COMPUTED = "nothing was computed"


class TimeUp(Exception):  # noqa: N818
    """The time limit was reached. ``str()`` says during what: "while importing torch"."""


# Why a trial gives no number.
FailureKind = Literal[
    "infeasible",
    "crashed",
    "out of memory",
    "timed out",
    "no measurement",
    "contended",
    "diverged",
    "host lost",
    "failed",
]


class TrialError(Exception):
    """A trial that gives no number, and why.

    Attributes:
        details: the last lines of the script's output.
        hopeless: the script is the cause, so every plan would fail.
    """

    kind: FailureKind = "failed"

    def __init__(self, reason: str, *, details: str | None = None, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.details = details
        self.hopeless = hopeless

    def cleaned(self, clean: Callable[[str], str]) -> None:
        """Pass reason and details through ``clean``."""
        self.args = (clean(str(self)),)
        if self.details is not None:
            self.details = clean(self.details)


class Infeasible(TrialError):  # noqa: N818
    """The plan cannot run here: what the ranks report differs from it."""

    kind: FailureKind = "infeasible"


class Crashed(TrialError):  # noqa: N818
    """A rank died. ``details`` is the end of its stderr."""

    kind: FailureKind = "crashed"


class OutOfMemory(Crashed):
    """A rank was killed for memory, or reported that an allocation failed."""

    kind: FailureKind = "out of memory"


class TimedOut(TrialError):  # noqa: N818
    kind: FailureKind = "timed out"


class HostLost(TrialError):  # noqa: N818
    """A host of the ranks can no longer be reached. ``name`` is as given by the user."""

    kind: FailureKind = "host lost"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} was lost: {reason}")
        self.name, self._reason = name, reason

    def __reduce__(self) -> tuple[type[HostLost], tuple[str, str]]:
        return HostLost, (self.name, self._reason)


class NoMeasurement(TrialError):  # noqa: N818
    """The job ended before enough steps were measured."""

    kind: FailureKind = "no measurement"


class Contended(TrialError):  # noqa: N818
    """Other processes delayed the steps again and again."""

    kind: FailureKind = "contended"


class Diverged(TrialError):  # noqa: N818
    """The loss differs from that of the fp32 run with the same seed and data."""

    kind: FailureKind = "diverged"
