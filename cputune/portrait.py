"""What a result keeps of the machine it was measured on: its cores, and what the doctor found.

So whoever reads it elsewhere, or later, sees the machine as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal

from msgspec import Meta

from cputune.cpulist import MAX_CPUS
from cputune.facts import Core, Topology

CpuNumber = Annotated[int, Meta(ge=0, lt=MAX_CPUS)]
"""Of a logical CPU, a socket or a NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCores:
    """The cores of one socket on one NUMA node; a core is its logical CPUs.

    ``numa_node`` is None where no node is known. ``caches`` are the numbers of cores that share
    an L3 cache, in their order, where there are several of ``cache_bytes`` each. A node without
    cores is memory near this socket; ``memory`` is its kind (hbm, slow).
    """

    socket: CpuNumber
    numa_node: CpuNumber | None = None
    cores: Annotated[tuple[tuple[CpuNumber, ...], ...], Meta(max_length=MAX_CPUS)]
    caches: Annotated[tuple[CpuNumber, ...], Meta(max_length=MAX_CPUS)] = ()
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A finding of the doctor, with the fields of the ``cputune.doctor/1`` document."""

    code: str
    severity: Literal["error", "warning", "advice"]
    title: str
    evidence: str
    remedy: str
    command: str | None = None
    source: str = ""
    worth: tuple[float, float] | None = None


def places_of(topology: Topology) -> tuple[NodeCores, ...]:
    """The online cores by socket and NUMA node, and memory that has none at the socket it is near.

    Nothing where the kernel does not tell the cores.
    """
    if not (topology.cores_known and topology.sockets_known):
        return ()
    nodes = {node.id: node for node in topology.numa_nodes}
    found = []
    for (socket, number), members in groupby(sorted(topology.cores, key=_order), key=_place):
        of, node = tuple(members), nodes.get(number)
        caches = tuple(len(tuple(same)) for _, same in groupby(of, key=lambda core: core.l3))
        found.append(
            NodeCores(
                socket=socket,
                numa_node=None if number < 0 else number,
                cores=tuple(core.cpus for core in of),
                caches=caches if len(caches) > 1 else (),
                cache_bytes=topology.cache_bytes if len(caches) > 1 else None,
                memory_bytes=node.memory_bytes if node else None,
                memory=node.kind if node else None,
            )
        )
    sockets = {place.numa_node: place.socket for place in reversed(found)}
    for node in topology.numa_nodes:
        near = sockets.get(next(iter(topology.nearest(node)), None))
        if node.cpus == () and node.memory_bytes and near is not None:
            size = node.memory_bytes
            found.append(
                NodeCores(
                    socket=near, numa_node=node.id, cores=(), memory_bytes=size, memory=node.kind
                )
            )
    return tuple(sorted(found, key=lambda place: place.socket))


def _place(core: Core) -> tuple[int, int]:
    return core.socket, -1 if core.numa_node is None else core.numa_node


def _order(core: Core) -> tuple[int, int, int, int]:
    """By socket, NUMA node, L3 cache and first CPU."""
    return (*_place(core), -1 if core.l3 is None else core.l3, core.cpus[0])
