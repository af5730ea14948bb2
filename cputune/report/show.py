"""``cputune show`` in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.report.diagnosis import STYLES
from cputune.report.profile import profile_lines
from cputune.report.shown import MOST_PLANS, PASTED, Shown, basis, changes, launch, speeds
from cputune.report.summary import places, summary_of
from cputune.report.topology import picture
from cputune.report.tuning import result_table
from cputune.report.writing import print_hanging, rich_table
from cputune.result import Result
from cputune.visible import visible

if TYPE_CHECKING:
    from rich.console import Console


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
    _print_findings(shown.result, console)
    _heading(console, "What it rests on")
    _print_labelled(console, basis(summary))
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
    """The machine that was measured, with every rank in its place."""
    from rich.text import Text

    topology = shown.topology
    if topology is None:
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
