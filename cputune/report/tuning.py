"""A study for people: progress while it runs, the table at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.knobs import KEPT, TODAY, kept_between
from cputune.plan import Plan
from cputune.report.writing import Rows, rich_table
from cputune.result import FAILED, PRUNED, ConfirmRun, Result, Throughput, Trial
from cputune.text import figure, visible
from cputune.tuner.confirmation import MOST_RIVALS, starts_at_the_end
from cputune.tuner.events import (
    ConfirmStarted,
    Disturbed,
    Event,
    StudyStarted,
    TrialEnded,
    TrialRepeated,
    Waiting,
)
from cputune.tuner.reading import count_of_steps
from cputune.words import duration, factor

if TYPE_CHECKING:
    from rich.table import Table

    from cputune.tuner.space import SearchSpace


LEGEND = "2 × 14 threads means 2 ranks with 14 threads each"
"""How ``Plan.describe`` begins."""


def line_of(event: Event) -> str | None:
    """One line for an event, or None for one that is not worth a line of its own."""
    if isinstance(event, Waiting):
        return waiting_line(event.owner)
    if isinstance(event, Disturbed):
        return disturbed_line(event)
    if isinstance(event, StudyStarted):
        resumed = f", {event.resumed} trials are on record" if event.resumed else ""
        most = event.most_seconds
        limit = "" if most is None else f", done after {duration(most)} at most (--max-time)"
        count = f"{len(event.space)} plans, {event.budget} trials{resumed}{limit}"
        return f"{count} ({LEGEND}){starts(event)}"
    if isinstance(event, TrialEnded):
        return trial_line(event.trial)
    if isinstance(event, TrialRepeated):
        return f"trial {event.number}: {event.reason}, so it is run again"
    if isinstance(event, ConfirmStarted):
        return f"measuring {len(event.plans)} plans again, side by side"
    if isinstance(event, ConfirmRun):
        rate = event.samples_per_second
        shown = f"{figure(rate.median)} samples/s" if rate is not None else event.reason
        return f"round {event.round + 1}: {shown}  {event.plan.describe()}"
    return None


LONG_START_SECONDS = 10.0
"""A start that takes longer is said: all that a script does before its first step."""


def starts(event: StudyStarted) -> str:
    """What the starts of a study cost, where one takes long; each trial and each plan of the
    confirmation begins by one.
    """
    each = event.start_seconds or 0.0
    if each < LONG_START_SECONDS:
        return ""
    trials = min(event.budget, len(event.space) + 1)
    count = trials - 1 + starts_at_the_end(rivals=min(MOST_RIVALS, trials - 1), changes=1)
    return (
        f"; each start takes {each:.0f} s until its first step, and about {count} are to come: "
        f"{count * each / 60:.0f} min of them; data that the script keeps prepared shorten each"
    )


def waiting_line(owner: str) -> str:
    """For whom is waited, and how to do without."""
    return (
        f"waiting for {owner}, which measures on this machine (for another user ten minutes at "
        "most; --share-machine does not wait)"
    )


def style_of(event: Event) -> str | None:
    """How the line of an event looks where there is colour; None for no way of its own."""
    if isinstance(event, TrialEnded):
        return {FAILED: "red", PRUNED: "dim"}.get(event.trial.state)
    return "yellow" if isinstance(event, (Waiting, Disturbed, TrialRepeated)) else None


def disturbed_line(event: Disturbed) -> str:
    """Who computes beside us, and what is done about it."""
    who = visible("; ".join(event.neighbours))
    if event.waiting:
        return f"waiting until it is quiet: {who}"
    return f"warning: the machine is not quiet, so speeds may be false (--wait-quiet 10m): {who}"


def trial_line(trial: Trial) -> str:
    """``trial 3: 17.1 samples/s  1 × 2 threads, bf16``."""
    where = " (elsewhere)" if trial.elsewhere else ""
    return f"trial {trial.number}: {outcome(trial)}  {trial.plan.describe()}{where}"


def outcome(trial: Trial) -> str:
    """What came of a trial, in few words."""
    if trial.state == FAILED:
        reason = visible((trial.reason or "").split("\n")[0])
        kind = trial.kind or FAILED
        return f"{kind}: {reason}" if reason else kind
    rate = trial.samples_per_second
    most = trial.at_most_samples_per_second
    if trial.cut_short:
        bounds = "" if most is None else f"at most {figure(most)} samples/s, "
        return f"{bounds}cut short: {trial.reason}"
    if trial.state == PRUNED:
        stopped = f"stopped after {count_of_steps(trial.steps)}: most likely slower"
        return stopped if most is None else f"at most {figure(most)} samples/s"
    return "not measured" if rate is None else f"{figure(rate.median)} samples/s"


def result_table(result: Result, *, width: int | None = None, most: int | None = None) -> Table:
    """Every trial, the fastest first and the failed last; or ``most`` of them, from the first.

    Where ``width``, the columns of the terminal, are few, some of its own are left out.
    """
    table = plans(result, most)
    if width is not None and width < NARROW:
        table = table.without("steps", "from")
    return rich_table(table, strong=lambda row: row[-1] == BEST)


NARROW = 100
"""A terminal with fewer columns breaks the words of most plans, if all of the table is shown."""


BEST = "best"
"""What stands beside the plan that is recommended."""


def plans(result: Result, most: int | None = None) -> Rows:
    """The table of trials in words."""
    ordered = sorted(result.trials, key=fastest_first)[:most]
    return Rows(
        headings=("trial", "samples/s", "steps", "plan (ranks × threads each)", "from", ""),
        right=frozenset({"trial", "samples/s", "steps"}),
        rows=tuple(
            (
                str(trial.number),
                _known(trial),
                str(trial.steps),
                trial.plan.describe(),
                trial.origin,
                _mark(trial, best=trial.plan == result.best.plan),
            )
            for trial in ordered
        ),
    )


def _mark(trial: Trial, *, best: bool) -> str:
    """What is to be said of a trial beside its numbers."""
    if best:
        return BEST
    if trial.state == PRUNED:
        return "cut short" if trial.cut_short else "stopped: most likely slower"
    return outcome(trial) if trial.state == FAILED else ""


def fastest_first(trial: Trial) -> tuple[int, float]:
    """What was measured before what was pruned, and that before what failed."""
    rate = trial.samples_per_second
    order = {PRUNED: 1, FAILED: 2}.get(trial.state, 0)
    return order, 0.0 if rate is None else -rate.median


def _known(trial: Trial) -> str:
    """What is known of a trial's speed, for a column: a number is one that was measured."""
    rate, most = trial.samples_per_second, trial.at_most_samples_per_second
    if trial.state == PRUNED:
        return "–" if most is None else f"at most {figure(most)}"
    return "–" if rate is None else f"{figure(rate.median)}"


def measured_lines(result: Result) -> tuple[str, ...]:
    """Baseline and best with their intervals."""
    lines = [
        f"today  {_interval(result.baseline.samples_per_second)}  {_plan(result.baseline.plan)}"
    ]
    if result.best.plan != result.baseline.plan:
        lines.append(
            f"best   {_interval(result.best.samples_per_second)}  {_plan(result.best.plan)}"
        )
        kept = kept_between(result.baseline.plan, result.best.plan)
        fewer_bits = "samples and learning rates of today's launch; its numbers have fewer bits"
        same = f"{KEPT[kept]} as today's launch"
        lines.append(f"keeps  {fewer_bits if kept == 'nothing' else same}")
    worth = worth_line(result)
    return tuple(lines) if worth is None else (*lines, worth)


def worth_line(result: Result) -> str | None:
    """``precision bf16 ×2.10 (2.02–2.18), other numbers; allocator tcmalloc ×1.12 (…), …``."""
    parts = [
        f"{change.knob} {change.value} {factor(change.speedup)}"
        f"{'' if change.keeps is None else ', ' + KEPT[change.keeps]}"
        for change in result.worth
        if change.speedup.narrow
    ]
    return f"worth  {'; '.join(parts)}" if parts and not result.disturbed else None


def _interval(rate: Throughput) -> str:
    return f"{figure(rate.median)} samples/s ({figure(rate.low)}–{figure(rate.high)})"


def _plan(plan: Plan) -> str:
    return plan.describe()


OF_HOSTS = ("nodes", "interface")
"""Knobs of which nothing is said where there is nothing to choose: one machine."""


def space_lines(space: SearchSpace) -> tuple[str, ...]:
    """The space in words: its knobs, what stays fixed, and what was left out and why."""
    lines = [f"{len(space)} plans"]
    for knob in space.knobs:
        if len(knob.values) > 1:
            lines.append(
                f"  {knob.name}: " + ", ".join(value_words(value) for value in knob.values)
            )
    fixed = [
        f"{k.name}={value_words(k.values[0])}"
        for k in space.knobs
        if len(k.values) == 1 and not (k.name in OF_HOSTS and k.values[0] == TODAY[k.name])
    ]
    if fixed:
        lines.append("  always: " + ", ".join(fixed))
    if space.left_out:
        lines.append("left out:")
        lines.extend(f"  {out.what}: {out.why}" for out in space.left_out)
    return tuple(lines)


def value_words(value: object) -> str:
    """A knob's value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
