"""``cputune report``: a result as one HTML page that needs no network.

Each figure is in one size for a desktop and one for a phone.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cputune import __version__
from cputune.errors import MissingPackageError
from cputune.host.interpreter import install_extra
from cputune.records.result import Result
from cputune.report.answer import cost_lines
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
from cputune.report.study_table import TrialRow, trial_rows
from cputune.report.writing import Rows
from cputune.text.documents import for_people, packaged_text
from cputune.text.plain import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cputune.host.facts import HostFacts
    from cputune.records.shared_texts import Verdict

MOST_ROWS = 30  # of the table of trials

# Width of a figure for a phone in inches of 96 pixels.
PHONE = 3.6

# The heading of each way to start the best plan.
LAUNCH_LABELS = {
    "train": "Train with it",
    "the same": "From the result",
    "launch files": "As files for a launcher",
    "variables": "By hand: the variables of every rank",
    "flags": "By hand: the flags of the script",
}

# A larger result is not stored in the page.
MOST_SAVED_BYTES = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One figure of the page, as SVG for a desktop and for a phone. ``says`` is for screen
    readers.
    """

    name: str
    says: str
    desk: str
    phone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    result: Result
    verdict: Verdict
    earlier: str | None
    costs: tuple[str, ...]
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
    """Render the page. ``file`` is the path of the result in the commands.

    ``facts`` are those of the machine that writes it. Raises MissingPackageError without jinja2 or
    matplotlib.
    """
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise MissingPackageError(
                f"the report needs {name}, which is not installed",
                hint=install_extra("report", "jinja2", "matplotlib"),
            )
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_cleaned,
    )
    drawn = environment.from_string(packaged_text("cputune.report", "page.html.j2"))
    text: str = drawn.render(page=page_of(result, file, facts), version=__version__)
    return text


def _cleaned(value: object) -> object:
    if type(value) is str:  # markupsafe.Markup is already HTML
        return visible(value)
    return value


def page_of(result: Result, file: str, facts: HostFacts | None = None) -> Page:
    shown = ResultToShow(result=result, file=file, facts=facts)
    trials = trial_rows(result)
    launch = []
    for name, text in shown.launch().items():
        if name in LAUNCH_LABELS:
            launch.append((LAUNCH_LABELS[name], text))
    verdict = shown.verdict()
    costs: tuple[str, ...] = ()
    if verdict.good:
        costs = tuple(cost_lines(result))
    earlier = None
    if result.earlier is not None:
        earlier = result.earlier.text(result.speedup)
    return Page(
        result=result,
        verdict=verdict,
        earlier=earlier,
        costs=costs,
        launch=tuple(launch),
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
    """The figures for which the result has data."""
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
    """The result as a data URL to save. None if it is too large for a page."""
    document = for_people(result.to_json()).encode()
    if len(document) > MOST_SAVED_BYTES:
        return None
    return f"data:application/json;base64,{base64.b64encode(document).decode()}"
