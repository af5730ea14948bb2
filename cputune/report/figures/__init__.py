"""Figures of a result and of a machine, one function each.

The page of ``cputune report``, notebooks and the documentation use them. ``FiguresOf`` has those of
one result, as ``result.figures``. Each function returns a new ``matplotlib.figure.Figure``.
"""

from cputune.report.figures._comparison import comparison
from cputune.report.figures._machine import machine
from cputune.report.figures._of_result import FiguresOf
from cputune.report.figures._step import step
from cputune.report.figures._steps import steps
from cputune.report.figures._trials import trials
from cputune.report.figures._waterfall import waterfall

__all__ = ["FiguresOf", "comparison", "machine", "step", "steps", "trials", "waterfall"]
