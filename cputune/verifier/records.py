"""What a verification is given and has seen: artefacts, checks, and their evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
    """One thing that was looked at, in the words of whoever reads the report.

    ``rank`` is the global rank that saw it, None where it belongs to no rank.
    ``expected`` is None where there was nothing to compare with.
    """

    what: str
    seen: str
    expected: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One question to a consumer, and its answer.

    Attributes:
        name: short and stable, for people and for ``--json``: "syntax", "affinity", ...
        state: passed, failed or not checked; a check is never passed in silence.
        consumer: who answered: "bash 5.2", "mpirun (Open MPI) 5.0.11", ...
        summary: one sentence.
        evidence: what was seen, by rank where there are ranks.
        remedy: for what was not checked the command that makes it possible; for what
            failed what to do, where that is known.
        left_out: that it is no part of what was asked for, and does not count.
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

    ``steps`` optimizer steps of the launch were timed, ``delayed_steps`` waited for a CPU;
    both figures are samples per second.
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
        """Failed where a check failed, else not checked where one was not, else passed."""
        states = {check.state for check in self.checks if not check.left_out}
        if FAILED in states:
            return FAILED
        return NOT_CHECKED if NOT_CHECKED in states or not states else PASSED

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
    """What a launch is held against, and how it is tried.

    Attributes:
        plan: what the ranks must show.
        steps: optimizer steps that a launch is run for, warm-up included.
        timeout_seconds: how long one launch may take before it is ended.
        run: whether launches are run at all, or documents only read.
        ssh: the words that reach a host.
        submit: whether a batch job may be handed to Slurm.
    """

    plan: Plan
    steps: int = 12
    timeout_seconds: float = 300.0
    run: bool = True
    ssh: tuple[str, ...] = ("ssh",)
    submit: bool = False


Answer: TypeAlias = "Iterator[Outcome | Ratio]"
"""What a consumer says of an artefact, and how fast a launch of it was."""


def judged(
    name: str,
    consumer: str | None,
    faults: Sequence[Evidence],
    good: str,
    evidence: Sequence[Evidence] = (),
    *,
    wrong: str | None = None,
) -> Outcome:
    """A check that fails where there are faults. ``good`` sums up that there is none, ``wrong``
    (the first fault without it) that there are; ``evidence`` is what else was seen.
    """
    summary = (wrong or faults[0].seen) if faults else good
    return Outcome(
        name=name,
        state=FAILED if faults else PASSED,
        consumer=consumer,
        summary=summary,
        evidence=tuple(evidence or faults),
    )


def not_checked(
    name: str,
    why: str,
    remedy: str | None = None,
    consumer: str | None = None,
    evidence: Sequence[Evidence] = (),
    *,
    left_out: bool = False,
) -> Outcome:
    """The check that could not be made, or was ``left_out``, and what makes it possible."""
    return Outcome(
        name=name,
        state=NOT_CHECKED,
        summary=why,
        remedy=remedy,
        consumer=consumer,
        evidence=tuple(evidence),
        left_out=left_out,
    )


def not_installed(name: str, consumer: str, install: str) -> Outcome:
    """The check that could not be made for want of its consumer."""
    why = f"{consumer} is not installed, so this was not looked at"
    return not_checked(name, why, install, consumer)
