"""The comparison of the best plan with the baseline, round by round."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from cputune.records.result import WIDTH, ConfirmRun, Result, Turn
from cputune.report.figures.canvas import BEST, DIM, INK, LINE, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The ratio of the best plan to the baseline in each round of a block.
Rounds = tuple[float, ...]


def comparison(result: Result, *, width: float = WIDTH) -> Figure | None:
    """Draw the ratio of each round. None if nothing was compared.

    A point is a round: both plans ran some steps one after the other. A new block starts new
    processes. The band is the 95 % interval.
    """
    blocks = rounds_by_block(result)
    if not blocks:
        return None
    figure, axes = new_figure(width, 2.7, "Best plan and current launch, round by round")
    begin = 0
    for number, rounds in enumerate(blocks):
        end = begin + len(rounds)
        if number % 2:
            axes.axvspan(begin - 0.5, end - 0.5, color=LINE, alpha=0.35, linewidth=0)
        axes.plot(range(begin, end), rounds, marker="o", markersize=6, linestyle="", color=BEST)
        axes.annotate(
            f"block {number + 1}",
            ((begin + end - 1) / 2, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color=DIM,
            fontsize=8,
        )
        begin = end
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    if result.speedup is not None:
        axes.axhspan(result.speedup.low, result.speedup.high, color=BEST, alpha=0.15, linewidth=0)
        axes.axhline(result.speedup.ratio, color=BEST, linewidth=1.2)
    axes.set_xlim(-0.5, begin - 0.5)
    axes.set_xticks([])
    axes.set_xlabel("rounds, in their order")
    axes.set_ylabel("times as fast")
    axes.margins(y=0.25)
    return figure


def rounds_by_block(result: Result) -> tuple[Rounds, ...]:
    """The ratio of each round in which both plans ran steps, by block."""
    blocks = []
    by_round: dict[int, list[ConfirmRun]] = {}
    for run in result.confirmation:
        by_round.setdefault(run.round, []).append(run)
    for runs in by_round.values():
        baseline = _run_of(runs, result, best=False)
        best = _run_of(runs, result, best=True)
        if baseline is None or best is None or baseline.plan == best.plan:
            continue
        ratios = _ratios(baseline, best)
        if ratios:
            blocks.append(ratios)
    return tuple(blocks)


def _run_of(runs: list[ConfirmRun], result: Result, *, best: bool) -> ConfirmRun | None:
    plan = result.baseline.plan
    if best:
        plan = result.best.plan
    return next((run for run in runs if run.plan == plan), None)


def _ratios(baseline: ConfirmRun, best: ConfirmRun) -> Rounds:
    if not baseline.taken and baseline.samples_per_second and best.samples_per_second:
        return (best.samples_per_second.centre / baseline.samples_per_second.centre,)
    pairs = zip(baseline.taken, best.taken, strict=False)
    slow_fast = [(_step_seconds(slow), _step_seconds(fast)) for slow, fast in pairs]
    return tuple(slow / fast for slow, fast in slow_fast if slow and fast)


def _step_seconds(turn: Turn) -> float | None:
    """The median of the steps, without the first after the pause and without delayed ones."""
    skipped = 0
    if len(turn.step_seconds) > 1:
        skipped = 1
    kept = []
    for place, seconds in enumerate(turn.step_seconds):
        if place >= skipped and place not in turn.delayed:
            kept.append(seconds)
    if not kept:
        return None
    return median(kept)
