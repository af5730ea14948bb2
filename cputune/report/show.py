"""``cputune show``: a result for the terminal, as Markdown, as CSV and as a document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cputune import cpulist
from cputune.carrier.command import carried
from cputune.documents import plain
from cputune.emitters.job import usual_format
from cputune.emitters.machine import machine_difference
from cputune.figures import figure
from cputune.report.profile import profile_lines
from cputune.report.summary import Summary, places, summary_of
from cputune.report.topology import picture
from cputune.report.tuning import plans, result_table
from cputune.report.writing import (
    Rows,
    csv_text,
    fenced,
    markdown_table,
    markdown_text,
    print_hanging,
    rich_table,
)
from cputune.result import Result, Speedup, Throughput
from cputune.trialtable import COLUMNS, trial_rows
from cputune.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

    from cputune.facts import HostFacts

SCHEMA = "cputune.summary/1"

MOST_PLANS = 15
"""Of the table of plans, the fastest, where not all are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A result that is to be shown.

    ``file`` is the word by which commands name it. ``facts`` are those of the machine that is
    looked at; None where nothing is known of it.
    """

    result: Result
    file: str
    facts: HostFacts | None = None

    @property
    def elsewhere(self) -> str | None:
        """In what the machine that it was measured on differs from the one looked at."""
        if self.facts is None:
            return None
        return machine_difference(self.result.host, self.facts)

    def notes(self) -> tuple[str, ...]:
        """Those of the result, and whether it is of another machine."""
        difference = self.elsewhere
        other = (f"This was measured on another machine: {difference}.",) if difference else ()
        return (*other, *self.result.notes)


def print_result(shown: Shown, console: Console, *, every: bool = False) -> None:
    """The verdict first, then what to change, the launch, the plans, and what they rest on."""
    from rich.text import Text

    summary = summary_of(shown.result)
    good = summary.speedup is not None and summary.speedup.significant
    console.print(Text(visible(summary.verdict), "bold green" if good else "bold"))
    console.print()
    console.print(rich_table(speeds(summary)))
    if summary.changes:
        _heading(console, "What to change")
        console.print(rich_table(changes(summary)))
    _heading(console, "The launch")
    _print_labelled(console, launch(shown))
    _heading(console, "The plans")
    most = None if every else MOST_PLANS
    console.print(result_table(shown.result, width=console.width, most=most))
    hidden = 0 if every else len(shown.result.trials) - MOST_PLANS
    if hidden > 0:
        console.print(Text(f"{hidden} slower ones; --all shows them", "dim"))
    for line in profile_lines(shown.result):
        console.print(Text(visible(line)))
    _heading(console, "What it rests on")
    _print_labelled(console, (*summary.work, *summary.study, *_machine(summary)))
    _print_places(shown, console)
    for note in shown.notes():
        print_hanging(console, Text("note: ", "yellow"), Text(visible(note)))


def _heading(console: Console, words: str) -> None:
    from rich.text import Text

    console.print()
    console.print(Text(words, style="bold underline"))


def _print_labelled(console: Console, rows: tuple[tuple[str, str], ...]) -> None:
    from rich.text import Text

    margin = max((len(label) for label, _ in rows), default=0) + 2
    for label, text in rows:
        if label in PASTED:  # what is wrapped cannot be pasted
            console.print(
                Text.assemble((label.ljust(margin), "dim"), visible(text)), soft_wrap=True
            )
        else:
            print_hanging(console, Text(label.ljust(margin), "dim"), Text(visible(text)))


def _print_places(shown: Shown, console: Console) -> None:
    """The machine with every rank in its place, where it is the one that is looked at."""
    from rich.text import Text

    if shown.facts is None or shown.elsewhere or not shown.facts.topology.cores:
        return
    console.print()
    for line in picture(
        shown.facts,
        bound=places(shown.result.best.plan),
        width=min(80, console.width),
        ascii_only=not (console.encoding or "").lower().startswith("utf"),
    ):
        console.print(Text(visible(line)), soft_wrap=True)


def speeds(summary: Summary) -> Rows:
    """Today's launch, and the best plan where it is another."""
    sides = [("today", summary.today)]
    if not summary.nothing_to_change:
        sides.append(("best", summary.best))
    return Rows(
        headings=("", "samples/s", "95 % interval", "plan"),
        right=frozenset({"samples/s"}),
        rows=tuple(
            (
                name,
                figure(side.samples_per_second.median),
                interval(side.samples_per_second),
                side.plan.describe(),
            )
            for name, side in sides
        ),
    )


def changes(summary: Summary) -> Rows:
    """What to change, and what each is worth."""
    return Rows(
        headings=("knob", "today", "best", "worth"),
        rows=tuple((c.knob, c.today, c.best, _worth(c.worth)) for c in summary.changes),
    )


def _worth(speedup: Speedup | None) -> str:
    if speedup is None:
        return "not measured by itself"
    return f"×{speedup.ratio:.2f} ({speedup.low:.2f}–{speedup.high:.2f})"


def interval(rate: Throughput) -> str:
    """``16.8–17.4``."""
    return f"{figure(rate.low)}–{figure(rate.high)}"


PASTED = ("run it", "write it", "variables", "flags")
"""Labels of what is meant for a shell."""


def launch(shown: Shown) -> tuple[tuple[str, str], ...]:
    """(label, text): how the best plan is started, and what each of its ranks is given."""
    file = shlex.quote(shown.file)
    format = "torchrun" if shown.facts is None else usual_format(shown.facts)
    return (
        ("run it", f"cputune run {file}"),
        ("write it", f"cputune emit --format {format} {file}"),
        *_given(shown.result),
    )


def _given(result: Result) -> Iterator[tuple[str, str]]:
    """What carries the best plan into a rank: variables, flags, CPUs."""
    plan = result.best.plan
    try:
        way = carried(result.workload, plan, result.versions)
    except ValueError as error:  # a batch that was changed by hand
        yield "impossible", str(error)
        return
    if way.variables:
        words = (f"{name}={shlex.quote(value)}" for name, value in way.variables.items())
        yield "variables", " ".join(words)
    if way.flags:
        yield "flags", shlex.join(way.flags)
    if not plan.as_found:
        ranks = (f"{who}: {cpulist.render(cpus)}" for who, cpus in places(plan).items() if cpus)
        yield "CPUs", "; ".join(ranks) or "not bound"


def _machine(summary: Summary) -> tuple[tuple[str, str], ...]:
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    return (*summary.machine, *((("versions", versions),) if versions else ()))


def markdown(shown: Shown, *, every: bool = False) -> str:
    """The same for pasting into an issue."""
    summary = summary_of(shown.result)
    rows = trial_rows(shown.result)
    lines = ["## cputune show", "", markdown_text(summary.verdict), ""]
    lines += [*markdown_table(speeds(summary)), ""]
    if summary.changes:
        lines += ["### What to change", "", *markdown_table(changes(summary)), ""]
    commands = [
        f"# {label}: {text}" if label not in PASTED[:2] else text for label, text in launch(shown)
    ]
    lines += ["### The launch", "", *fenced("\n".join(map(visible, commands)), "sh"), ""]
    most = len(rows) if every else MOST_PLANS
    lines += ["### The plans", "", *markdown_table(plans(shown.result, most)), ""]
    if len(rows) > most:
        lines += [f"{len(rows) - most} slower ones are left out (`--all`).", ""]
    lines += ["### What it rests on", ""]
    told = (*summary.work, *summary.study, *_machine(summary))
    lines += [*markdown_table(Rows(headings=("", ""), rows=told)), ""]
    lines += [f"- {markdown_text(note)}" for note in shown.notes()]
    return "\n".join(lines).rstrip() + "\n"


def csv_of_trials(result: Result) -> str:
    """Every trial, a row for each, in the columns of ``Result.to_frame``."""
    return csv_text(tuple(COLUMNS), (row.values() for row in trial_rows(result)))


def document(shown: Shown) -> dict[str, Any]:
    """The ``cputune.summary/1`` document: what the page says, without the plans in full."""
    summary = summary_of(shown.result)
    return {
        "schema": SCHEMA,
        "verdict": summary.verdict,
        "speedup": plain(summary.speedup),
        "today": plain(summary.today),
        "best": plain(summary.best),
        "changes": plain(summary.changes),
        "launch": dict(launch(shown)),
        "places": {who: cpulist.render(cpus) for who, cpus in places(summary.best.plan).items()},
        "work": dict(summary.work),
        "study": dict(summary.study),
        "machine": dict(summary.machine),
        "other_machine": shown.elsewhere,
        "versions": dict(summary.versions),
        "notes": list(summary.notes),
        "trials": trial_rows(shown.result),
    }
