"""What a study tells the one who watches it, in the order that it happens.

The same events are logged as ``cputune.events``, for programs that keep logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cputune.log import log
from cputune.plan import Plan
from cputune.result import PRUNED, ConfirmRun, Origin, Result, Trial
from cputune.text import figure
from cputune.tuner.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStarted:
    """The space is known, now that trial 0 (the baseline) has shown the job.

    ``resumed`` trials were on record, that one among them. ``start_seconds`` is what today's launch
    took until its first step; None where it was not run. All is over after ``most_seconds`` since
    the start of the command; None where that is not limited.
    """

    space: SearchSpace
    budget: int
    resumed: int = 0
    start_seconds: float | None = None
    most_seconds: float | None = None


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


_LOG = log.getChild("events")


def logged(on_event: OnEvent | None) -> OnEvent:
    """The listener, behind one that logs: steps and beginnings at DEBUG, the rest at INFO."""

    def hear(event: Event) -> None:
        level = (
            logging.DEBUG if isinstance(event, (StepTaken, TrialStarted, Said)) else logging.INFO
        )
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "%s", in_words(event))
        if on_event is not None:
            on_event(event)

    return hear


def in_words(event: Event) -> str:
    """One line for an event."""
    match event:
        case Waiting(owner=owner):
            return f"waiting for {owner}"
        case Disturbed(neighbours=neighbours):
            return f"not quiet: {'; '.join(neighbours)}"
        case Said(text=text):
            return text
        case StudyStarted(budget=budget, resumed=resumed):
            return f"study of {budget} trials, {resumed} of them on record"
        case TrialStarted(number=number, plan=plan, origin=origin):
            return f"trial {number} begins, from {origin}: {plan.describe()}"
        case StepTaken(number=None, index=index, seconds=seconds):
            return f"confirmation: step {index}, {seconds:.4g} s"
        case StepTaken(number=number, index=index, seconds=seconds):
            return f"trial {number}: step {index}, {seconds:.4g} s"
        case TrialRepeated(number=number, reason=reason):
            return f"trial {number} is run again: {reason}"
        case TrialEnded(trial=trial):
            return f"trial {trial.number} {trial.state}: {_outcome(trial)}"
        case ConfirmStarted(plans=plans):
            return f"{len(plans)} plans are measured again, side by side"
        case ConfirmRun():
            return f"round {event.round} of the confirmation: {_outcome(event)}"
        case StudyEnded(result=result):
            return f"study ended after {len(result.trials)} trials"


def _outcome(run: Trial | ConfirmRun) -> str:
    rate = run.samples_per_second
    if isinstance(run, Trial) and run.state == PRUNED:
        most = run.at_most_samples_per_second
        bound = "" if most is None else f"at most {figure(most, 4)} samples/s, "
        return f"{bound}{run.reason}"
    return run.reason or "" if rate is None else f"{figure(rate.median, 4)} samples/s"
