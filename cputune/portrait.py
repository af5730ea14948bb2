"""What a result keeps of the machine it was measured on: its cores, and what the doctor found.

So whoever reads it elsewhere, or later, sees the machine as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Literal

from msgspec import Meta

from cputune.cpulist import MAX_CPUS
from cputune.facts import Core, Topology

CpuNumber = Annotated[int, Meta(ge=0, lt=MAX_CPUS)]
"""Of a logical CPU, a socket or a NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The cores of one socket on one NUMA node; a core is its logical CPUs.

    ``numa_node`` is None where no node is known.
    """

    socket: CpuNumber
    numa_node: CpuNumber | None = None
    cores: Annotated[tuple[tuple[CpuNumber, ...], ...], Meta(max_length=MAX_CPUS)]


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


def places_of(topology: Topology) -> tuple[Place, ...]:
    """The online cores by socket and NUMA node; none where the kernel does not tell them."""
    if not (topology.cores_known and topology.sockets_known):
        return ()
    ordered: Sequence[Core] = sorted(topology.cores, key=lambda c: (*_place(c), c.cpus[0]))
    return tuple(
        Place(socket=socket, numa_node=None if node < 0 else node, cores=tuple(c.cpus for c in of))
        for (socket, node), of in groupby(ordered, key=_place)
    )


def topology_of(places: Sequence[Place], allowed: Iterable[int] | None) -> Topology:
    """The topology that such places were kept of, as far as they tell it.

    ``allowed`` are the CPUs that were; None, where that is not known: all of them.
    """
    cores = tuple(
        Core(cpus=cpus, socket=place.socket, numa_node=place.numa_node)
        for place in places
        for cpus in place.cores
        if cpus
    )
    online = tuple(sorted({cpu for core in cores for cpu in core.cpus}))
    return Topology(
        cores=cores,
        online=online,
        present=None,
        allowed=online if allowed is None else tuple(sorted(set(allowed))),
        numa_nodes=(),
    )


def _place(core: Core) -> tuple[int, int]:
    return core.socket, -1 if core.numa_node is None else core.numa_node
