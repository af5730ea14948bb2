"""Blocks of output, and how a terminal shows them. Text may come from outside, so it is cleaned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cputune.plans.untried import times
from cputune.records.shared_texts import Verdict
from cputune.text.plain import visible

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod
    from rich.table import Table
    from rich.text import Text

    from cputune.doctor import Finding

# The style of each label: severities, and other labels at the beginning of a line.
STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "advice": "bold cyan",
    "note": "yellow",
}


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the next block."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table.

    ``right`` are the headings of columns with numbers, ``spare`` those that a terminal below 100
    columns leaves out, ``strong`` the numbers of emphasized rows.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()
    spare: frozenset[str] = frozenset()
    strong: frozenset[int] = frozenset()
    below: str = ""

    def without_spare(self) -> Rows:
        """The table without its spare columns."""
        kept = [number for number, name in enumerate(self.headings) if name not in self.spare]
        return replace(
            self,
            headings=tuple(self.headings[number] for number in kept),
            rows=tuple(tuple(row[number] for number in kept) for row in self.rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Rows of label and text. Rows in ``pasted`` are never wrapped; with ``cut`` none is.

    ``strong`` is the text of an emphasized row.
    """

    rows: tuple[tuple[str, str], ...]
    pasted: tuple[str, ...] = ()
    cut: bool = False
    strong: str | None = None


# The label of a command line, which is never wrapped.
COMMAND = "$"


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, each with a label (``note``, ``COMMAND``) or without one."""

    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of a name, a number as text, the length of a bar (0 to 1), and more text."""

    rows: tuple[tuple[str, str, float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRows:
    """Findings of the doctor, with their ``stories`` by code.

    ``brief``: of each finding the title, the worth and the command.
    """

    findings: tuple[Finding, ...]
    brief: bool = False
    stories: Mapping[str, str] = field(default_factory=dict)


Block = Verdict | Heading | Rows | Bars | Labelled | Lines | FindingRows

ROOMY = 100  # columns with room for every table


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print blocks with an empty line between them."""
    before: Block | None = None
    for block in blocks:
        if block == Lines(()):
            continue
        if before is not None and not isinstance(before, Heading):
            console.print()
        _print(block, console)
        before = block


def _print(block: Block, console: Console) -> None:
    from rich.text import Text

    if isinstance(block, Verdict):
        _print_verdict(block, console)
    elif isinstance(block, Heading):
        console.print(Text(visible(block.text), style="bold underline"))
    elif isinstance(block, Rows):
        _print_rows(block, console)
    elif isinstance(block, Bars):
        console.print(bar_table(block, console.width, cut=console.is_terminal))
    elif isinstance(block, Labelled):
        margin = max((len(visible(label)) for label, _ in block.rows), default=0) + 2
        for label, text in block.rows:
            _print_labelled(Text(visible(label).ljust(margin), "dim"), label, text, block, console)
    elif isinstance(block, Lines):
        for label, text in block.lines:
            _print_line(label, text, console)
    else:
        for finding in block.findings:
            _print_finding(finding, console, block)


def _print_verdict(verdict: Verdict, console: Console) -> None:
    from rich.text import Text

    means, do, sure = verdict.lines()
    style = "bold"
    if verdict.good:
        style = "bold green"
    console.print(Text(visible(means), style))
    for line in verdict.ladder:
        console.print(Text(f"  {visible(line)}"))
    console.print(Text(visible(do)), soft_wrap=True)  # a wrapped command could not be copied
    console.print(Text(visible(sure), "dim"))


def _print_rows(rows: Rows, console: Console) -> None:
    from rich.text import Text

    if console.width < ROOMY:
        rows = rows.without_spare()
    console.print(rich_table(rows))
    if rows.below:
        console.print(Text(visible(rows.below), "dim"))


def _print_labelled(head: Text, label: str, text: str, block: Labelled, console: Console) -> None:
    from rich.text import Text

    if label in block.pasted:
        first, *more = text.split("\n")
        console.print(Text.assemble(head, visible(first)), soft_wrap=True)
        for line in more:
            console.print(Text(visible(line)), soft_wrap=True)
    elif block.cut:
        row = Text.assemble(head, visible(text))
        if console.is_terminal:  # a log has no width
            row.truncate(console.width, overflow="ellipsis")
        console.print(row, soft_wrap=True)
    else:
        style = ""
        if text == block.strong:
            style = "bold"
        print_hanging(console, head, Text(visible(text), style))


def _print_line(label: str, text: str, console: Console) -> None:
    from rich.text import Text

    if label == COMMAND:
        console.print(Text(f"  $ {visible(text)}", "cyan"), soft_wrap=True)
        return
    head = Text("- ")
    if label:
        head = Text(f"{label}: ", STYLES.get(label, ""))
    print_hanging(console, head, Text(visible(text)))


def print_hanging(console: Console, label: Text, body: Text) -> None:
    """Print ``body`` after ``label``, its further lines indented."""
    from rich.text import Text

    blank = Text(" " * len(label))
    for number, line in enumerate(body.wrap(console, max(20, console.width - len(label)))):
        line.rstrip()
        # Not `label + line`: a sum of texts has the style of the first one throughout.
        console.print(Text.assemble(blank if number else label, line), soft_wrap=True)


def _print_finding(finding: Finding, console: Console, block: FindingRows) -> None:
    from rich.text import Text

    severity = finding.severity.value
    margin, blank = Text(f"{severity:7} ", STYLES[severity]), Text(" " * 8)
    if block.brief:
        _print_brief(finding, console, margin)
        return
    head = Text(visible(finding.title), style="bold")
    head.append(f"  [{visible(finding.code)}]", style="not bold dim")
    print_hanging(console, margin, head)
    for line in finding.evidence.split("\n"):
        if line:
            print_hanging(console, blank, Text(visible(line)))
    for text, style in ((finding.remedy, "green"), (finding.worth_words, "")):
        if text:
            print_hanging(console, blank, Text(visible(text), style))
    for line in (finding.command or "").splitlines():
        console.print(blank + Text(f"$ {visible(line)}", style="cyan"), soft_wrap=True)
    story = block.stories.get(finding.code)
    if story is not None:
        lines = story.splitlines()
        for url in source_urls(finding.source):
            lines.append(f"Source: {url}")
        lines.append(f"Docs: {finding.docs}")
        for line in lines:
            console.print(Text(f"        {line}".rstrip(), "dim"), soft_wrap=True)


def _print_brief(finding: Finding, console: Console, margin: Text) -> None:
    from rich.text import Text

    head = Text(visible(finding.title), "bold")
    if finding.worth is not None:
        head.append(f"  {times(*finding.worth)}", style="not bold")
    head.append(f"  [{visible(finding.code)}]", style="not bold dim")
    print_hanging(console, margin, head)
    blank = Text(" " * len(margin))
    commands = (finding.command or "").splitlines()
    for line in commands:
        console.print(blank + Text(f"$ {visible(line)}", style="cyan"), soft_wrap=True)
    if not commands:
        print_hanging(console, blank, Text(visible(finding.remedy), "green"))


# Columns of a bar, and of the name before it.
LONGEST_BAR, LONGEST_NAME = 28, 30

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(length: float, columns: int) -> str:
    """A bar of ``columns`` columns for a ``length`` of 1, drawn in eighths of a column."""
    eighths = round(max(0.0, min(1.0, length)) * columns * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def bar_table(block: Bars, width: int, *, cut: bool = True) -> Table:
    """A table of bars. With ``cut`` each is one line of that width, else it folds."""
    from rich.table import Table
    from rich.text import Text

    name_width = number_width = after_width = 0
    for name, number, _, after in block.rows:
        name_width = min(LONGEST_NAME, max(name_width, len(visible(name))))
        number_width = max(number_width, len(number))
        after_width = max(after_width, len(after))
    # Each of the four columns has a gap of two.
    columns = max(4, min(LONGEST_BAR, width - name_width - number_width - after_width - 8))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    long: OverflowMethod = "fold"
    if cut:
        long = "ellipsis"
    table.add_column(no_wrap=cut, overflow=long, max_width=LONGEST_NAME)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, width=columns)
    table.add_column(no_wrap=cut, overflow=long)
    for name, number, length, after in block.rows:
        drawn = Text(bar(length, columns), "cyan")
        dimmed = Text(visible(after), "dim")
        table.add_row(Text(visible(name)), Text(visible(number)), drawn, dimmed)
    return table


def rich_table(table: Rows) -> Table:
    """A table for a terminal, without lines. Headings and ``strong`` rows are bold.

    Text that does not fit is wrapped, never cut.
    """
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in table.headings:
        if heading in table.right:
            shown.add_column(heading, justify="right", overflow="fold")
        else:
            shown.add_column(heading, justify="left", overflow="fold")
    for number, row in enumerate(table.rows):
        style = None
        if number in table.strong:
            style = "bold"
        shown.add_row(*(Text(visible(cell)) for cell in row), style=style)
    return shown


def source_urls(source: str) -> list[str]:
    """The web addresses of a finding's source. Text that is neither a thread nor a URL is kept."""
    return [_url(part.strip()) for part in source.split(",")]


def _url(part: str) -> str:
    thread = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", part)
    if thread is None:
        return part
    return f"https://github.com/{thread[1]}/issues/{thread[2]}"
