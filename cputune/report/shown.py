"""What ``cputune show`` says of a result: its rows, and it all as Markdown, CSV and a document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cputune import cpulist
from cputune.carrier.command import carried
from cputune.documents import plain
from cputune.emitters.machine import machine_difference
from cputune.figures import figure
from cputune.portrait import topology_of
from cputune.report.commands import launch_commands, tune_command
from cputune.report.summary import Summary, allowed_cpus, places, summary_of, worth_words
from cputune.report.tuning import plans
from cputune.report.writing import (
    Rows,
    csv_text,
    fenced,
    markdown_table,
    markdown_text,
)
from cputune.result import Result, Throughput
from cputune.trialtable import COLUMNS, trial_rows
from cputune.visible import visible

if TYPE_CHECKING:
    from cputune.facts import HostFacts, Topology

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

    @property
    def topology(self) -> Topology | None:
        """Of the machine that was measured: as the result has it, or as it is looked at."""
        if self.result.places:
            return topology_of(self.result.places, allowed_cpus(self.result))
        known = self.facts is not None and not self.elsewhere and self.facts.topology.cores
        return self.facts.topology if self.facts is not None and known else None

    def notes(self) -> tuple[str, ...]:
        """Those of the result, and whether it is of another machine."""
        difference = self.elsewhere
        other = (f"This was measured on another machine: {difference}.",) if difference else ()
        return (*other, *self.result.notes)


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
        rows=tuple((c.knob, c.today, c.best, worth_words(c)) for c in summary.changes),
    )


def interval(rate: Throughput) -> str:
    """``16.8–17.4``."""
    return f"{figure(rate.low)}–{figure(rate.high)}"


PASTED = ("train", "launch files", "tune again", "variables", "flags")
"""Labels of what is meant for a shell; the first three are commands."""


def launch(shown: Shown) -> tuple[tuple[str, str], ...]:
    """(label, text): how the best plan is started, and what each of its ranks is given."""
    commands = (
        *launch_commands(shown.file, shown.result.best.plan.nodes),
        tune_command(shown.result),
    )
    return (*zip(PASTED, commands, strict=False), *_given(shown.result))


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


def basis(summary: Summary) -> tuple[tuple[str, str], ...]:
    """(label, text) of what a result rests on: work, study, machine, versions."""
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    told = (("versions", versions),) if versions else ()
    return (*summary.work, *summary.study, *summary.machine, *told)


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
    lines += [*markdown_table(Rows(headings=("", ""), rows=basis(summary))), ""]
    lines += [f"- {f.severity}: {markdown_text(f.title)}" for f in shown.result.findings or ()]
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
        "findings": plain(shown.result.findings),
        "notes": list(summary.notes),
        "trials": trial_rows(shown.result),
    }
