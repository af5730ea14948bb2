"""Which cores a launch may use: the allowed ones, limited by a CPU quota."""

from __future__ import annotations

import math

from cputune.host.facts import Core, HostFacts
from cputune.plans.placing import evenly, groups

# Fewer sockets are used if they have this share of a CPU quota.
QUOTA_SHARE = 0.9


def usable_cores(facts: HostFacts) -> tuple[Core, ...]:
    """The allowed cores, or as many as a CPU quota gives whole CPUs: more threads would all be
    throttled.

    They are spread evenly over the fewest sockets that have enough.
    """
    cores = _allowed(facts)
    count = paid_cores(facts)
    if count is None:
        return cores
    sockets = groups(cores, by_node=False)
    chosen: list[tuple[Core, ...]] = []
    for socket in sorted(sockets, key=len, reverse=True):
        if sum(map(len, chosen)) < QUOTA_SHARE * count:
            chosen.append(socket)
    on_chosen: list[Core] = []
    for socket in sockets:
        if socket in chosen:
            on_chosen += socket
    return evenly(on_chosen, count)


def paid_cores(facts: HostFacts) -> int | None:
    """Number of cores that a CPU quota allows, if that is fewer than all; else None."""
    quota = facts.limits.cpu_quota
    if quota is None or quota >= len(facts.topology.allowed_cores):
        return None
    return max(1, math.floor(quota))


def _allowed(facts: HostFacts) -> tuple[Core, ...]:
    """The allowed cores, ordered by socket, NUMA node, first CPU."""
    cores = sorted(
        facts.topology.allowed_cores,
        key=lambda c: (c.socket, -1 if c.numa_node is None else c.numa_node, c.cpus[0]),
    )
    if facts.topology.hybrid:
        # P and E cores in one team run at the pace of the slowest: P cores first.
        cores.sort(key=lambda c: -c.speed)
    return tuple(cores)


def nodes_spanned(facts: HostFacts, cpus: tuple[int, ...]) -> tuple[int, int]:
    """The number of sockets and of NUMA nodes of these CPUs."""
    wanted = set(cpus)
    on = []
    for core in facts.topology.cores:
        if not wanted.isdisjoint(core.cpus):
            on.append(core)
    return len(groups(tuple(on), by_node=False)), len(groups(tuple(on), by_node=True))
