"""The trials of a study in the order in which they ran."""

from __future__ import annotations

from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING

from cputune.records.result import COMPLETED, FAILED, WIDTH, Result, Throughput, Trial
from cputune.report.figures.canvas import BASELINE, BEST, DIM, INK, LOST, OTHER, new_figure

# With more trials only every second, third ... one is drawn. With at most MOST_IN_WORDS the figure
# also names how they ended.
MOST_SHOWN, MOST_IN_WORDS = 150, 40

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def trials(result: Result, *, width: float = WIDTH) -> Figure:
    """Draw the throughput of each trial, and the best so far as a line.

    A whisker is the 95 % interval. A triangle is an upper bound for a plan that was stopped early.
    A cross is a failed trial.
    """
    shown = result.trials[:: ceil(len(result.trials) / MOST_SHOWN) or 1]
    title = "The trials, as they were run"
    if len(shown) < len(result.trials):
        title += f": {len(shown)} of {len(result.trials)}"
    figure, axes = new_figure(width, 3.1, title)
    for trial in shown:
        rate = _rate(result, trial)
        if rate is not None:
            _draw_speed(axes, trial, rate, _colour(result, trial))
        else:
            _draw_unmeasured(axes, trial, as_text=len(result.trials) <= MOST_IN_WORDS)
    numbers = [trial.number for trial in result.trials]
    best = list(accumulate((_speed(_rate(result, trial)) for trial in result.trials), max))
    axes.step(numbers, best, where="post", color=BEST, linewidth=1, alpha=0.6, label="best so far")
    top = max((_top(result, trial) for trial in shown), default=0.0) or 1.0
    axes.set_ylim(0, 1.25 * top)
    axes.set_xlim(-0.6, max(numbers, default=0) + 0.6)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("trial")
    axes.set_ylabel("samples per second")
    legend = axes.legend(loc="upper left", frameon=False, fontsize=8.5)
    for text in legend.get_texts():
        text.set_color(INK)
    return figure


def _rate(result: Result, trial: Trial) -> Throughput | None:
    if trial.state != COMPLETED:
        return None
    return result.throughput_of(trial.plan)


def _speed(rate: Throughput | None) -> float:
    if rate is None:
        return 0.0
    return rate.centre


def _top(result: Result, trial: Trial) -> float:
    rate = _rate(result, trial)
    bounds = [trial.at_most_samples_per_second or 0.0]
    if rate is not None:
        bounds.append(rate.high)
    return max(bounds)


def _colour(result: Result, trial: Trial) -> str:
    if trial.plan == result.baseline.plan:
        return BASELINE
    if trial.plan == result.best.plan:
        return BEST
    return OTHER


def _draw_speed(axes: Axes, trial: Trial, rate: Throughput, colour: str) -> None:
    axes.plot([trial.number] * 2, [rate.low, rate.high], color=INK, linewidth=1)
    axes.plot(trial.number, rate.centre, marker="o", markersize=7, color=colour)
    names = {BASELINE: "baseline", BEST: "best"}
    if colour in names:
        axes.annotate(
            names[colour],
            (trial.number, rate.high),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=INK,
            fontsize=8.5,
        )


def _draw_unmeasured(axes: Axes, trial: Trial, *, as_text: bool) -> None:
    at = trial.at_most_samples_per_second or 0.0
    if trial.state == FAILED:
        axes.plot(trial.number, at, marker="x", markersize=7, color=LOST, clip_on=False)
        label: str = trial.kind or FAILED
    else:
        axes.plot(trial.number, at, marker="v", markersize=7, markerfacecolor="none", color=DIM)
        label = "stopped"
        if trial.cut_short:
            label = "cut short"
    if not as_text:
        return
    axes.annotate(
        label,
        (trial.number, at),
        xytext=(0, 8),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        color=DIM,
        fontsize=8,
    )
