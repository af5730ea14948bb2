"""The figures of one result, for ``result.figures``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cputune.host.facts import Core, Topology
from cputune.records.result import WIDTH, Result
from cputune.report.figures import _comparison, _machine, _step, _steps, _trials, _waterfall
from cputune.text import cpulist

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class FiguresOf:
    """The figures of one result.

    ``width`` is in inches. Each method raises MissingPackageError without matplotlib, and returns
    None if the result does not have the data.
    """

    result: Result

    def waterfall(self, *, width: float = WIDTH) -> Figure:
        """The steps from the baseline to the best plan, change by change."""
        return _waterfall.waterfall(self.result, width=width)

    def step(self, *, width: float = WIDTH) -> Figure | None:
        """How the time of a step is spent."""
        return _step.step(self.result, width=width)

    def trials(self, *, width: float = WIDTH) -> Figure:
        """The trials in the order in which they ran, and the best so far."""
        return _trials.trials(self.result, width=width)

    def comparison(self, *, width: float = WIDTH) -> Figure | None:
        """The best plan compared with the baseline, round by round."""
        return _comparison.comparison(self.result, width=width)

    def machine(self, *, width: float = WIDTH) -> Figure | None:
        """The machine of the measurement, and the CPUs of each rank of the best plan."""
        topology = topology_of(self.result.host)
        if topology is None:
            return None
        return _machine.machine(topology, self.result.best.plan, width=width)

    def steps(self, trial: int, *, width: float = WIDTH) -> Figure | None:
        """The seconds of each step of one trial."""
        return _steps.steps(self.result, trial, width=width)


def topology_of(host: Mapping[str, Any]) -> Topology | None:
    """The cores of the machine of a result. None if the result does not have them."""
    topology = host.get("topology") or {}
    try:
        cores, online = list[Core](), list[int]()
        for socket, node, listed in topology["cores"]:
            cpus = cpulist.parse(listed)
            cores.append(Core(cpus=cpus, socket=int(socket), numa_node=node))
            online += cpus
        allowed = cpulist.parse(topology["allowed"])
    except (KeyError, TypeError, ValueError):
        return None
    if not cores:
        return None
    return Topology(
        cores=tuple(cores),
        online=tuple(sorted(online)),
        present=None,
        allowed=allowed,
        numa_nodes=(),
    )
