"""``cputune compare``: results beside the first, for a terminal, Markdown, CSV, as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cputune.documents import plain
from cputune.figures import figure
from cputune.report.comparison import Compared, Ratio
from cputune.report.writing import (
    Rows,
    csv_text,
    markdown_table,
    markdown_text,
    print_hanging,
    rich_table,
)
from cputune.result import Measured, Result
from cputune.visible import visible

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "cputune.comparison/1"
DIFFERENT_TIMES = (
    "They were measured at different times; what a machine does from one day to the next is in no "
    "interval."
)


def print_comparison(
    first: str, reference: Result, compared: Sequence[Compared], console: Console
) -> None:
    """A sentence for each, the table, and in what they differ."""
    from rich.text import Text

    for one in compared:
        for line, style in _sentences(first, one):
            console.print(Text(visible(line), style))
    console.print()
    console.print(rich_table(table(first, reference, compared)))
    console.print()
    for label, text in _remarks(compared):
        style = "yellow" if label == "warning" else "dim"
        print_hanging(console, Text(f"{label}: ", style), Text(visible(text)))


def markdown(first: str, reference: Result, compared: Sequence[Compared]) -> str:
    """The same for pasting into an issue."""
    lines = ["## cputune compare", ""]
    for one in compared:
        lines += [f"- {markdown_text(line)}" for line, _ in _sentences(first, one)]
    lines += ["", *markdown_table(table(first, reference, compared)), ""]
    lines += [f"- {label}: {markdown_text(text)}" for label, text in _remarks(compared)]
    return "\n".join(lines) + "\n"


def _sentences(first: str, one: Compared) -> Iterator[tuple[str, str]]:
    """(sentence, style): of the best plans first, that is what a tuned machine runs."""
    if one.refused is not None:
        yield f"{one.name} is not compared: {one.refused}.", "bold yellow"
        return
    yield f"{one.name} beside {first}: {_MACHINE[one.same_machine]}, same work.", ""
    yield f"best plan: {_in_words(one.best)}.", "bold"
    yield f"launch of today: {_in_words(one.today)}.", ""


_MACHINE = {True: "same machine", False: "other machine", None: "perhaps another machine"}


def _in_words(ratio: Ratio | None) -> str:
    if ratio is None:
        return "no speed was measured"
    between = f"95 % interval {ratio.low:.2f}–{ratio.high:.2f}"
    if ratio.verdict not in ("faster", "slower"):
        return f"{ratio.verdict} ({between})"
    return f"{ratio.ratio:.2f} times as fast ({between})"


def _remarks(compared: Sequence[Compared]) -> Iterator[tuple[str, str]]:
    """Warnings first; with the name of the result, where there are several."""
    for label in ("warning", "note"):
        for one in compared:
            before = f"{one.name}: " if len(compared) > 1 else ""
            said = one.warnings if label == "warning" else one.notes
            yield from ((label, before + text) for text in said)
    yield "note", DIFFERENT_TIMES


def table(first: str, reference: Result, compared: Sequence[Compared]) -> Rows:
    """Today's launches, then the best plans: each with its speed and its ratio to the first."""
    rows = []
    for what in ("today", "best"):
        rows.append((what, first, *_speed(_side(reference, what)), "1", "the reference"))
        for one in compared:
            ratio = one.today if what == "today" else one.best
            rows.append(("", one.name, *_speed(_side(one.result, what)), *_ratio(one, ratio)))
    return Rows(
        headings=("", "result", "samples/s", "95 % interval", "ratio", ""),
        right=frozenset({"samples/s", "ratio"}),
        rows=tuple(rows),
    )


def _side(result: Result, what: str) -> Measured:
    return result.baseline if what == "today" else result.best


def _speed(side: Measured) -> tuple[str, str]:
    rate = side.samples_per_second
    return figure(rate.median), f"{figure(rate.low)}–{figure(rate.high)}"


def _ratio(one: Compared, ratio: Ratio | None) -> tuple[str, str]:
    if one.refused is not None or ratio is None:
        return "–", "not compared"
    return f"{ratio.ratio:.2f}", f"{ratio.low:.2f}–{ratio.high:.2f}, {ratio.verdict}"


_COLUMNS = (
    "what", "result", "samples_per_second", "low", "high", "plan", "ratio", "ratio_low",
    "ratio_high", "verdict", "refused",
)  # fmt: skip


def rows_csv(first: str, reference: Result, compared: Sequence[Compared]) -> str:
    """A row for each result and side, its numbers in full."""
    every = (Compared(name=first, result=reference), *compared)
    return csv_text(_COLUMNS, (_numbers(one, what) for what in ("today", "best") for one in every))


def _numbers(one: Compared, what: str) -> tuple[object, ...]:
    side, ratio = _side(one.result, what), one.today if what == "today" else one.best
    rate = side.samples_per_second
    numbers = (None,) * 4 if ratio is None else (ratio.ratio, ratio.low, ratio.high, ratio.verdict)
    told = (what, one.name, rate.median, rate.low, rate.high, side.plan.describe())
    return (*told, *numbers, one.refused)


def document(first: str, reference: Result, compared: Sequence[Compared]) -> dict[str, Any]:
    """The ``cputune.comparison/1`` document; the first of its results is the reference."""
    every = (Compared(name=first, result=reference), *compared)
    return {"schema": SCHEMA, "results": [_member(one) for one in every]}


def _member(one: Compared) -> dict[str, Any]:
    sides = {what: plain(_side(one.result, what)) for what in ("today", "best")}
    ratios = {
        what: None if ratio is None else {**plain(ratio), "verdict": ratio.verdict}
        for what, ratio in (("today", one.today), ("best", one.best))
    }
    return {
        "name": one.name,
        "refused": one.refused,
        "same_machine": one.same_machine,
        "other_machine": one.other_machine,
        "warnings": list(one.warnings),
        "notes": list(one.notes),
        **{what: {**side, "ratio": ratios[what]} for what, side in sides.items()},
    }
