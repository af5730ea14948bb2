"""A result for people, and the list of those that were kept: terminal, Markdown, CSV, documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cputune import cpulist
from cputune.carrier.command import carried
from cputune.documents import plain
from cputune.emitters.header import changed_since, machine_difference
from cputune.history import Kept
from cputune.portrait import topology_of
from cputune.report.diagnosis import STYLES
from cputune.report.summary import (
    Summary,
    allowed_cpus,
    launch_commands,
    places,
    profile_lines,
    summary_of,
    tune_command,
    worth_words,
)
from cputune.report.topology import picture
from cputune.report.tuning import plans, result_table
from cputune.report.writing import (
    Rows,
    csv_text,
    fenced,
    markdown_table,
    markdown_text,
    markdown_verdict,
    print_hanging,
    print_verdict,
    rich_table,
)
from cputune.result import COLUMNS, Result, Speedup, Throughput, trial_rows
from cputune.text import figure, visible
from cputune.words import TUNE_AGAIN, factor

if TYPE_CHECKING:
    from rich.console import Console

    from cputune.facts import HostFacts, Topology

SCHEMA = "cputune.summary/1"

MOST_PLANS = 15
"""Of the table of plans, the fastest, where not all are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToShow:
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
        changes = () if self.facts is None or difference else changed_since(self.result, self.facts)
        again = (f"{'; '.join(changes)}: {TUNE_AGAIN}.",) if changes else ()
        return (*other, *again, *self.result.notes)


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
        headings=("knob", "today", "best", "keeps", "worth"),
        rows=tuple((c.knob, c.today, c.best, c.keeps, worth_words(c)) for c in summary.changes),
    )


def interval(rate: Throughput) -> str:
    """``16.8–17.4``."""
    return f"{figure(rate.low)}–{figure(rate.high)}"


PASTED = ("train", "launch files", "tune again", "variables", "flags")
"""Labels of what is meant for a shell; the first three are commands."""


def launch(shown: ResultToShow) -> tuple[tuple[str, str], ...]:
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


def markdown(shown: ResultToShow, *, every: bool = False) -> str:
    """The same for pasting into an issue."""
    summary = summary_of(shown.result, shown.file)
    rows = trial_rows(shown.result)
    lines = ["## cputune show", "", *markdown_verdict(summary.verdict)]
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
    if summary.untried:
        lines += ["### Not tried, and would pay", ""]
        lines += [*(f"- {markdown_text(line)}" for line in summary.untried), ""]
    lines += ["### What it rests on", ""]
    lines += [*markdown_table(Rows(headings=("", ""), rows=basis(summary))), ""]
    lines += [f"- {f.severity}: {markdown_text(f.title)}" for f in shown.result.findings or ()]
    lines += [f"- {markdown_text(note)}" for note in shown.notes()]
    return "\n".join(lines).rstrip() + "\n"


def csv_of_trials(result: Result) -> str:
    """Every trial, a row for each, in the columns of ``Result.to_frame``."""
    return csv_text(tuple(COLUMNS), (row.values() for row in trial_rows(result)))


def document(shown: ResultToShow) -> dict[str, Any]:
    """The ``cputune.summary/1`` document: what the page says, without the plans in full."""
    summary = summary_of(shown.result, shown.file)
    return {
        "schema": SCHEMA,
        "verdict": summary.verdict.means,
        "do": summary.verdict.do,
        "sure": summary.verdict.sure,
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
        "untried": plain(shown.result.untried),
        "notes": list(summary.notes),
        "trials": trial_rows(shown.result),
    }


def print_result(shown: ResultToShow, console: Console, *, every: bool = False) -> None:
    """The verdict first, then what to change, the launch, the plans, and what they rest on."""
    from rich.text import Text

    summary = summary_of(shown.result, shown.file)
    good = summary.speedup is not None and summary.speedup.significant
    print_verdict(summary.verdict, console, good=good)
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
    if summary.untried:
        _heading(console, "Not tried, and would pay")
        for line in summary.untried:
            print_hanging(console, Text("- "), Text(visible(line)))
    _print_findings(shown.result, console)
    _heading(console, "What it rests on")
    _print_labelled(console, basis(summary))
    _print_places(shown, console)
    for note in shown.notes():
        print_hanging(console, Text("note: ", "yellow"), Text(visible(note)))


def show(result: Result, *, every: bool = False) -> None:
    """Print a result, as ``cputune show`` does; ``every`` plan, not the fastest alone."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    print_result(ResultToShow(result=result, file="cputune.json"), console, every=every)


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


def _print_places(shown: ResultToShow, console: Console) -> None:
    """The machine that was measured, with every rank in its place."""
    from rich.text import Text

    topology = shown.topology
    if topology is None or console.is_dumb_terminal:
        return
    console.print()
    for line in picture(
        topology,
        bound=places(shown.result.best.plan),
        width=min(80, console.width),
        ascii_only=not (console.encoding or "").lower().startswith("utf"),
    ):
        console.print(Text(visible(line)), soft_wrap=True)


def _print_findings(result: Result, console: Console) -> None:
    """What the doctor said when the study began, a line each."""
    from rich.text import Text

    if not result.findings:
        return
    _heading(console, "What the doctor found then")
    for found in result.findings:
        words = Text(visible(found.title)).append(f"  [{visible(found.code)}]", "dim")
        print_hanging(console, Text(f"{found.severity:7} ", STYLES[found.severity]), words)


def history_rows(kept: Sequence[Kept]) -> Rows:
    """A row for each, the newest first."""
    return Rows(
        headings=("id", "measured", "machine", "work", "gain", "file"),
        rows=tuple(
            (
                one.id,
                (one.created or "").replace("T", " ")[:16],
                one.machine,
                one.work,
                _gain(one.speedup),
                one.file or "",
            )
            for one in kept
        ),
    )


def _gain(speedup: Speedup | None) -> str:
    if speedup is None:
        return "not known"
    if not speedup.significant:
        return "none"
    return factor(speedup)


def history_document(kept: Sequence[Kept]) -> dict[str, Any]:
    """The ``cputune.history/1`` document."""
    return {"schema": "cputune.history/1", "results": [plain(one) for one in kept]}
