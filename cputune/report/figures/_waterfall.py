"""The steps from the baseline to the best plan, and the gain of each change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.records.result import WIDTH, Measured, Result, Worth
from cputune.report.figures.canvas import (
    BASELINE,
    BEST,
    DIM,
    INK,
    LOST,
    NARROW,
    OTHER,
    named_rows,
    new_figure,
)
from cputune.text.plain import figure as number, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Letters of a change's name per inch of width, so that its bar fits.
LETTERS_PER_INCH = 4.8


def waterfall(result: Result, *, width: float = WIDTH) -> Figure:
    """Draw the throughput of the baseline, the effect of each change, and that of the best plan.

    A whisker is a 95 % interval: of the throughput for a launch, of the ratio for a change.
    """
    changed = result.best.plan != result.baseline.plan
    worth: tuple[Worth, ...] = ()
    if changed:
        worth = result.worth
    height = 1.0 + 0.42 * (1 + len(worth) + changed)
    figure, axes = new_figure(width, height, "From the current launch to the best plan")
    named_rows(axes, _names(worth, changed, int(LETTERS_PER_INCH * width)))
    _draw_launch(axes, 0, result.baseline, BASELINE)
    speed = result.baseline.samples_per_second.centre
    for row, change in enumerate(worth, 1):
        speed = _draw_change(axes, row, speed, change)
    if changed:
        _draw_launch(axes, len(worth) + 1, result.best, BEST)
    axes.set_xlabel("samples per second")
    room = 2.1
    if width > NARROW:
        room = 1.5
    axes.set_xlim(0, room * axes.dataLim.xmax)
    return figure


def _names(worth: tuple[Worth, ...], changed: bool, letters: int) -> list[str]:
    names = ["baseline"]
    for change in worth:
        name = visible(f"{change.knob} {change.value}")
        if len(name) > letters:
            name = f"{name[: letters - 1]}…"
        names.append(name)
    if changed:
        names.append("best")
    return names


def _draw_launch(axes: Axes, row: int, launch: Measured, colour: str) -> None:
    speed = launch.samples_per_second
    axes.barh(row, speed.centre, height=0.62, color=colour)
    _whisker(axes, row, speed.low, speed.high)
    axes.annotate(
        number(speed.centre),
        (speed.high, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontsize=9,
        fontweight="bold",
    )


def _draw_change(axes: Axes, row: int, before: float, change: Worth) -> float:
    gain = change.speedup
    after = before * gain.ratio
    sure = gain.low > 1
    colour = OTHER
    if sure:
        colour = BEST
    elif gain.high < 1:
        colour = LOST
    axes.barh(row, after - before, left=before, height=0.62, color=colour, alpha=0.75)
    axes.plot([before, before], [row - 1, row + 0.31], color=DIM, linewidth=0.6)
    _whisker(axes, row, before * gain.low, before * gain.high)
    label = f"×{gain.ratio:.2f} ({gain.low:.2f}–{gain.high:.2f})"
    if not sure and gain.high >= 1:
        label += "\nundecided"
    place = (max(after, before * gain.high), row)
    axes.annotate(
        label, place, xytext=(6, 0), textcoords="offset points", va="center", color=INK, fontsize=9
    )
    return after


def _whisker(axes: Axes, row: int, low: float, high: float) -> None:
    axes.plot([low, high], [row, row], color=INK, linewidth=1.2)
    axes.plot([low, high], [row, row], color=INK, linestyle="none", marker="|", markersize=6)
