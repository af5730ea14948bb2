"""What the doctor looked at, a line for each theme: ✓ is fine, ! was found, – is not known."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cputune.doctor.finding import Looked

HEADING = "What was looked at"

Sign = Literal["✓", "!", "–"]


def looked_rows(looked: tuple[Looked, ...], *, unfold: bool = False) -> list[tuple[Sign, str, str]]:
    """(sign, theme, what came of its checks) of each theme; unfolded, a row for each check."""
    if unfold:
        return [
            (_sign([row]), row.check.code, f"{_word(row)}: {row.check.title}{_reasons(row)}")
            for row in looked
        ]
    themes = [(theme, list(rows)) for theme, rows in groupby(looked, key=lambda row: row.theme)]
    return [(_sign(rows), theme, _states(rows)) for theme, rows in themes]


def looked_line(looked: tuple[Looked, ...]) -> str:
    """How many checks there are of each state."""
    counted = [
        (sum(row.state == state for row in looked), text)
        for state, text in (
            ("fine", "fine"),
            ("found", "found something"),
            ("unknown", "asked what is not known"),
        )
    ]
    counts = ", ".join(f"{count} {text}" for count, text in counted if count)
    return f"{len(looked)} checks: {counts}"


def _sign(rows: list[Looked]) -> Sign:
    states = {row.state for row in rows}
    return "!" if "found" in states else "–" if "unknown" in states else "✓"


def _states(rows: list[Looked]) -> str:
    parts = []
    for state, text in (("found", "found"), ("unknown", "not known"), ("fine", "fine")):
        codes = [row.check.code for row in rows if row.state == state]
        if codes:
            parts.append(f"{text}: {', '.join(codes)}")
    return "; ".join(parts)


def _word(row: Looked) -> str:
    return {"found": "found", "fine": "not so", "unknown": "not known"}[row.state]


def _reasons(row: Looked) -> str:
    told = "; ".join(f"{item.fact}: {item.reason}" for item in row.unknown)
    return f" ({told})" if told else ""
