"""Sizes, colours and helpers that all figures share.

Figures are made without pyplot, which keeps all of them in a list. The colours are those of Okabe
and Ito ("Color Universal Design", 2008), which colour-blind readers can distinguish.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from importlib.util import find_spec
from textwrap import wrap
from typing import TYPE_CHECKING

from cputune.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Width in inches of a figure for a phone, which has fewer words.
NARROW = 4.5

INK, DIM, LINE, GROUND = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"
# The baseline; the best plan; another plan; failed, or slower.
BASELINE, BEST, OTHER, LOST = "#6e7781", "#0072b2", "#a9b8c6", "#d55e00"

# Colour of each rank. From the ninth rank on they repeat, and the number tells the ranks apart.
RANKS = ("#0072b1", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e02", "#f0e442", "#8c959f")

# Kinds of work that have a colour. No colour of WORK or RANKS is that of a role, because roles
# have other colours on a dark page.
WORK = {
    "matrix products": "#0072b3",
    "attention": "#56b4e9",
    "optimizer": "#009e73",
    "dropout masks": "#e69f00",
    "embeddings": "#cc79a7",
    "activations": "#f0e442",
    "copies": "#8c959f",
    "waiting for data": "#d55e01",
    "all-reduce": "#332288",
}

REST = "#d0d7df"

_ROLES = {
    INK: "ink",
    DIM: "dim",
    LINE: "line",
    GROUND: "ground",
    BASELINE: "baseline",
    BEST: "best",
    OTHER: "other",
    LOST: "lost",
}


def new_figure(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes, sizes in inches. Raises MissingPackageError."""
    if find_spec("matplotlib") is None:
        raise MissingPackageError(
            "figures need matplotlib, which is not installed",
            hint="pip install 'cputune[report]'",
        )
    from cputune.report.figures._shown import ShownFigure

    figure = ShownFigure(figsize=(width, height), layout="constrained", facecolor=GROUND)
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    figure.suptitle(
        "\n".join(wrap(title, int(10 * width))),
        x=0.01,
        ha="left",
        color=INK,
        fontsize=11,
        fontweight="bold",
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(colors=DIM, labelsize=9)
    axes.xaxis.label.set_color(DIM)
    axes.yaxis.label.set_color(DIM)
    return figure, axes


def ink_on(colour: str) -> str:
    """Black or white, whichever has more contrast on a colour (WCAG 2.2, relative luminance)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = []
    for value in channels:
        if value <= 0.04045:
            linear.append(value / 12.92)
        else:
            linear.append(((value + 0.055) / 1.055) ** 2.4)
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    if luminance > 0.179:
        return "#000000"
    return "#fffffe"


def named_rows(axes: Axes, names: Sequence[str]) -> None:
    """Make a row for each name, the first on top."""
    axes.set_yticks(range(len(names)), names, color=INK, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def svg(figure: Figure, name: str) -> str:
    """The figure as SVG for a page: text stays text, and colours can be set by the page.

    ``name`` prefixes each id. A colour with a meaning becomes a variable of the page (``--ink``,
    ``--best``), with the colour itself as the default.
    """
    import matplotlib
    from matplotlib.text import Text

    for written in figure.findobj(Text):
        written.set_parse_math(False)  # a name may contain a dollar sign
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"font: [^;]*?(\d[\d.]*)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    for colour, role in _ROLES.items():
        text = re.sub(rf"(fill|stroke): {colour}\b", rf"\1: var(--{role}, {colour})", text)
    return text


def alone(picture: str) -> str:
    """An SVG for a separate file: white background, and colours without variables."""
    drawn = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", picture)
    return re.sub("<svg ", f'<svg style="background:{GROUND}" ', drawn, count=1)
