"""The events of a study in the log of ``cputune.events``: for programs that keep logs."""

from __future__ import annotations

import logging

from cputune.figures import figure
from cputune.log import log
from cputune.result import PRUNED, ConfirmRun, Trial
from cputune.tuner.events import (
    ConfirmStarted,
    Disturbed,
    Event,
    OnEvent,
    Said,
    StepTaken,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    TrialRepeated,
    TrialStarted,
    Waiting,
)

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
