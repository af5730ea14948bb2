"""The picture of the confirmation: every step in turn, those that others delayed marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cputune.plan import Plan
from cputune.report.page_chart import COLORS, Chart, chart_of, label
from cputune.report.page_plans import thinned
from cputune.result import Result

MOST_STEPS = 2000
MOST_NAMES = 12
"""Of plans, above the picture, that it grows for."""

SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon", "star")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """One step: where it stands in the order of all, of which plan, how long it took."""

    position: int
    plan: Plan
    seconds: float
    delayed: bool


def steps_chart(result: Result) -> Chart | None:
    """Step times in the order that they were taken; None where the result holds none."""
    taken, begun = _in_turn(result)
    if not taken:
        return None
    import plotly.graph_objects as go

    kept = thinned(taken, MOST_STEPS)
    unit, per_second = ("ms", 1000.0) if max(s.seconds for s in kept) < 1 else ("s", 1.0)
    drawing = go.Figure()
    plans = list(dict.fromkeys(step.plan for step in taken))
    for number, plan in enumerate(plans):
        own = [step for step in kept if step.plan == plan and not step.delayed]
        if not own:
            continue
        drawing.add_trace(
            go.Scatter(
                x=[step.position for step in own],
                y=[step.seconds * per_second for step in own],
                mode="markers",
                name=label(plan.describe()),
                marker={
                    "color": COLORS[number % 5],
                    "symbol": SYMBOLS[number % len(SYMBOLS)],
                    "size": 6,
                },
            )
        )
    delayed = [step for step in kept if step.delayed]
    if delayed:
        drawing.add_trace(
            go.Scatter(
                x=[step.position for step in delayed],
                y=[step.seconds * per_second for step in delayed],
                mode="markers",
                name="delayed by other processes",
                marker={"color": COLORS[5], "symbol": "x-thin-open", "size": 9},
            )
        )
    for position in begun[1:]:
        drawing.add_vline(x=position - 0.5, line={"width": 1, "dash": "dot", "color": COLORS[5]})
    drawing.update_xaxes(title={"text": "step, in the order that they were taken"})
    drawing.update_yaxes(title={"text": f"step time, {unit}"}, rangemode="tozero")
    count = sum(step.delayed for step in taken)
    thin = "" if len(kept) == len(taken) else f" {len(kept)} of {len(taken)} steps are drawn."
    return chart_of(
        drawing,
        height=380 + 22 * min(len(plans), MOST_NAMES),
        says=f"Step times of {len(plans)} plans that took turns, {len(taken)} steps; other "
        f"processes delayed {count} of them.{thin}",
        caption="The plans live at once and take a few steps each in turn; the first step after a "
        f"pause is slower, and does not count. Others delayed {count} of {len(taken)} steps. A "
        f"dotted line: new processes.{thin}",
    )


def _in_turn(result: Result) -> tuple[list[_Taken], list[int]]:
    """All steps in their order, and at which of them each round begins."""
    rounds = sorted({run.round for run in result.confirmation})
    steps: list[_Taken] = []
    begun: list[int] = []
    for number in rounds:
        turns = [
            (turn.place, run.plan, turn)
            for run in result.confirmation
            if run.round == number
            for turn in run.taken
        ]
        begun.append(len(steps))
        for _, plan, turn in sorted(turns, key=lambda of: of[0]):
            late = set(turn.delayed)
            steps += [
                _Taken(position=len(steps) + i, plan=plan, seconds=seconds, delayed=i in late)
                for i, seconds in enumerate(turn.step_seconds)
            ]
    return steps, begun if _lives_at_once(result.confirmation) else []


def _lives_at_once(runs: Sequence[object]) -> bool:
    return any(getattr(run, "turns", 0) for run in runs)
