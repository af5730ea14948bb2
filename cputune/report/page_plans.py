"""The plans of a study on the page: which are shown, their table, and where pictures stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cputune.figures import figure
from cputune.plan import Plan
from cputune.report.page_chart import Chart, drawn
from cputune.report.page_markup import Markup, number, table, tag
from cputune.report.page_parts import interval, section
from cputune.report.tuning import fastest_first, outcome
from cputune.result import FAILED, PRUNED, Result, Throughput

MOST_ROWS = 30
MOST_REASON = 300
"""Letters of a failure's reason; the result file holds the whole."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trial as it is shown.

    ``rate`` is what was measured, ``at_most`` all that is known of one that was given up;
    ``confirmed`` is what was measured side by side at the end.
    """

    number: int
    name: str
    rate: Throughput | None
    at_most: float | None
    confirmed: Throughput | None
    origin: str
    remark: str


def shown_rows(result: Result) -> list[Row]:
    """The fastest trials, then those that were given up, then those that failed.

    Today's launch is among them, however slow it is.
    """
    ordered = sorted(result.trials, key=fastest_first)
    shown = ordered[:MOST_ROWS]
    today = [t for t in ordered[MOST_ROWS:] if t.plan == result.baseline.plan]
    sides = _side_by_side(result)
    rows = []
    for trial in (*shown, *today[:1]):
        marks = []
        if trial.plan == result.baseline.plan:
            marks.append("today" if trial.plan.as_found else "compared with")
        if trial.plan == result.best.plan:
            marks.append("best")
        measured = trial.state not in (PRUNED, FAILED)
        if trial.state == PRUNED:
            marks.append("cut short" if trial.cut_short else "given up: most likely slower")
        if trial.state == FAILED:
            marks.append(outcome(trial)[:MOST_REASON])
        rows.append(
            Row(
                number=trial.number,
                name=trial.plan.describe(),
                rate=trial.samples_per_second if measured else None,
                at_most=trial.at_most_samples_per_second if trial.state == PRUNED else None,
                confirmed=sides.get(trial.plan),
                origin=trial.origin,
                remark=", ".join(marks),
            )
        )
    return rows


def _side_by_side(result: Result) -> dict[Plan, Throughput]:
    """What the confirmation said of each plan that had a part in it, the last sitting first."""
    runs = [(run.plan, run.samples_per_second) for run in result.confirmation]
    found = {plan: rate for plan, rate in runs if rate is not None}
    if found:
        for side in (result.best, result.baseline):
            found[side.plan] = side.samples_per_second
    return found


def plans_section(result: Result, charts: Mapping[str, Chart]) -> Markup:
    """Throughput of every plan that was tried: a picture, and a table of the same."""
    rows = shown_rows(result)
    head = "Every plan that was tried"
    if not rows:
        return section(head, tag("p", "No plan was tried."))
    left = len(result.trials) - len(rows)
    wanted = result.budget
    words = []
    if wanted is not None and len(result.trials) < wanted:
        were = "was" if len(result.trials) == 1 else "were"
        words.append(f"{len(result.trials)} of {wanted} trials {were} run.")
    if all(trial.state == FAILED for trial in result.trials):
        words.append("Not one of them gave a number.")
    if left:
        words.append(f"{left} trials are not in this table; the result file holds them all.")
    caption = "Samples per second: the median and its 95 % interval, the fastest first"
    return section(
        head,
        *(tag("p", text) for text in words),
        drawn("plans", charts),
        drawn("trials", charts),
        table(
            caption,
            (
                "trial",
                "plan (ranks × threads each)",
                "in the search",
                "side by side",
                "from",
                "remark",
            ),
            [
                (
                    str(row.number),
                    row.name,
                    number(_said(row)),
                    number(_rate(row.confirmed)),
                    row.origin,
                    row.remark,
                )
                for row in rows
            ],
        ),
    )


def _said(row: Row) -> str:
    return _rate(row.rate) if row.at_most is None else f"at most {figure(row.at_most)}"


def _rate(rate: Throughput | None) -> str:
    return "–" if rate is None else f"{figure(rate.median)} ({interval(rate)})"


def steps_section(result: Result, charts: Mapping[str, Chart]) -> Markup:
    """The confirmation: its steps in the order that they were taken; the knobs' importance."""
    words = []
    if not result.confirmation:
        words.append("Nothing was measured again side by side: speeds are those of single trials.")
    elif "steps" not in charts:
        words.append("The result does not hold the steps of its confirmation.")
    failed = [run for run in result.confirmation if run.samples_per_second is None]
    items = [
        tag("li", f"{run.plan.describe()}: {(run.reason or 'no number')[:MOST_REASON]}")
        for run in failed[:MOST_ROWS]
    ]
    knobs = drawn("importance", charts) or tag(
        "p", "Too few trials gave a number to tell which knobs matter.", class_="dim"
    )
    return Markup(
        section(
            "Side by side at the end",
            *(tag("p", text) for text in words),
            drawn("steps", charts),
            tag("ul", *items, aria_label="Runs without a number") if items else Markup(),
        )
        + section("Which knobs matter", knobs)
    )


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """So many of them at most, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]
