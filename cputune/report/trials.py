"""The trials of a result as rows: for a pandas frame, and for CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from cputune.records.result import COMPLETED, Result
from cputune.text.plain import visible


def trial_rows(result: Result) -> list[dict[str, Any]]:
    """A row for each trial: its plan by knob, its throughput in samples/s, and how it ended.

    The throughput of a plan that was compared is that over all rounds.
    """
    rows: list[dict[str, Any]] = []
    for trial in result.trials:
        plan, rate = trial.plan, trial.samples_per_second
        if trial.state == COMPLETED:
            rate = result.throughput_of(plan)
        row = {
            "trial": trial.number,
            "plan": plan.short(),
            "nodes": plan.nodes,
            "ranks": plan.processes_per_node,
            "threads": plan.threads_per_process,
            "precision": plan.precision,
            "allocator": plan.allocator,
            "openmp": plan.openmp,
        }
        row |= plan.settings
        row |= {"state": trial.state, "reason": trial.reason, "steps": trial.steps}
        row |= {"samples_per_second": None, "low": None, "high": None}
        if rate is not None:
            row |= {"samples_per_second": rate.centre, "low": rate.low, "high": rate.high}
        row["compared"] = result.is_compared(plan)
        rows.append(row)
    return rows


def trials_csv(result: Result) -> str:
    """The rows as CSV (RFC 4180) with headings."""
    rows = trial_rows(result)
    names = dict[str, None]()
    for row in rows:
        names.update(dict.fromkeys(row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return text.getvalue()


def _cell(value: object) -> object:
    """A cell's value, with a quote before text that a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    clean = " ".join(visible(value).split())
    if clean and clean[0] in "=+-@":
        return f"'{clean}"
    return clean
