"""Draws results for ``result.figures``, ``result.report`` and notebooks.

The public ``Result`` is imported from here, so that ``Drawer`` is always registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.records.history import Kept as Kept, kept_results as kept_results
from cputune.records.result import Figures, Result as Result

if TYPE_CHECKING:
    from pandas import DataFrame


class Drawer:
    """Draws results. The modules that draw are imported on first use."""

    def figures(self, result: Result) -> Figures:
        from cputune.report.figures import FiguresOf

        return FiguresOf(result)

    def frame(self, result: Result) -> DataFrame:
        """The trials of a result as a pandas frame, one row each. Raises MissingPackageError."""
        from cputune.report.notebook import frame_of

        return frame_of(result)

    def html(self, result: Result) -> str:
        """The HTML that a notebook shows."""
        from cputune.report.notebook import html_of

        return html_of(result)

    def page(self, result: Result) -> str:
        """The page of a result. Raises MissingPackageError without jinja2."""
        from cputune.report.page import page

        return page(result)


Result.drawing = Drawer()
