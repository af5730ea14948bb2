"""The events of a study, in their order. They are also logged as ``cputune.events``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cputune.plans.plan import Plan
from cputune.records.result import FAILED, PRUNED, ConfirmRun, Origin, Result, Trial
from cputune.records.shared_texts import exactly
from cputune.text.log import log
from cputune.text.plain import count, figure, visible
from cputune.tuner.reading import count_of_steps
from cputune.tuner.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStarted:
    """The space is known, because trial 0 (the baseline) has shown the job.

    ``resumed`` trials were on record. ``start_seconds`` is how long the baseline took until its
    first step; None if it was not run. The study ends at most ``most_seconds`` after the start of
    the command; None: no limit.
    """

    space: SearchSpace
    budget: int
    resumed: int = 0
    start_seconds: float | None = None
    most_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Progress in words; ``warns``: something may make the study long, or its numbers false."""

    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A plan is about to run; ``origin`` says what proposed it."""

    number: int
    plan: Plan
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """An optimizer step, from 0; ``seconds`` of the whole job. ``number``: None in the
    confirmation.
    """

    number: int | None
    index: int
    seconds: float
    delayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial with its number, or the reason why it has none."""

    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmStarted:
    """The baseline and the best plans are about to be measured again, side by side."""

    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSoFar:
    """How many times as fast a plan is as the baseline so far, with the 95 % interval."""

    plan: Plan
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def is_known(self) -> bool:
        """Whether the interval means anything: its ends are within a factor of two."""
        return self.high < 2 * self.low

    @property
    def as_text(self) -> str:
        """The ratio and its interval; empty while they mean nothing."""
        after = f"after {self.pairs} rounds: {self.plan.short()}"
        if not self.is_known:
            return f"compared with your current launch, not decided yet {after}"
        interval = f"{self.ratio:.2f} ({self.low:.2f}–{self.high:.2f})"
        return f"{interval} times as fast as your current launch {after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnded:
    result: Result


Event = (
    StudyStarted
    | Message
    | TrialStarted
    | StepTaken
    | TrialEnded
    | ConfirmStarted
    | ConfirmRun
    | ComparisonSoFar
    | StudyEnded
)
OnEvent = Callable[[Event], None]


# A start that takes longer is reported.
LONG_START_SECONDS = 10.0

_LOG = log.getChild("events")


def logged(on_event: OnEvent | None) -> OnEvent:
    """A listener that also logs: steps and beginnings at DEBUG, the rest at INFO."""

    def log_and_pass_on(event: Event) -> None:
        if is_in_passing(event):
            level = logging.DEBUG
        else:
            level = logging.INFO
        if _LOG.isEnabledFor(level):
            _LOG.log(level, "%s", as_text(event))
        if on_event is not None:
            on_event(event)

    return log_and_pass_on


def is_in_passing(event: Event) -> bool:
    """Whether an event is logged at DEBUG and not shown as a line in a terminal."""
    aside = isinstance(event, Message) and not event.warns
    return aside or isinstance(event, (StepTaken, TrialStarted, ComparisonSoFar))


def waiting_for(owner: str) -> str:
    """The message while another process measures on this machine."""
    return (
        f"waiting for {owner}, which measures on this machine (for another user ten "
        "minutes at most; --share-machine does not wait)"
    )


def as_text(event: Event) -> str:
    """One line for an event, in a terminal and in a log."""
    match event:
        case Message(text=text):
            return text
        case StudyStarted():
            return _beginning(event)
        case TrialStarted(number=number, plan=plan, origin=origin):
            return f"trial {number} begins, from {origin}: {plan.short()}"
        case StepTaken(number=number, index=index, seconds=seconds):
            of = "confirmation" if number is None else f"trial {number}"
            return f"{of}: step {index}, {seconds:.4g} s"
        case TrialEnded(trial=trial):
            return f"trial {trial.number}: {outcome(trial)}  {trial.plan.short()}"
        case ConfirmStarted(plans=plans):
            return f"measuring {len(plans)} plans again, side by side"
        case ConfirmRun(samples_per_second=rate):
            shown = event.reason if rate is None else f"{figure(rate.centre)} samples/s"
            return f"round {event.round + 1}: {shown}  {event.plan.short()}"
        case ComparisonSoFar():
            return event.as_text
        case StudyEnded(result=result):
            return f"study ended after {len(result.trials)} trials"


def _beginning(event: StudyStarted) -> str:
    text = f"{len(event.space)} plans, at most {event.budget} trials"
    if event.most_seconds is not None:
        text += f" and {exactly(event.most_seconds)}"
    if event.resumed:
        text += f", {count(event.resumed, 'trial')} on record"
    each = event.start_seconds or 0.0
    if each >= LONG_START_SECONDS:
        text += f"; each start takes {each:.0f} s"
    return f"{text}; {_widest(event.space).legend()}"


def _widest(space: SearchSpace) -> Plan:
    """A plan with the most ranks, whose short name is explained."""
    return max(space.plans(), key=lambda plan: plan.processes_per_node)


def most_trials(space: SearchSpace, budget: int) -> int:
    """How many trials a study has at most, including the baseline."""
    return min(budget, len(space) + 1)


def outcome(trial: Trial) -> str:
    """The outcome of a trial, in few words."""
    if trial.state == FAILED:
        reason = visible((trial.reason or "").split("\n")[0])
        kind = trial.kind or FAILED
        if reason:
            return f"{kind}: {reason}"
        return kind
    rate = trial.samples_per_second
    if trial.cut_short:
        return f"cut short: {trial.reason}"
    if trial.state == PRUNED:
        return f"stopped after {count_of_steps(trial.steps)}: most likely slower"
    if rate is None:
        return "not measured"
    return f"{figure(rate.centre)} samples/s"
