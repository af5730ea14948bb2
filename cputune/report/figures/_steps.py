"""The steps of one trial."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.errors import UsageError
from cputune.records.result import WIDTH, Result, Trial
from cputune.report.figures.canvas import BEST, DIM, INK, LINE, LOST, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def steps(result: Result, number: int, *, width: float = WIDTH) -> Figure | None:
    """Draw the seconds of each step of a trial. None if it has no steps.

    Grey steps are the warm-up, and crosses are steps that other processes delayed. Raises
    UsageError if there is no such trial.
    """
    trial = _numbered(result, number)
    taken = trial.taken
    if taken is None or not taken.step_seconds:
        return None
    title = f"Steps of trial {trial.number}: {trial.plan.short()}"
    figure, axes = new_figure(width, 2.6, title)
    places = range(1, len(taken.step_seconds) + 1)
    axes.plot(places, taken.step_seconds, color=LINE, linewidth=1)
    warm, late = trial.warmup_steps, set(taken.delayed)
    for place, seconds in zip(places, taken.step_seconds, strict=True):
        if place - 1 in late:
            axes.plot(place, seconds, marker="x", markersize=7, color=LOST)
        else:
            colour = BEST
            if place <= warm:
                colour = DIM
            axes.plot(place, seconds, marker="o", markersize=5, color=colour)
    _draw_legend(axes, warm=warm > 0, late=bool(late))
    axes.set_ylim(0, 1.15 * max(taken.step_seconds))
    axes.set_xlim(0.4, len(taken.step_seconds) + 0.6)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("step")
    axes.set_ylabel("seconds")
    return figure


def _draw_legend(axes: Axes, *, warm: bool, late: bool) -> None:
    axes.plot([], [], marker="o", linestyle="", color=BEST, label="counts")
    if warm:
        axes.plot([], [], marker="o", linestyle="", color=DIM, label="warm-up")
    if late:
        axes.plot([], [], marker="x", linestyle="", color=LOST, label="delayed by others")
    legend = axes.legend(loc="lower right", ncols=3, frameon=False, fontsize=8.5)
    for text in legend.get_texts():
        text.set_color(INK)


def _numbered(result: Result, number: int) -> Trial:
    for trial in result.trials:
        if trial.number == number:
            return trial
    last = max((trial.number for trial in result.trials), default=0)
    raise UsageError(f"the result has no trial {number}", hint=f"use a number from 0 to {last}")
