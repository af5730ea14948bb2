"""The list of kept results: date, machine, work, gain, file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cputune.documents import plain
from cputune.history import Kept
from cputune.report.writing import Rows
from cputune.result import Speedup


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
    return f"×{speedup.ratio:.2f} ({speedup.low:.2f}–{speedup.high:.2f})"


def document(kept: Sequence[Kept]) -> dict[str, Any]:
    """The ``cputune.history/1`` document."""
    return {"schema": "cputune.history/1", "results": [plain(one) for one in kept]}
