"""Which cores each rank of a node gets: one way for the tuner, for launches and for pods.

It is emitted beside rank.py as ``place.py`` where ranks run in containers, whose CPUs nobody knows
before. So it needs Python 3.7 and nothing else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

LEAST_USED_SHARE = 0.8
"""Rank counts that would leave more than a fifth of the cores idle are not proposed; and a
rank lies astride two sockets only where that much would be idle otherwise."""

C = TypeVar("C", bound="Any")


class SeenCore(NamedTuple):
    """A core as the kernel shows it: its CPUs that may be used, its socket and NUMA node."""

    cpus: tuple[int, ...]
    socket: int
    numa_node: int


def groups(cores: Sequence[C], *, by_node: bool) -> tuple[tuple[C, ...], ...]:
    """The cores of each socket, or of each NUMA node of each socket, in their order."""
    found: dict[object, list[C]] = {}
    for core in cores:
        key = (core.socket, core.numa_node) if by_node else core.socket
        found.setdefault(key, []).append(core)
    return tuple(tuple(group) for group in found.values())


def rank_slices(cores: Sequence[C], ranks: int) -> tuple[tuple[C, ...], ...]:
    """Cut cores into ``ranks`` contiguous slices of equal size; what is left over is idle.

    Where the cores lie on several sockets or nodes and the ranks can be dealt out evenly
    over them, no rank lies astride two of them, unless they differ so much in size that
    many cores would be idle. Raises ValueError where there are fewer cores than ranks.
    """
    if ranks > len(cores):
        raise ValueError(f"{ranks} ranks need as many cores, and {len(cores)} can be used")
    for parts in (groups(cores, by_node=True), groups(cores, by_node=False)):
        if ranks % len(parts) == 0:
            each = ranks // len(parts)
            size = min(map(len, parts)) // each
            if size >= LEAST_USED_SHARE * (len(cores) // ranks):
                return tuple(part[i * size : (i + 1) * size] for part in parts for i in range(each))
    size = len(cores) // ranks
    return tuple(tuple(cores[i * size : (i + 1) * size]) for i in range(ranks))


def pod_shares(
    cores: Sequence[SeenCore], ranks: int, threads: int, workers: int
) -> list[tuple[list[int], list[int]]] | None:
    """(CPUs, CPUs of its oneCCL workers) of each rank; None where these cores are too few.

    A thread has a core of its own where there are so many, else a sibling; a worker always has one.
    """
    each = threads + workers
    if len(cores) < ranks * (workers + 1):  # siblings are all that keeps ranks apart
        cores = [core._replace(cpus=(cpu,)) for core in cores for cpu in core.cpus]
    own_cores = len(cores) >= ranks * each
    for slices in (_even(cores, ranks), [cores[i * each : (i + 1) * each] for i in range(ranks)]):
        found = []
        for part in slices:
            computing = part[workers:]
            if own_cores:
                cpus = sorted(core.cpus[0] for core in computing[:threads])
            else:
                cpus = sorted(cpu for core in computing for cpu in core.cpus)
            found.append((cpus, [core.cpus[0] for core in part[:workers]]))
        if found and all(len(cpus) >= threads for cpus, _ in found):
            return found
    return None


def _even(cores: Sequence[SeenCore], ranks: int) -> Sequence[Sequence[SeenCore]]:
    return rank_slices(cores, ranks) if 0 < ranks <= len(cores) else ()


def seen_cores(allowed: Iterable[int], system: str = "/sys") -> list[SeenCore]:
    """The cores that these CPUs lie on, by socket, NUMA node and first CPU, as plans count them."""
    free = set(allowed)
    nodes = {
        cpu: number
        for number in range(1024)
        for cpu in _list(f"{system}/devices/system/node/node{number}/cpulist")
    }
    sockets: dict[str, int] = {}
    found = []
    while free:
        first = min(free)
        topology = f"{system}/devices/system/cpu/cpu{first}/topology"
        together = _list(f"{topology}/core_cpus_list") or _list(f"{topology}/thread_siblings_list")
        mine = (set(together) & free) | {first}
        socket = sockets.setdefault(_text(f"{topology}/physical_package_id"), len(sockets))
        found.append(SeenCore(tuple(sorted(mine)), socket, nodes.get(first, 0)))
        free -= mine
    return sorted(found, key=lambda core: (core.socket, core.numa_node, core.cpus[0]))


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _list(path: str) -> list[int]:
    """The CPUs of a kernel list; none where it cannot be read."""
    if not os.path.exists(path):
        return []
    found: list[int] = []
    for part in _text(path).split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.extend(range(int(first), int(last if last.isdigit() else first) + 1))
    return found
