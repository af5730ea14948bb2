"""A study for people: progress while it runs, the table at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cputune.plans.knobs import TODAY
from cputune.plans.knobs.record import in_words as knob_words
from cputune.records.result import COMPLETED, FAILED, PRUNED, Measured, Result, Throughput, Trial
from cputune.report.writing import Block, Heading, Labelled, Lines, Rows
from cputune.text.plain import figure
from cputune.tuner.events import (
    Event,
    Message,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    in_words,
    is_in_passing,
    outcome,
)
from cputune.tuner.reading import count_of_steps

if TYPE_CHECKING:
    from cputune.tuner.space import SearchSpace


def line_of(event: Event) -> str | None:
    """One line for an event, or None for one that is not worth a line of its own."""
    hidden = is_in_passing(event) or isinstance(event, StudyEnded)
    return None if hidden else in_words(event)


def is_kept(event: Event) -> bool:
    """Whether its line stays above the live view: what failed, and what warns."""
    if isinstance(event, TrialEnded):
        return event.trial.state == FAILED
    return isinstance(event, StudyStarted) or (isinstance(event, Message) and event.warns)


def style_of(event: Event) -> str | None:
    """The style of an event's line where there is colour; None for no style of its own."""
    if isinstance(event, TrialEnded):
        return {FAILED: "red", PRUNED: "dim"}.get(event.trial.state)
    return "yellow" if isinstance(event, Message) and event.warns else None


_LAST = (COMPLETED, PRUNED, FAILED)
BEST = "best"
"""The mark beside the plan that is recommended."""

TODAY_MARK = "today"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial for a table: its speed, its plan by a short name, and how it ended.

    ``mark`` is "best" or "today" for these two plans, else empty. ``details`` has all the rest.
    """

    number: int
    speed: str
    interval: str
    plan: str
    ended: str
    mark: str
    details: str


def trial_rows(result: Result) -> tuple[TrialRow, ...]:
    """The trials, the fastest first, the failed last.

    The throughput of a plan that was compared is the one that was measured side by side. That of a
    single trial has no interval, which would know nothing of other runs.
    """

    def rate(trial: Trial) -> Throughput | None:
        return result.throughput_of(trial.plan) if trial.state == COMPLETED else None

    def place(trial: Trial) -> tuple[int, float]:
        known = rate(trial)
        return _LAST.index(trial.state), 0.0 if known is None else -known.centre

    return tuple(
        _row(result, trial, rate(trial), known=result.is_compared(trial.plan))
        for trial in sorted(result.trials, key=place)
    )


def _row(result: Result, trial: Trial, rate: Throughput | None, *, known: bool) -> TrialRow:
    mark = _mark(result, trial)
    words, interval = speed(rate, trial.at_most_samples_per_second)
    details = [f"from {trial.origin}", count_of_steps(trial.steps), trial.plan.describe()]
    if trial.delayed_steps:
        details.append(f"{trial.delayed_steps} delayed by others")
    if trial.reason:
        details.append(trial.reason)
    return TrialRow(
        number=trial.number,
        speed=words,
        interval=interval if known else "",
        plan=trial.plan.short(),
        ended=mark or _ended(result, trial, rate),
        mark=mark,
        details="; ".join(details),
    )


def _mark(result: Result, trial: Trial) -> str:
    if trial.plan == result.best.plan and not result.disturbed:
        return BEST
    return TODAY_MARK if trial.plan == result.baseline.plan else ""


def _ended(result: Result, trial: Trial, rate: Throughput | None) -> str:
    if trial.state == PRUNED:
        return "cut short" if trial.cut_short else "stopped: most likely slower"
    if trial.state == FAILED:
        return outcome(trial)
    if rate is None or rate.centre <= result.best.samples_per_second.centre:
        return "measured"
    # It looks faster than the plan that is recommended.
    if not result.is_compared(trial.plan):
        return "a single trial, not compared"
    return "not faster side by side"


def plans(result: Result) -> Rows:
    """The trials for a terminal."""
    rows = trial_rows(result)
    return Rows(
        headings=("trial", "samples/s", "95 % interval", "plan", ""),
        right=frozenset({"trial", "samples/s"}),
        spare=frozenset({"95 % interval"}),
        strong=frozenset(number for number, row in enumerate(rows) if row.mark == BEST),
        rows=tuple((str(row.number), row.speed, row.interval, row.plan, row.ended) for row in rows),
    )


def speed(rate: Throughput | None, most: float | None = None) -> tuple[str, str]:
    """A speed and its interval, for two columns; of a trial without a number what is known."""
    if rate is None:
        return ("–" if most is None else f"at most {figure(most)}"), ""
    return figure(rate.centre), f"{figure(rate.low)}–{figure(rate.high)}"


def said_speed(result: Result, side: Measured) -> tuple[str, str]:
    """The speed of today's launch or of the best plan; its interval where the two were compared."""
    words, interval = speed(side.samples_per_second)
    return words, interval if result.speedup is not None else ""


OF_HOSTS = ("nodes", "interface")
"""Knobs that are not listed where there is nothing to choose: on one machine."""


def space_blocks(space: SearchSpace) -> Iterator[Block]:
    """The space in words: its knobs, and what was left out and why."""
    several = [
        (k.name, ", ".join(map(knob_words, k.values))) for k in space.knobs if len(k.values) > 1
    ]
    fixed = [
        f"{k.name}={knob_words(k.values[0])}"
        for k in space.knobs
        if len(k.values) == 1 and not (k.name in OF_HOSTS and k.values[0] == TODAY[k.name])
    ]
    yield Heading(f"{len(space)} plans")
    yield Labelled(rows=(*several, ("always", ", ".join(fixed) or "nothing")))
    if space.left_out:
        yield Heading("Left out")
        yield Lines(tuple(("", f"{out.what}: {out.why}") for out in space.left_out))
