"""What a study has found so far, and whether others have disturbed it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cputune.plan import Plan
from cputune.result import ConfirmRun, Trial, Worth
from cputune.steps import Contended
from cputune.tuner.confirm import Contender
from cputune.tuner.cutoff import CutOff


@dataclass(slots=True, kw_only=True)
class Findings:
    """What a study has found so far.

    ``turns`` are those of the confirmation, ``delayed_turns`` those that others delayed.
    ``believed``: the confirmation has counted steps that others delayed, since it was asked to.
    ``cut_off`` is the trial that the end of the time has cut short. ``stand_in`` is the plan
    that is compared with where the baseline did not run; ``fallen`` are candidates that failed
    in the confirmation. ``compile_seconds`` is the longest that torch.compile has taken.
    """

    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exhausted: bool = False
    never_quiet: bool = False
    saw_quiet: bool = False
    contended_runs: int = 0
    turns: int = 0
    delayed_turns: int = 0
    believed: bool = False
    samples_per_step: int | None = None
    compile_seconds: float = 0.0
    data: str | None = None
    cut_off: CutOff | None = None
    stand_in: Plan | None = None
    baseline: Contender | None = None
    rivals: list[Contender] = field(default_factory=list)
    fallen: list[Contender] = field(default_factory=list)
    confirm_runs: list[ConfirmRun] = field(default_factory=list)
    worth: tuple[Worth, ...] = ()


def is_disturbed(findings: Findings) -> bool:
    """Whether others delayed most of what a claim would rest on."""
    if findings.turns:
        return 2 * findings.delayed_turns > findings.turns
    if findings.confirm_runs:
        contended = [run for run in findings.confirm_runs if _is_contended(run.reason)]
        return findings.believed or 2 * len(contended) > len(findings.confirm_runs)
    return findings.never_quiet


def how_disturbed(findings: Findings) -> str:
    """The same in words."""
    if findings.turns:
        return f"other processes delayed {findings.delayed_turns} of {findings.turns} turns"
    return "other processes delayed most steps, again and again"


def _is_contended(reason: str | None) -> bool:
    return (reason or "").startswith(Contended.kind)
