"""How the time of a step is spent, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from cputune.records.result import WIDTH, Measured, Profile, Result
from cputune.report.figures.canvas import (
    DIM,
    INK,
    NARROW,
    REST,
    WORK,
    ink_on,
    named_rows,
    new_figure,
)
from cputune.text.plain import figure as number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THE_REST = "the rest"

# The seconds of a step by kind of work.
Seconds = Mapping[str, float]


def step(result: Result, *, width: float = WIDTH) -> Figure | None:
    """Draw a step of the baseline and of the best plan by kind of work. None if not known.

    The bars are milliseconds of a step at the throughput measured without the profiler. The dashed
    line is the time of the matmuls at the limit of the same cores.
    """
    shown = _profiled(result)
    if not shown:
        return None
    samples = result.workload.global_batch_size or 1
    parts = []
    for _, measured, profile in shown:
        parts.append(_seconds(profile, samples / measured.samples_per_second.centre))
    kinds = []
    for kind in WORK:
        if any(kind in seconds for seconds in parts):
            kinds.append(kind)
    kinds.append(THE_REST)
    columns = max(2, int(width / 1.5))
    lines = ceil(len(kinds) / columns)
    height = 1.15 + 0.62 * len(shown) + 0.22 * lines
    figure, axes = new_figure(width, height, "A step, by kind of work")
    named_rows(axes, [name for name, _, _ in shown])
    for row, ((_, _, profile), seconds) in enumerate(zip(shown, parts, strict=True)):
        _draw_step(axes, row, seconds, kinds, 0.07 if width > NARROW else 0.13)
        _draw_limit(axes, row, profile, sum(seconds.values()))
    axes.set_xlabel(f"milliseconds of a step of {samples} samples")
    legend = figure.legend(
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=1,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_color(INK)
    return figure


def _profiled(result: Result) -> list[tuple[str, Measured, Profile]]:
    baseline, best = result.baseline, result.best
    name = "best"
    if best.plan == baseline.plan:
        name = "baseline"
    profiled = []
    for launch_name, launch, profile in (
        ("baseline", baseline, result.baseline_profile),
        (name, best, result.profile),
    ):
        if profile is None or profile.plan != launch.plan:
            continue
        if launch.samples_per_second.centre > 0:
            profiled.append((launch_name, launch, profile))
    return profiled


def _seconds(profile: Profile, step_seconds: float) -> Seconds:
    """The seconds of each kind of work that has a colour, and of the rest."""
    total = sum(profile.shares.values()) or 1.0
    kinds: dict[str, float] = {}
    rest = 0.0
    for kind, share in sorted(profile.shares.items(), key=lambda part: -part[1]):
        seconds = step_seconds * share / total
        if kind in WORK and share > 0.01:
            kinds[kind] = seconds
        else:
            rest += seconds
    kinds[THE_REST] = rest
    return kinds


def _draw_step(
    axes: Axes, row: int, seconds: Seconds, kinds: list[str], least_share: float
) -> None:
    begin, step_seconds = 0.0, sum(seconds.values())
    for kind in kinds:
        wide = 1000 * seconds.get(kind, 0.0)
        label = None
        if row == 0:
            label = kind
        colour = WORK.get(kind, REST)
        axes.barh(row, wide, left=begin, height=0.62, color=colour, label=label)
        if wide > 1000 * step_seconds * least_share:
            axes.text(
                begin + wide / 2, row, number(wide), ha="center", va="center", color=ink_on(colour),
                fontsize=8.5,
            )  # fmt: skip
        begin += wide
    axes.annotate(
        f"{number(begin)} ms", (begin, row), xytext=(6, 0), textcoords="offset points",
        va="center", color=INK, fontsize=9, fontweight="bold",
    )  # fmt: skip
    axes.set_xlim(0, max(axes.get_xlim()[1], 1.18 * begin))


def _draw_limit(axes: Axes, row: int, profile: Profile, step_seconds: float) -> None:
    """Draw how long the matmuls would take at the limit of the cores."""
    if not profile.gflops or not profile.limit_gflops:
        return
    at = 1000 * step_seconds * profile.gflops / profile.limit_gflops
    axes.plot([at, at], [row - 0.4, row + 0.4], color=INK, linestyle="--", linewidth=1.2)
    axes.annotate(
        "the matmuls, at the limit of the cores", (at, row - 0.4), xytext=(0, 2),
        textcoords="offset points", ha="left", va="bottom", color=DIM, fontsize=8,
    )  # fmt: skip
