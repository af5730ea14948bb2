"""A picture of the page: what plotly draws, and the words that stand for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from cputune.report.page_markup import Markup, tag
from cputune.visible import visible

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLORS = ("#3574b8", "#b8620a", "#1b8560", "#8a5cc9", "#c2453f", "#6f7780")
"""Each is told from white and from the dark ground of the page (contrast 3 and more)."""

LABEL_LETTERS = 50
"""Of a text inside a picture; a phone has room for so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture.

    Attributes:
        figure: data and layout for plotly, as JSON values.
        height: in pixels.
        says: what is to be seen, for whoever cannot see it.
        caption: how it is to be read.
    """

    figure: Any
    height: int
    says: str
    caption: str


def chart_of(figure: Figure, *, height: int, says: str, caption: str) -> Chart:
    """A figure in the manner of the page: colours of text and ground are the page's own.

    The axes stay where they are: a finger on a phone scrolls the page, and not the picture.
    """
    clear = "rgba(0,0,0,0)"
    figure.update_layout(
        template="none",
        title=None,
        height=height,
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        margin={"l": 8, "r": 16, "t": 8, "b": 52},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "bgcolor": clear},
        dragmode=False,
        hovermode="closest",
    )
    axes = {"fixedrange": True, "automargin": True, "title": {"font": {"size": 13}}}
    figure.update_xaxes(axes)
    figure.update_yaxes(axes)
    return Chart(figure=json.loads(figure.to_json()), height=height, says=says, caption=caption)


def drawn(name: str, charts: Mapping[str, Chart]) -> Markup:
    """The place where a picture is drawn; nothing where there is no such picture."""
    chart = charts.get(name)
    if chart is None:
        return Markup()
    holder = tag(
        "div",
        class_="plot",
        id=f"chart-{name}",
        data_chart=f"data-{name}",
        role="img",
        aria_label=chart.says,
        style=f"min-height:{chart.height}px",
    )
    return tag("figure", holder, tag("figcaption", chart.caption), class_="chart")


def label(text: str) -> str:
    """A text for inside a picture, where plotly reads some HTML: as short as there is room."""
    short = text if len(text) <= LABEL_LETTERS else text[: LABEL_LETTERS - 1] + "…"
    return escape(visible(short))
