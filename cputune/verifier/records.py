"""What a verification is given and has seen: artefacts, checks, and their evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cputune.emitters.promise import Promise
from cputune.plans.plan import Plan

State = Literal["passed", "failed", "not checked"]
PASSED: Final = "passed"
FAILED: Final = "failed"
NOT_CHECKED: Final = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was checked, for the reader of the report.

    ``rank`` is the global rank that saw it, None if it belongs to no rank. ``expected``: None if
    there was nothing to compare with.
    """

    what: str
    seen: str
    expected: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One question to a consumer, and its answer.

    Attributes:
        name: short and stable: "syntax", "affinity", ...
        state: passed, failed or not checked.
        consumer: what answered: "bash 5.2", "mpirun (Open MPI) 5.0.11", ...
        evidence: what was seen, by rank if there are ranks.
        remedy: for what was not checked the command that makes it possible; for what failed what
            to do, if that is known.
        left_out: it was not requested, and does not count.
    """

    name: str
    state: State
    summary: str
    consumer: str | None = None
    evidence: tuple[Evidence, ...] = ()
    remedy: str | None = None
    left_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Throughput of the launch over the tuned one's, with a 95 % interval.

    ``steps`` optimizer steps were timed, ``delayed_steps`` waited for a CPU.
    """

    ratio: float
    low: float
    high: float
    measured: float
    tuned: float
    steps: int
    delayed_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Everything that was seen of one artefact (a file, with the files it needs)."""

    path: str
    format: str
    checks: tuple[Outcome, ...]
    throughput: Ratio | None = None

    @property
    def state(self) -> State:
        """Failed if a check failed, else not checked if one was not, else passed."""
        states = {check.state for check in self.checks if not check.left_out}
        if FAILED in states:
            return FAILED
        if NOT_CHECKED in states or not states:
            return NOT_CHECKED
        return PASSED

    def to_json(self) -> dict[str, object]:
        """A mapping of plain JSON values."""
        return {"state": self.state, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A file that ``emit`` wrote, with its text as it was read."""

    path: Path
    format: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Promise):
    """What a launch is compared with, and how it is tried.

    Attributes:
        steps: optimizer steps of a launch, warm-up included.
        timeout_seconds: time limit of one launch.
        run: whether launches are run, or documents only read.
        ssh: the words that reach a host.
        submit: whether a batch job may be given to Slurm.
        outer: the variables that the launch is started with.
    """

    plan: Plan
    steps: int = 12
    timeout_seconds: float = 300.0
    run: bool = True
    ssh: tuple[str, ...] = ("ssh",)
    submit: bool = False
    outer: Mapping[str, str] = field(default_factory=dict)


# The checks of a consumer, and how fast a launch was.
Answer: TypeAlias = "Iterator[Outcome | Ratio]"


def judged(
    name: str,
    consumer: str | None,
    faults: Sequence[Evidence],
    good: str,
    evidence: Sequence[Evidence] = (),
    *,
    wrong: str | None = None,
) -> Outcome:
    """A check that fails if there are faults. ``good`` is its summary without faults, ``wrong``
    (default: the first fault) with them.
    """
    if faults:
        summary = wrong or faults[0].seen
    else:
        summary = good
    return Outcome(
        name=name,
        state=FAILED if faults else PASSED,
        consumer=consumer,
        summary=summary,
        evidence=tuple(evidence or faults),
    )


def not_checked(
    name: str,
    reason: str,
    remedy: str | None = None,
    consumer: str | None = None,
    evidence: Sequence[Evidence] = (),
    *,
    left_out: bool = False,
) -> Outcome:
    """A check that could not be made, or was ``left_out``, and what makes it possible."""
    return Outcome(
        name=name,
        state=NOT_CHECKED,
        summary=reason,
        remedy=remedy,
        consumer=consumer,
        evidence=tuple(evidence),
        left_out=left_out,
    )


def not_installed(name: str, consumer: str, install: str) -> Outcome:
    """A check that could not be made because its consumer is not installed."""
    reason = f"{consumer} is not installed, so this was not checked"
    return not_checked(name, reason, install, consumer)
