"""What draws results, for ``result.figures``, ``result.report`` and notebooks.

A result does not know it. It registers itself where a result becomes public: the package has
``Result`` from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.records.history import Kept as Kept, kept_results as kept_results
from cputune.records.result import Figures, Result as Result

if TYPE_CHECKING:
    from pandas import DataFrame


class Drawer:
    """Draws results; what draws is imported when it is asked for."""

    def figures(self, result: Result) -> Figures:
        """The pictures of a result."""
        from cputune.report.figures import FiguresOf

        return FiguresOf(result)

    def frame(self, result: Result) -> DataFrame:
        """The trials of a result, a row each. Raises MissingPackageError without pandas."""
        from cputune.report.notebook import frame_of

        return frame_of(result)

    def html(self, result: Result) -> str:
        """What a notebook shows of a result."""
        from cputune.report.notebook import html_of

        return html_of(result)

    def page(self, result: Result) -> str:
        """The page of a result. Raises MissingPackageError without jinja2."""
        from cputune.report.page import page

        return page(result)


Result.drawing = Drawer()
