"""What a verification has seen: checks with their evidence, put together for each artefact."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

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
    """

    name: str
    state: State
    summary: str
    consumer: str | None = None
    evidence: tuple[Evidence, ...] = ()
    remedy: str | None = None


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
        states = {check.state for check in self.checks}
        if FAILED in states:
            return FAILED
        return NOT_CHECKED if NOT_CHECKED in states or not states else PASSED

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values."""
        return {"state": self.state, **asdict(self)}
