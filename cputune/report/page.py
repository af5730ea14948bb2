"""``cputune report``: a result as one page of HTML that needs no network.

The verdict and what to type come first; then what each change brings, where the time of a step
goes, how the plans were compared, the machine, what would pay and was not tried, the trials, and
how it was measured. The pictures are those of ``cputune.report.figures``, each drawn twice: for a
desk and for a telephone.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cputune import __version__
from cputune.errors import MissingPackageError
from cputune.host.interpreter import install_extra
from cputune.records.result import Result
from cputune.report.figures import FiguresOf
from cputune.report.figures.canvas import svg
from cputune.report.show import (
    ResultToShow,
    basis,
    change_rows,
    profile_lines,
    speeds,
    time_rows,
)
from cputune.report.tuning import TrialRow, trial_rows
from cputune.report.writing import Rows
from cputune.text.documents import for_people
from cputune.text.plain import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cputune.host.facts import HostFacts
    from cputune.records.words import Verdict

MOST_ROWS = 30
"""Of the table of trials, the fastest first."""

PHONE = 3.6
"""Inches that a picture is wide, of 96 pixels each; on a desk it is as wide as the text."""

WAYS = {
    "train": "Train with it",
    "the same": "From the result",
    "launch files": "As files for a launcher",
    "variables": "By hand: the variables of every rank",
    "flags": "By hand: the flags of the script",
}
"""How the page calls each way to start the best plan."""

MOST_SAVED_BYTES = 250_000
"""A result that is larger is not kept in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture of the page, as SVG for a desk and for a telephone; ``says`` is read aloud."""

    name: str
    says: str
    desk: str
    phone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the template shows."""

    result: Result
    verdict: Verdict
    launch: tuple[tuple[str, str], ...]
    speeds: Rows
    notes: tuple[str, ...]
    pictures: dict[str, Picture]
    changes: Rows
    times: Rows
    limits: tuple[str, ...]
    trials: tuple[TrialRow, ...]
    more_trials: int
    basis: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    saved: str | None


def page(result: Result, file: str = "cputune.json", facts: HostFacts | None = None) -> str:
    """The whole page. ``file`` is the path of the result, for the commands to copy.

    ``facts`` are those of the machine on which it is written; None if they are not known.

    Raises MissingPackageError without jinja2 or matplotlib.
    """
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise MissingPackageError(
                f"the report needs {name}, which is not installed",
                hint=install_extra("report", "jinja2", "matplotlib"),
            )
    import jinja2

    template = resources.files("cputune.report").joinpath("page.html.j2")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda said: visible(said) if type(said) is str else said,
    )
    drawn = environment.from_string(template.read_text(encoding="utf-8"))
    text: str = drawn.render(page=page_of(result, file, facts), version=__version__)
    return text


def page_of(result: Result, file: str, facts: HostFacts | None = None) -> Page:
    """What the page of a result shows."""
    shown = ResultToShow(result=result, file=file, facts=facts)
    trials = trial_rows(result)
    return Page(
        result=result,
        verdict=shown.verdict(),
        launch=tuple((WAYS[way], text) for way, text in shown.launch().items() if way in WAYS),
        speeds=speeds(result),
        notes=shown.notes(),
        pictures={picture.name: picture for picture in pictures(result)},
        changes=change_rows(result),
        times=time_rows(result),
        limits=tuple(profile_lines(result)),
        trials=trials[:MOST_ROWS],
        more_trials=max(0, len(trials) - MOST_ROWS),
        basis=basis(result),
        left_out=tuple(dict.fromkeys((out.what, out.why) for out in result.left_out)),
        saved=saved(result),
    )


def pictures(result: Result) -> tuple[Picture, ...]:
    """Those that there is something to draw for."""
    figures = FiguresOf(result)
    drawn = (
        _picture("change", "What each change brings", figures.waterfall),
        _picture("step", "Where the time of a step goes, by kind of work", figures.step),
        _picture("comparison", "The ratio of each round of the comparison", figures.comparison),
        _picture("machine", "The cores of the machine, and which rank has them", figures.machine),
        _picture("trials", "The speed of each trial, and the best so far", figures.trials),
    )
    return tuple(picture for picture in drawn if picture is not None)


def _picture(name: str, says: str, draw: Callable[..., Figure | None]) -> Picture | None:
    desk, phone = draw(), draw(width=PHONE)
    if desk is None or phone is None:
        return None
    return Picture(
        name=name, says=says, desk=svg(desk, f"{name}-desk"), phone=svg(phone, f"{name}-phone")
    )


def saved(result: Result) -> str | None:
    """The result as an address that a browser saves; None where it is too large for a page."""
    document = for_people(result.to_json()).encode()
    if len(document) > MOST_SAVED_BYTES:
        return None
    return f"data:application/json;base64,{base64.b64encode(document).decode()}"
