"""A study for a terminal: progress while it runs, the table at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cputune.plans.knobs import BASELINE
from cputune.plans.values import as_text as knob_words
from cputune.records.result import COMPLETED, FAILED, PRUNED, Measured, Result, Throughput, Trial
from cputune.report.writing import Block, Heading, Labelled, Lines, Rows
from cputune.text.plain import figure
from cputune.tuner.events import (
    Event,
    Message,
    StudyEnded,
    StudyStarted,
    TrialEnded,
    as_text,
    is_in_passing,
    outcome,
)
from cputune.tuner.reading import count_of_steps

if TYPE_CHECKING:
    from cputune.tuner.space import SearchSpace


def line_of(event: Event) -> str | None:
    """The line of an event, or None if it is not worth a line."""
    if is_in_passing(event) or isinstance(event, StudyEnded):
        return None
    return as_text(event)


def is_kept(event: Event) -> bool:
    """Whether its line stays above the live view: failures and warnings."""
    if isinstance(event, TrialEnded):
        return event.trial.state == FAILED
    if isinstance(event, Message):
        return event.warns
    return isinstance(event, StudyStarted)


def style_of(event: Event) -> str | None:
    """The colour of an event's line, or None."""
    if isinstance(event, TrialEnded):
        return {FAILED: "red", PRUNED: "dim"}.get(event.trial.state)
    if isinstance(event, Message) and event.warns:
        return "yellow"
    return None


_LAST = (COMPLETED, PRUNED, FAILED)
# The mark of the recommended plan.
BEST = "best"

BASELINE_MARK = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial for a table. ``mark`` is "best" or "baseline" for these two plans, else empty."""

    number: int
    speed: str
    interval: str
    plan: str
    ended: str
    mark: str
    details: str


def trial_rows(result: Result) -> tuple[TrialRow, ...]:
    """The trials, the fastest first, the failed ones last.

    A single trial has no interval, because it would not include differences between runs.
    """

    def rate(trial: Trial) -> Throughput | None:
        if trial.state != COMPLETED:
            return None
        return result.throughput_of(trial.plan)

    def place(trial: Trial) -> tuple[int, float]:
        throughput = rate(trial)
        if throughput is None:
            return _LAST.index(trial.state), 0.0
        return _LAST.index(trial.state), -throughput.centre

    rows = []
    for trial in sorted(result.trials, key=place):
        compared = result.is_compared(trial.plan)
        rows.append(_row(result, trial, rate(trial), compared=compared))
    return tuple(rows)


def _row(result: Result, trial: Trial, rate: Throughput | None, *, compared: bool) -> TrialRow:
    mark = _mark(result, trial)
    throughput, interval = speed(rate)
    if not compared:
        interval = ""
    details = [f"from {trial.origin}", count_of_steps(trial.steps), trial.plan.describe()]
    if trial.delayed_steps:
        details.append(f"{trial.delayed_steps} delayed by others")
    if trial.reason:
        details.append(trial.reason)
    return TrialRow(
        number=trial.number,
        speed=throughput,
        interval=interval,
        plan=trial.plan.short(),
        ended=mark or _ended(result, trial, rate),
        mark=mark,
        details="; ".join(details),
    )


def _mark(result: Result, trial: Trial) -> str:
    if trial.plan == result.best.plan and not result.disturbed:
        return BEST
    if trial.plan == result.baseline.plan:
        return BASELINE_MARK
    return ""


def _ended(result: Result, trial: Trial, rate: Throughput | None) -> str:
    if trial.state == PRUNED:
        if trial.cut_short:
            return "cut short"
        return "stopped: most likely slower"
    if trial.state == FAILED:
        return outcome(trial)
    if rate is None or rate.centre <= result.best.samples_per_second.centre:
        return "measured"
    # It looks faster than the recommended plan, which needs an explanation.
    if not result.is_compared(trial.plan):
        return "a single trial, not compared"
    return "not faster side by side"


def plans(result: Result) -> Rows:
    rows, best = list[tuple[str, ...]](), set[int]()
    for number, row in enumerate(trial_rows(result)):
        rows.append((str(row.number), row.speed, row.interval, row.plan, row.ended))
        if row.mark == BEST:
            best.add(number)
    return Rows(
        headings=("trial", "samples/s", "95 % interval", "plan", ""),
        right=frozenset({"trial", "samples/s"}),
        spare=frozenset({"95 % interval"}),
        strong=frozenset(best),
        rows=tuple(rows),
    )


def speed(rate: Throughput | None) -> tuple[str, str]:
    """A throughput and its interval for two columns, and a dash without one."""
    if rate is not None:
        return figure(rate.centre), f"{figure(rate.low)}–{figure(rate.high)}"
    return "–", ""


def speed_text(result: Result, side: Measured) -> tuple[str, str]:
    """The throughput of the baseline or the best plan, with its interval if the two were
    compared.
    """
    throughput, interval = speed(side.samples_per_second)
    if result.speedup is None:
        return throughput, ""
    return throughput, interval


# Knobs that are not listed if there is nothing to choose, which is so on one machine.
OF_HOSTS = ("nodes", "interface")


def space_blocks(space: SearchSpace) -> Iterator[Block]:
    """The search space: its knobs, and what was left out and why."""
    rows, fixed = [], []
    for knob in space.knobs:
        if len(knob.values) > 1:
            rows.append((knob.name, ", ".join(map(knob_words, knob.values))))
        elif len(knob.values) == 1:
            value = knob.values[0]
            if knob.name not in OF_HOSTS or value != BASELINE[knob.name]:
                fixed.append(f"{knob.name}={knob_words(value)}")
    rows.append(("always", ", ".join(fixed) or "nothing"))
    yield Heading(f"{len(space)} plans")
    yield Labelled(rows=tuple(rows))
    if space.left_out:
        yield Heading("Left out")
        yield Lines(tuple(("", f"{out.what}: {out.why}") for out in space.left_out))
