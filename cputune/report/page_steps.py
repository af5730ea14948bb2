"""The picture of the confirmation: every step in turn, those that others delayed marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cputune.plan import Plan
from cputune.report.page_chart import COLORS, Chart, chart_of, label
from cputune.report.page_plans import thinned
from cputune.result import Result

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_STEPS = 2000
MOST_NAMES = 12
"""Of plans, above the picture, that it grows for."""

DELAYED = "delayed by other processes"
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
    kept = thinned(taken, MOST_STEPS)
    plans = list(dict.fromkeys(step.plan for step in taken))
    drawing = _drawing(kept, plans)
    alive = any(run.turns for run in result.confirmation)
    for position in begun[1:] if alive else ():
        drawing.add_vline(x=position - 0.5, line={"width": 1, "dash": "dot", "color": COLORS[5]})
    late = f"Others delayed {sum(step.delayed for step in taken)} of {len(taken)} steps."
    late += "" if len(kept) == len(taken) else f" {len(kept)} of them are drawn, evenly chosen."
    return chart_of(
        drawing,
        height=380 + 22 * min(len(plans), MOST_NAMES),
        says=f"Step times of {len(plans)} plans, {len(taken)} steps. {late}",
        caption=f"{_ALIVE if alive else _AFRESH} {late}",
    )


_ALIVE = (
    "The plans live at once and take a few steps each in turn; the first step after a pause is "
    "slower, and does not count. A dotted line: new processes."
)
_AFRESH = (
    "In each round every plan ran in new processes; their first steps warm up, and do not count."
)


def _drawing(steps: Sequence[_Taken], plans: Sequence[Plan]) -> Figure:
    """A colour and a sign for each plan; a cross for what others delayed, whose ever it was."""
    import plotly.graph_objects as go

    longest = max(step.seconds for step in steps)
    unit, per_second = ("ms", 1000.0) if longest < 1 else ("s", 1.0)
    drawing = go.Figure()

    def mark(name: str, own: Sequence[_Taken], marker: dict[str, object]) -> None:
        if own:
            x, y = [s.position for s in own], [s.seconds * per_second for s in own]
            drawing.add_trace(go.Scatter(x=x, y=y, mode="markers", name=name, marker=marker))

    for number, plan in enumerate(plans):
        own = [step for step in steps if step.plan == plan and not step.delayed]
        symbol = SYMBOLS[number % len(SYMBOLS)]
        mark(
            label(plan.describe()), own, {"color": COLORS[number % 5], "symbol": symbol, "size": 6}
        )
    cross = {"color": COLORS[5], "symbol": "x-thin-open", "size": 9}
    mark(DELAYED, [step for step in steps if step.delayed], cross)
    drawing.update_xaxes(title={"text": "step, in the order that they were taken"})
    drawing.update_yaxes(title={"text": f"step time, {unit}"}, rangemode="tozero")
    return drawing


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
    return steps, begun
