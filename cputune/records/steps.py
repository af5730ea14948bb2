"""The seam between the tuner and whatever runs a plan: real processes, a model, a table.

Nothing in the tuner may know which of them it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from cputune.plans.plan import Plan
from cputune.plans.workload import Workload

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
        size: how many numbers the batches of a rank held, of the one with the most; 0 where that
            is not known. Of batches of unlike length it tells which steps have more to do.
    """

    seconds: float
    samples: int
    loss: float | None = None
    delayed_seconds: float = 0.0
    size: int = 0

    @property
    def delayed(self) -> bool:
        """Whether others kept it waiting so long that its time says nothing of the plan."""
        return self.delayed_seconds > DELAYED_SHARE * self.seconds


class Runner(Protocol):
    """Runs one plan at a time: all that the tuner needs.

    ``steps`` starts the plan and yields its steps for as long as it is read; closing the
    iterator ends the trial and everything it started. It raises ``TrialError`` where the
    plan fails. A runner that knows more says so by the methods of the protocols below.
    """

    def steps(self, plan: Plan) -> Iterator[Step]:
        """Start the plan and yield its optimizer steps, endlessly."""
        ...


@runtime_checkable
class ObservingRunner(Runner, Protocol):
    """A runner that also knows what the ranks of its last trial saw."""

    def observed(self) -> tuple[Mapping[str, Any], ...]:
        """One mapping of plain JSON values for each rank; empty before the first step."""
        ...


@runtime_checkable
class LearningRunner(Runner, Protocol):
    """A runner that learns from its trials what a script trains, and is fed with."""

    @property
    def workload(self) -> Workload:
        """The workload, with what the trials have shown of it filled in."""
        ...

    @property
    def data(self) -> str | None:
        """What the last trial was fed with, in words; None before its first step."""
        ...


@runtime_checkable
class AskingRunner(LearningRunner, Protocol):
    """A runner that can ask the model of today's launch what plans would make of its batches."""

    def ask(self, questions: Sequence[str] = ...) -> None:
        """Start today's launch once more, unmeasured; ``workload`` then has the answers.

        Without questions nothing is started, and ranks stay as typed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalEnd:
    """How the whole script, shortened, has ended with a plan.

    Attributes:
        failed: why the plan must not be used; empty if it may be.
        compared: what was compared with your current launch: "files", "keys", "metrics".
        not_run: why it was not run; empty if it was.
    """

    failed: str = ""
    compared: tuple[str, ...] = ()
    not_run: str = ""


@runtime_checkable
class RehearsingRunner(Runner, Protocol):
    """A runner that can run a whole script with a plan, shortened to a few steps."""

    def rehearse(self, plan: Plan, seconds: float) -> RehearsalEnd | None:
        """How the whole script ends with a plan of another number of ranks.

        It takes ``seconds`` at most. None: there is nothing to rehearse.
        """
        ...


class Living(Protocol):
    """A plan that lives beside others, and stands still while they have their turns."""

    def turn(self, steps: int) -> Sequence[Step]:
        """Let it take so many steps, then stop it."""
        ...

    def close(self) -> None:
        """End it, and all that it has started."""
        ...


@runtime_checkable
class ProfilingLiving(Living, Protocol):
    """A plan that lives, and can tell where the time of its steps goes."""

    def profile(self) -> Sequence[Mapping[str, Any]]:
        """What each rank tells of some more steps (``cputune.inside.messages.Profiled``).

        Raises ``TrialError`` where the plan fails, and ``TimeUp``.
        """
        ...


@runtime_checkable
class KeepingRunner(Runner, Protocol):
    """A runner that can leave alive what was read."""

    def keep(self) -> Living | None:
        """The plan whose steps are being read, now stopped: closing them does not end it.

        None where that cannot be.
        """
        ...


@runtime_checkable
class LivingRunner(Runner, Protocol):
    """A runner that can let several plans live at once."""

    def living(self, plan: Plan) -> Living:
        """The plan in processes of its own. ``turn`` raises ``TrialError`` where it fails.

        Of a ``PunctualRunner`` it raises ``TimeUp`` too.
        """
        ...


@runtime_checkable
class PunctualRunner(Runner, Protocol):
    """A runner that waits for a step no longer than there is time."""

    def keep_to(self, seconds_left: Callable[[], float]) -> None:
        """From now on, end the steps by ``TimeUp`` where no time is left to wait for the next.

        A step that follows others may take as long as the slowest of them, and is waited for.
        """
        ...


@runtime_checkable
class PatientRunner(Runner, Protocol):
    """A runner that can be told how long a plan may take to its first step."""

    def start_within(self, seconds: float) -> None:
        """From now on, a plan that has no first step after so long ends by ``TimedOut``."""
        ...


BEFORE_ITS_FIRST_STEP = "before its first step"


class TimeUp(Exception):  # noqa: N818
    """The time that was given was up; ``str()`` says during what: "while importing torch"."""


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
"""Why a trial gives no number, in one word for machines."""


class TrialError(Exception):
    """A trial that gives no number, and why.

    Attributes:
        details: the last lines of what the script wrote.
        hopeless: the script is the cause, and no plan will change that.
    """

    kind: FailureKind = "failed"

    def __init__(self, reason: str, *, details: str | None = None, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.details = details
        self.hopeless = hopeless

    def cleaned(self, clean: Callable[[str], str]) -> None:
        """Pass what is said through ``clean``."""
        self.args = (clean(str(self)),)
        self.details = None if self.details is None else clean(self.details)


class Infeasible(TrialError):  # noqa: N818
    """The plan cannot run here as asked: the state in the ranks is not the plan's."""

    kind: FailureKind = "infeasible"


class Crashed(TrialError):  # noqa: N818
    """A rank died; ``details`` is the tail of its stderr."""

    kind: FailureKind = "crashed"


class OutOfMemory(Crashed):
    """A rank was killed for memory, or said that it could not have any."""

    kind: FailureKind = "out of memory"


class TimedOut(TrialError):  # noqa: N818
    """No step came for too long."""

    kind: FailureKind = "timed out"


class HostLost(TrialError):  # noqa: N818
    """A host on which ranks ran is not reached any more; ``name`` is what it was named."""

    kind: FailureKind = "host lost"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} was lost: {reason}")
        self.name, self._reason = name, reason

    def __reduce__(self) -> tuple[type[HostLost], tuple[str, str]]:
        return HostLost, (self.name, self._reason)


class NoMeasurement(TrialError):  # noqa: N818
    """The job ended well, but before enough steps were seen."""

    kind: FailureKind = "no measurement"


class Contended(TrialError):  # noqa: N818
    """Something else on the machine delayed the steps, again and again."""

    kind: FailureKind = "contended"


class Diverged(TrialError):  # noqa: N818
    """The loss is not what the fp32 run with the same seed and data gave."""

    kind: FailureKind = "diverged"
