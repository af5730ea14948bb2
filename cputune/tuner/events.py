"""What a study tells the one who watches it, in the order that it happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cputune.plan import Plan
from cputune.result import ConfirmRun, Origin, Result, Trial
from cputune.tuner.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStarted:
    """The space is known, now that trial 0 (the baseline) has shown the job.

    ``resumed`` trials were on record, that one among them.
    """

    space: SearchSpace
    budget: int
    resumed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """``owner`` measures on this machine; the study begins when that has ended."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """Others compute on this machine, in words; ``waiting`` until they do not."""

    neighbours: tuple[str, ...]
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The runner says in words what it is doing."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A plan is about to be run; ``origin`` says who proposed it."""

    number: int
    plan: Plan
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """An optimizer step, from 0; ``seconds`` of the whole job.

    ``number`` is the trial's, or None in the confirmation.
    """

    number: int | None
    index: int
    seconds: float
    delayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRepeated:
    """Other processes delayed the trial, so it is run again."""

    number: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial with its number, or the reason why it has none."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmStarted:
    """The baseline and the best plans are about to be measured again, side by side."""

    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnded:
    """The study is over."""

    result: Result


Event = (
    Waiting
    | Disturbed
    | StudyStarted
    | Said
    | TrialStarted
    | StepTaken
    | TrialRepeated
    | TrialEnded
    | ConfirmStarted
    | ConfirmRun
    | StudyEnded
)
OnEvent = Callable[[Event], None]
