"""Tables and labelled lines for a terminal, Markdown and CSV; their text may come from outside."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cputune.text import visible
from cputune.words import Verdict

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

    from cputune.facts import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Headings and cells in words; ``right`` are the headings of columns of numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = field(default_factory=frozenset)

    def without(self, *headings: str) -> Rows:
        """The table without these columns."""
        kept = [number for number, name in enumerate(self.headings) if name not in headings]
        return Rows(
            headings=tuple(self.headings[number] for number in kept),
            rows=tuple(tuple(row[number] for number in kept) for row in self.rows),
            right=self.right,
        )


NARROW = 60
"""Columns of a terminal; with fewer a table of ours breaks words."""


def rich_table(
    table: Rows, *, strong: Callable[[tuple[str, ...]], bool] = lambda row: False
) -> Table:
    """For a terminal, without lines; headings are bold, and rows that are ``strong``.

    What does not fit is broken, never cut. On a narrow terminal, and where TERM=dumb asks for
    plain text (screen readers), each row is a block of lines: heading and cell.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    class ShownTable(Table):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            if options.max_width >= NARROW and not console.is_dumb_terminal:
                yield from super().__rich_console__(console, options)
                return
            for row in table.rows:
                first, *rest = zip(table.headings, map(visible, row), strict=True)
                yield Text(" ".join(first).strip(), "bold" if strong(row) else "")
                for heading, cell in rest:
                    if cell:
                        text = Text(f"{heading}: {cell}" if heading else cell)
                        yield Padding(text, (0, 0, 0, 2), expand=False)

    shown = ShownTable(box=None, pad_edge=False, header_style="bold")
    for heading in table.headings:
        right = heading in table.right
        shown.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        style = "bold" if strong(row) else None
        shown.add_row(*(Text(visible(cell)) for cell in row), style=style)
    return shown


def markdown_table(table: Rows) -> list[str]:
    """The lines of a table of GitHub's Markdown."""
    rules = ("---:" if heading in table.right else "---" for heading in table.headings)
    lines = [_row(map(markdown_text, table.headings)), f"|{'|'.join(rules)}|"]
    return [*lines, *(_row(map(markdown_text, row)) for row in table.rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_text(text: str) -> str:
    """Text that Markdown and HTML show as it is."""
    return re.sub(r"([\\`*_<>\[\]#|])", r"\\\1", visible(text))


def fenced(text: str, language: str) -> list[str]:
    """A block of code, whatever fences the text has itself."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [fence + language, text, fence]


def csv_text(headings: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Comma-separated values (RFC 4180, but for lines that end as elsewhere on Linux).

    What is not known is empty. Text is one line, and begins with ``'`` where a spreadsheet
    would take it for a formula (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def _csv_cell(cell: object) -> object:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if not isinstance(cell, str):
        return cell
    text = visible(cell)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def junit(suite: str, cases: Iterable[tuple[str, str | None]]) -> str:
    """JUnit's XML, as CI systems read it: (name, why it failed or None) of each case."""
    from xml.etree import ElementTree

    found = list(cases)
    failures = sum(why is not None for _, why in found)
    root = ElementTree.Element(
        "testsuite", name=suite, tests=str(len(found)), failures=str(failures)
    )
    for name, why in found:
        case = ElementTree.SubElement(root, "testcase", name=visible(name), classname=suite)
        if why is not None:
            ElementTree.SubElement(case, "failure", message=visible(why))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def print_verdict(verdict: Verdict, console: Console, *, good: bool = False) -> None:
    """The three lines that stand before everything else; a command is never wrapped."""
    from rich.text import Text

    styles = ("bold green" if good else "bold", "", "dim")
    for line, style in zip(verdict.lines(), styles, strict=True):
        console.print(Text(visible(line), style), soft_wrap=line.startswith("Do now: cputune "))


def markdown_verdict(verdict: Verdict) -> list[str]:
    """The same, a paragraph for each."""
    return [part for line in verdict.lines() for part in (markdown_text(line), "")]


def print_hanging(console: Console, label: Text, body: Text) -> None:
    """Print ``body`` beside ``label``, its further lines indented as far."""
    from rich.text import Text

    blank = Text(" " * len(label))
    for number, line in enumerate(body.wrap(console, max(20, console.width - len(label)))):
        line.rstrip()
        # Not `label + line`: the sum of two texts has the style of the first throughout.
        console.print(Text.assemble(blank if number else label, line), soft_wrap=True)


def print_heading(console: Console, words: str) -> None:
    """An empty line, and what the next part is called."""
    from rich.text import Text

    console.print()
    console.print(Text(words, style="bold underline"))


def print_labelled(
    console: Console, rows: Sequence[tuple[str, str]], pasted: Sequence[str] = ()
) -> None:
    """Label and text of each row, the texts below each other; what is ``pasted`` is not wrapped."""
    from rich.text import Text

    margin = max((len(label) for label, _ in rows), default=0) + 2
    for label, text in rows:
        if label in pasted:
            console.print(
                Text.assemble((label.ljust(margin), "dim"), visible(text)), soft_wrap=True
            )
        else:
            print_hanging(console, Text(label.ljust(margin), "dim"), Text(visible(text)))


def print_picture(console: Console, topology: Topology, bound: Mapping[str, Sequence[int]]) -> None:
    """The machine, and who is bound where; none for screen readers."""
    from rich.text import Text

    from cputune.report.machine import picture

    if console.is_dumb_terminal:
        return
    console.print()
    plain = not (console.encoding or "").lower().startswith("utf")
    for line in picture(topology, bound=bound, width=min(80, console.width), ascii_only=plain):
        console.print(Text(visible(line)), soft_wrap=True)
