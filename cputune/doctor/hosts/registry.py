"""Every check that compares hosts, in the order in which findings of equal severity are shown.

What must be asked while the lines are open (ports, latencies) stands in ``LIVE``, and what also
starts training processes in ``DEEP``: functions of the hosts that are there, each with its line.
Their codes are HostsChecks without ``compare``, in ``CHECKS`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cputune.doctor.finding import Finding
from cputune.doctor.hosts import around, between, machines, software
from cputune.doctor.hosts.seen import HostsCheck, SeenHost
from cputune.nodes.line import Line

LiveCheck = Callable[[Sequence[tuple[SeenHost, Line]]], Iterable[Finding]]

CHECKS: tuple[HostsCheck, ...] = (
    *around.CHECKS,
    *between.CHECKS,
    *machines.CHECKS,
    *software.CHECKS,
)
LIVE: tuple[LiveCheck, ...] = (between.network_between,)
DEEP: tuple[LiveCheck, ...] = (between.all_reduce_between,)
