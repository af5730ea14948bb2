"""What a notebook shows: a running study, a result at the end of a cell, its trials as a frame."""

from __future__ import annotations

import sys
import time
import warnings
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cputune.errors import CputuneError, MissingPackageError
from cputune.host.probing import probe
from cputune.records.result import Result
from cputune.report.figures import waterfall
from cputune.report.figures.canvas import svg
from cputune.report.live_view import Standing, live_lines
from cputune.report.show import ResultToShow
from cputune.report.trials import trial_rows
from cputune.text.plain import visible
from cputune.tuner.events import Event, OnEvent, StudyEnded

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = 100  # fits without a scroll bar

# A browser does not need every step.
LEAST_SECONDS = 0.5


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return False
    return type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell"


def view(started: float) -> OnEvent:
    """Draw the standing of a study below the cell, again and again in its place.

    ``started`` is when the study began, by ``time.monotonic()``.
    """
    from IPython.display import DisplayHandle, display

    _import_tqdm()
    standing, drawn_at = Standing(started=started), 0.0
    handle: DisplayHandle = display(_Text(""), display_id=True)

    def hear(event: Event) -> None:
        nonlocal drawn_at
        standing.take(event)
        now = time.monotonic()
        if isinstance(event, StudyEnded):
            handle.update(_Text(""))
        elif now - drawn_at >= LEAST_SECONDS:
            drawn_at = now
            lines = live_lines(standing, now, COLUMNS)
            text = "\n".join(line.plain for line in lines)
            handle.update(_Text(text, standing.share(now)))

    return hear


def _import_tqdm() -> None:
    """Import tqdm, which optuna needs, without its warning about ipywidgets."""
    if find_spec("tqdm") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import_module("tqdm.auto")


class _Text:
    """Text of a fixed width, and in a browser a progress bar if ``share`` (0 to 1) is known."""

    def __init__(self, text: str, share: float | None = None) -> None:
        self._text = text
        self._share = share

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = ""
        if self._share is not None:
            bar = f'<progress value="{self._share:.3f}" max="1" style="width:40em"></progress>'
        return f'{bar}<pre style="line-height:1.3">{escape(self._text)}</pre>'


def html_of(result: Result) -> str:
    """The verdict, and the waterfall if matplotlib is installed."""
    verdict = _shown(result).verdict()
    means, sure = escape(visible(verdict.means)), escape(visible(verdict.sure))
    text = f"<p><strong>{means}</strong><br><small>How sure: {sure}</small></p>"
    if find_spec("matplotlib") is None:
        return f"<div>{text}</div>"
    picture = svg(waterfall(result), f"cputune-{id(result)}")
    ground = "background:#ffffff;color:#1b1f24;padding:.5em"
    return f'<div style="{ground}">{text}{picture}</div>'


def _shown(result: Result) -> ResultToShow:
    try:
        facts = probe()
    except CputuneError:
        facts = None
    return ResultToShow(result=result, facts=facts)


def frame_of(result: Result) -> DataFrame:
    """The rows of ``trial_rows`` as a pandas frame. Raises MissingPackageError."""
    if find_spec("pandas") is None:
        raise MissingPackageError(
            "a frame needs pandas, which is not installed", hint="pip install pandas"
        )
    from pandas import DataFrame

    return DataFrame(trial_rows(result)).set_index("trial")
