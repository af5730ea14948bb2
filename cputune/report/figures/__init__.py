"""Pictures of a result and of a machine: one function for each, from a record to a figure.

The page of ``cputune report``, notebooks and the documentation take their pictures from here. Each
function returns a ``matplotlib.figure.Figure`` that nobody else holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cputune.records.result import topology_of
from cputune.report.figures._comparison import comparison
from cputune.report.figures._machine import machine
from cputune.report.figures._step import step
from cputune.report.figures._steps import steps
from cputune.report.figures._trials import trials
from cputune.report.figures._waterfall import waterfall
from cputune.report.figures.canvas import WIDTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cputune.records.result import Result

__all__ = ["Figures", "comparison", "machine", "step", "steps", "trials", "waterfall"]


@dataclass(frozen=True, slots=True)
class Figures:
    """The pictures of one result, as ``result.figures`` has them.

    ``width`` is in inches everywhere. Each raises MissingPackageError without matplotlib; what the
    result does not know is None instead of a picture.
    """

    result: Result

    def waterfall(self, *, width: float = WIDTH) -> Figure:
        """From today's launch to the best plan, change by change."""
        return waterfall(self.result, width=width)

    def step(self, *, width: float = WIDTH) -> Figure | None:
        """Where the time of a step goes."""
        return step(self.result, width=width)

    def trials(self, *, width: float = WIDTH) -> Figure:
        """The trials as they were run, and the best so far."""
        return trials(self.result, width=width)

    def comparison(self, *, width: float = WIDTH) -> Figure | None:
        """The best plan against today's launch, round by round."""
        return comparison(self.result, width=width)

    def machine(self, *, width: float = WIDTH) -> Figure | None:
        """The machine that it was measured on, and which rank of the best plan has which CPUs."""
        topology = topology_of(self.result.host)
        if topology is None:
            return None
        return machine(topology, self.result.best.plan, width=width)

    def steps(self, trial: int, *, width: float = WIDTH) -> Figure | None:
        """The seconds of each step of one trial, by its number."""
        return steps(self.result, trial, width=width)
