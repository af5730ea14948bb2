"""``cputune report``: a result as one page of HTML that needs no network.

What is said comes from ``cputune.report.summary``; here stands in which order. Every picture
has its numbers beside it in words or in a table, for whoever cannot see it.
"""

from __future__ import annotations

import base64
import gzip
from importlib import resources
from importlib.util import find_spec

from cputune import __version__
from cputune.errors import MissingPackageError
from cputune.report.page_charts import charts_of
from cputune.report.page_machine import machine_section
from cputune.report.page_markup import Markup, data, joined, raw, tag
from cputune.report.page_parts import (
    findings_section,
    launch_section,
    study_section,
    verdict_section,
    worth_section,
)
from cputune.report.page_plans import plans_section, steps_section
from cputune.report.summary import summary_of
from cputune.result import Result

NEEDED = ("plotly", "optuna")
"""What draws the pictures."""


def page(result: Result, file: str = "cputune.json") -> str:
    """The whole page. ``file`` is where the result lies, for the commands to copy.

    Raises MissingPackageError without what draws the pictures.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise MissingPackageError(
            f"the report needs {' and '.join(missing)}, which {are} not installed",
            hint="pip install 'cputune[report]'",
        )
    said = summary_of(result)
    charts = charts_of(result, said)
    main = tag(
        "main",
        verdict_section(said, result),
        worth_section(said, charts, disturbed=result.disturbed),
        launch_section(result, file),
        plans_section(result, charts),
        steps_section(result, charts),
        machine_section(result, said),
        findings_section(result),
        study_section(said, result),
    )
    drawn = joined(*(data(f"data-{name}", chart.figure) for name, chart in charts.items()))
    body = tag("body", main, _footer(), drawn, _scripts(bool(charts)))
    return "<!doctype html>\n" + tag("html", _head(result.workload.name), body, lang="en")


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the browser lets the page do: what stands in it, and nothing from a network."""


def _head(name: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", f"cputune report: {name}"),
        raw("style", _shipped("page.css")),
    )


def _footer() -> Markup:
    return tag(
        "footer", f"Written by cputune {__version__}. This page is one file; it asks no network."
    )


def _scripts(has_charts: bool) -> Markup:
    """Plotly, packed to a third of its size, and what unpacks it and draws."""
    parts = [raw("script", _packed_plotly(), id="plotly", type="text/plain")] if has_charts else []
    return joined(*parts, raw("script", _shipped("page.js")))


def _packed_plotly() -> str:
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode()


def _shipped(name: str) -> str:
    return resources.files("cputune.report").joinpath(name).read_text(encoding="utf-8")
