"""The pictures of the page, by plotly; the importance of knobs by optuna's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cputune.figures import figure
from cputune.report.page_chart import COLORS, Chart, chart_of, label
from cputune.report.page_importance import importance_chart
from cputune.report.page_plans import shown_rows, thinned
from cputune.report.page_steps import steps_chart
from cputune.report.summary import Summary
from cputune.result import FAILED, PRUNED, Result, Throughput, Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Scatter

ROW_PIXELS = 44
MOST_TRIAL_POINTS = 1000


def charts_of(result: Result, said: Summary) -> dict[str, Chart]:
    """Every picture that this result has something for, by its name."""
    found = {
        "worth": _worth(said),
        "plans": _plans(result),
        "trials": _trials(result),
        "steps": steps_chart(result),
        "importance": importance_chart(result),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def _worth(said: Summary) -> Chart | None:
    """What each change brings, as a factor with its interval."""
    known = [(change, change.worth) for change in said.changes if change.worth is not None]
    if len(known) < 2:
        return None
    rows = [f"{change.knob}: {change.best}" for change, _ in known]
    dots = [
        (i, Throughput(median=w.ratio, low=w.low, high=w.high)) for i, (_, w) in enumerate(known)
    ]
    drawing = _in_rows(rows, "times as fast as without it")
    drawing.add_trace(_dots(dots, COLORS[2], "circle", "worth", "times"))
    drawing.add_vline(x=1, line={"width": 1, "dash": "dot", "color": COLORS[5]})
    drawing.update_layout(showlegend=False)
    said_of = "; ".join(f"{c.knob} {c.best} ×{w.ratio:.2f}" for c, w in known)
    return chart_of(
        drawing,
        height=70 + ROW_PIXELS * len(rows),
        says=f"What each change is worth: {said_of}.",
        caption="Factor of each change with its 95 % interval; the dotted line is no change.",
    )


def _plans(result: Result) -> Chart | None:
    """The fastest plans in rows: what the search saw, and what was measured side by side."""
    rows = [row for row in shown_rows(result) if row.rate is not None or row.at_most is not None]
    if not rows:
        return None
    drawing = _in_rows([row.name for row in rows], "samples/s")
    searched = [(i, row.rate) for i, row in enumerate(rows) if row.rate is not None]
    confirmed = [(i, row.confirmed) for i, row in enumerate(rows) if row.confirmed is not None]
    if searched:
        drawing.add_trace(_dots(searched, COLORS[0], "circle", "in the search"))
    if confirmed:
        drawing.add_trace(_dots(confirmed, COLORS[1], "diamond", "side by side at the end"))
    bounds = [(i, row.at_most) for i, row in enumerate(rows) if row.at_most is not None]
    if bounds:
        drawing.add_trace(_bounds([x for _, x in bounds], [-i for i, _ in bounds]))
    drawing.update_xaxes(rangemode="tozero")
    told = [(row.name, row.rate) for row in rows if row.rate is not None][:1]
    fastest = "".join(
        f" The fastest: {name}, {figure(rate.median)} samples/s." for name, rate in told
    )
    left = _count(result) - len(rows)
    return chart_of(
        drawing,
        height=100 + ROW_PIXELS * len(rows),
        says=f"Throughput of {len(rows)} plans with 95 % intervals.{fastest}",
        caption="Samples per second with 95 % intervals, the fastest first."
        + (f" The {left} slower ones are not in this picture." if left > 0 else ""),
    )


def _count(result: Result) -> int:
    """Trials of which something can be drawn."""
    return sum(t.state != FAILED and _known(t) is not None for t in result.trials)


def _known(trial: Trial) -> float | None:
    if trial.state == PRUNED:
        return trial.at_most_samples_per_second
    return None if trial.samples_per_second is None else trial.samples_per_second.median


def _trials(result: Result) -> Chart | None:
    """Every trial in the order of the search, where the rows do not show them all."""
    if _count(result) <= len(shown_rows(result)):
        return None
    import plotly.graph_objects as go

    kept = thinned([t for t in result.trials if _known(t) is not None], MOST_TRIAL_POINTS)
    rates = [
        (t.number, t.samples_per_second)
        for t in kept
        if t.state != PRUNED and t.samples_per_second is not None
    ]
    pruned = [(t.number, _known(t) or 0.0) for t in kept if t.state == PRUNED]
    drawing = go.Figure()
    drawing.add_trace(
        go.Scatter(
            x=[number for number, _ in rates],
            y=[rate.median for _, rate in rates],
            error_y=_error([rate for _, rate in rates], thickness=1, width=0),
            mode="markers",
            name="measured",
            marker={"color": COLORS[0], "size": 5},
        )
    )
    if pruned:
        x, y = zip(*pruned, strict=True)
        drawing.add_trace(_bounds(x, y, "triangle-down-open"))
    drawing.update_xaxes(title={"text": "trial"})
    drawing.update_yaxes(title={"text": "samples/s"}, rangemode="tozero")
    thin = f" {len(kept)} of {_count(result)} are drawn, evenly chosen." * (
        len(kept) < _count(result)
    )
    return chart_of(
        drawing,
        height=360,
        says=f"Throughput of {len(kept)} trials in the order of the search.{thin}",
        caption=f"Every trial in the order of the search, with 95 % intervals.{thin}",
    )


def _in_rows(names: Sequence[str], unit: str) -> Figure:
    """An empty picture with a row for each name; the name stands above what is drawn in it."""
    import plotly.graph_objects as go

    drawing = go.Figure()
    for i, name in enumerate(names):
        drawing.add_annotation(
            text=label(name), x=0, xref="paper", xanchor="left", y=-i, yanchor="bottom",
            yshift=8, showarrow=False, align="left", font={"size": 12},
        )  # fmt: skip
    drawing.update_yaxes(visible=False, range=[0.6 - len(names), 0.8])
    drawing.update_xaxes(title={"text": unit})
    return drawing


def _dots(
    rows: Sequence[tuple[int, Throughput]],
    color: str,
    symbol: str,
    name: str,
    unit: str = "samples/s",
) -> Scatter:
    """Numbers with their intervals, each in its row."""
    import plotly.graph_objects as go

    known = [rate for _, rate in rows]
    return go.Scatter(
        x=[rate.median for rate in known],
        y=[-row for row, _ in rows],
        error_x=_error(known, thickness=2, width=4),
        mode="markers",
        name=name,
        marker={"color": color, "symbol": symbol, "size": 9},
        text=[
            f"{figure(rate.median)} {unit} ({figure(rate.low)}–{figure(rate.high)})"
            for rate in known
        ],
        hoverinfo="text",
    )


def _error(rates: Sequence[Throughput], *, thickness: int, width: int) -> dict[str, object]:
    """The intervals as plotly has them: how far they reach to either side."""
    return {
        "type": "data",
        "array": [max(0.0, rate.high - rate.median) for rate in rates],
        "arrayminus": [max(0.0, rate.median - rate.low) for rate in rates],
        "thickness": thickness,
        "width": width,
    }


def _bounds(x: Sequence[float], y: Sequence[float], symbol: str = "triangle-left-open") -> Scatter:
    """Plans that were given up: no more is known than that they are not faster than this."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=list(x), y=list(y), mode="markers", name="given up: at most this",
        marker={"color": COLORS[5], "symbol": symbol, "size": 9}, hoverinfo="x+y",
    )  # fmt: skip
