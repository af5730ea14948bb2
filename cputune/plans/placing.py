"""Which cores each rank of a node gets, for the tuner, for launches and for pods.

It is emitted as ``place.py`` for containers, whose CPUs are known only at run time: it binds a rank
of torchrun and executes its training (``place.py 8 -- train.py``). So it needs only Python 3.7.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

# Plans leave at most a fifth of the cores idle; a rank spans two sockets only if more would be
# idle otherwise.
LEAST_USED_SHARE = 0.8

C = TypeVar("C", bound="Any")


class SeenCore(NamedTuple):
    """A core as the kernel shows it: its usable CPUs, its socket, NUMA node and L3."""

    cpus: tuple[int, ...]
    socket: int
    numa_node: int
    l3: int | None = None


def groups(
    cores: Sequence[C], *, by_node: bool, by_cache: bool = False
) -> tuple[tuple[C, ...], ...]:
    """The cores of each socket, each NUMA node or each L3 cache on a node, in their order."""
    by_place: dict[object, list[C]] = {}
    for core in cores:
        node = core.numa_node if by_node else None
        cache = core.l3 if by_cache else None
        by_place.setdefault((core.socket, node, cache), []).append(core)
    return tuple(tuple(group) for group in by_place.values())


def by_caches(cores: Sequence[C]) -> tuple[tuple[C, ...], ...]:
    """The cores of each L3 cache on each NUMA node."""
    return groups(cores, by_node=True, by_cache=True)


def rank_slices(cores: Sequence[C], ranks: int) -> tuple[tuple[C, ...], ...]:
    """Cut cores into ``ranks`` contiguous slices of equal size; the rest is idle.

    No rank spans two sockets, nodes or L3 caches if the ranks divide evenly over them, unless they
    differ so much in size that many cores would be idle. Raises ValueError if there are fewer cores
    than ranks.
    """
    if ranks > len(cores):
        raise ValueError(f"{ranks} ranks need {ranks} cores; {len(cores)} can be used")
    least = LEAST_USED_SHARE * (len(cores) // ranks)
    nodes, sockets = groups(cores, by_node=True), groups(cores, by_node=False)
    # All cores as one part come last: any number of ranks divides over it, and it has enough.
    for parts in (by_caches(cores), nodes, sockets, (tuple(cores),)):
        if ranks % len(parts) == 0:
            cut = []
            for part in parts:
                cut += _cut(part, ranks // len(parts), least)
            size = min(map(len, cut))
            if size >= least:
                break
    return tuple(piece[:size] for piece in cut)


def _cut(part: tuple[C, ...], pieces: int, least: float) -> list[tuple[C, ...]]:
    """A part in contiguous pieces: of whole caches if every piece then has enough cores."""
    caches = by_caches(part)
    if len(caches) % pieces == 0:
        each = len(caches) // pieces
        of_caches = [sum(caches[i * each : (i + 1) * each], ()) for i in range(pieces)]
        if min(map(len, of_caches)) >= least:
            return of_caches
    size = len(part) // pieces
    return [part[i * size : (i + 1) * size] for i in range(pieces)]


def evenly(cores: Sequence[C], count: int) -> tuple[C, ...]:
    """``count`` of the cores: the same number on each socket, node and L3, to use all caches."""
    chosen = _share(tuple(cores), count, 0)
    return tuple(core for core in cores if core in chosen)


def _share(cores: tuple[C, ...], count: int, level: int) -> set[C]:
    if level == len(_LEVELS):
        return set(cores[:count])
    parts = groups(cores, by_node=level > 0, by_cache=level > 1)
    shares = [0] * len(parts)
    for _ in range(min(count, len(cores))):
        # One more of the part that gave the fewest so far, if it has one left.
        with_room = [i for i, part in enumerate(parts) if shares[i] < len(part)]
        shares[min(with_room, key=lambda i: shares[i])] += 1
    chosen: set[C] = set()
    for part, share in zip(parts, shares):  # noqa: B905 (Python 3.7)
        chosen |= _share(part, share, level + 1)
    return chosen


_LEVELS = ("socket", "NUMA node", "L3 cache")


def team(cores: Sequence[C], threads: int) -> Sequence[C]:
    """The cores of a rank that its threads run on, if it has more cores than threads.

    Threads that fit on the first NUMA node or socket stay there, spread over every node and L3
    cache. Slow cores of a hybrid machine are taken last.
    """
    if threads >= len(cores):
        return cores
    room = cores
    for by_node in (False, True):  # the node last: it is the nearest
        first = groups(cores, by_node=by_node)[0]
        if threads <= len(first):
            room = first
    speeds = [getattr(core, "speed", 1) for core in room]
    fast = [core for core, speed in zip(room, speeds) if speed > 0.9 * max(speeds)]  # noqa: B905
    return evenly(fast if threads <= len(fast) else room, threads)


def pod_shares(
    cores: Sequence[SeenCore], ranks: int, threads: int, workers: int
) -> list[tuple[list[int], list[int]]] | None:
    """(CPUs, CPUs of its oneCCL workers) of each rank; None if there are too few cores.

    A thread gets its own core if there are enough, else a sibling; a worker always gets one.
    """
    each = threads + workers
    if len(cores) < ranks * (workers + 1):  # siblings are all that keeps ranks apart
        cores = _siblings_apart(cores)
    has_core_each = len(cores) >= ranks * each
    for slices in (_even(cores, ranks), [cores[i * each : (i + 1) * each] for i in range(ranks)]):
        shares = []
        for part in slices:
            computing = part[workers:]
            if has_core_each:
                cpus = [core.cpus[0] for core in team(computing, threads)]
            else:
                cpus = [core.cpus[0] for core in _siblings_apart(computing)]
            shares.append((sorted(cpus), [core.cpus[0] for core in part[:workers]]))
        if shares and all(len(cpus) >= threads for cpus, _ in shares):
            return shares
    return None


def _siblings_apart(cores: Sequence[SeenCore]) -> list[SeenCore]:
    """Each CPU as a separate core."""
    apart = []
    for core in cores:
        for cpu in core.cpus:
            apart.append(core._replace(cpus=(cpu,)))
    return apart


def _even(cores: Sequence[SeenCore], ranks: int) -> Sequence[Sequence[SeenCore]]:
    if 0 < ranks <= len(cores):
        return rank_slices(cores, ranks)
    return ()


def seen_cores(allowed: Iterable[int], system: str = "/sys") -> list[SeenCore]:
    """The cores of these CPUs, by socket, NUMA node and first CPU, as plans count them."""
    free = set(allowed)
    nodes: dict[int, int] = {}
    for number in range(1024):
        for cpu in _list(f"{system}/devices/system/node/node{number}/cpulist"):
            nodes[cpu] = number
    sockets: dict[str, int] = {}
    caches: dict[str, int] = {}
    cores = []
    while free:
        first = min(free)
        topology = f"{system}/devices/system/cpu/cpu{first}/topology"
        together = _list(f"{topology}/core_cpus_list") or _list(f"{topology}/thread_siblings_list")
        mine = (set(together) & free) | {first}
        socket = sockets.setdefault(_text(f"{topology}/physical_package_id"), len(sockets))
        at = f"{system}/devices/system/cpu/cpu{first}/cache/index3"
        shared = _text(f"{at}/shared_cpu_list") if _text(f"{at}/level") == "3" else ""
        cache = caches.setdefault(shared, len(caches)) if shared else None
        cores.append(SeenCore(tuple(sorted(mine)), socket, nodes.get(first, 0), cache))
        free -= mine
    return sorted(cores, key=lambda core: (core.socket, core.numa_node, core.cpus[0]))


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _list(path: str) -> list[int]:
    """The CPUs of a kernel list; empty if it cannot be read."""
    if not os.path.exists(path):
        return []
    cpus: list[int] = []
    for part in _text(path).split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cpus.extend(range(int(first), int(last if last.isdigit() else first) + 1))
    return cpus


def in_a_pod(requested: int, command: Sequence[str]) -> None:
    """Bind a rank to its share of a container's CPUs, then execute the command.

    If the container has dedicated CPUs, at most the ``requested`` number, they are cut as the
    plan's. Else the kernel places the ranks. A job of one rank gets no rank variables: with
    LOCAL_RANK=0 accelerate would wrap the model in DistributedDataParallel.
    """
    environment, allowed = os.environ, os.sched_getaffinity(0)
    rank = int(environment.get("LOCAL_RANK", "0"))
    ranks = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    workers = int(environment.get("CCL_WORKER_COUNT", "0"))
    threads = int(environment.get("OMP_NUM_THREADS", "1"))
    shares = None
    if len(allowed) <= requested:
        shares = pod_shares(seen_cores(allowed), ranks, threads, workers)
    if shares is not None:
        os.sched_setaffinity(0, shares[rank][0])
        workers_cpus: list[str] = []
        for _, cpus in shares:
            workers_cpus += map(str, cpus)
        if workers_cpus:
            environment["CCL_WORKER_AFFINITY"] = ",".join(workers_cpus)
    elif rank == 0:
        sys.stderr.write(
            f"note: this container has no CPUs of its own (it may use {len(allowed)}, "
            f"asked for {requested}): ranks are not bound\n"
        )
    if environment.get("CCL_PROCESS_LAUNCHER") == "none":
        environment.update(CCL_LOCAL_RANK=str(rank), CCL_LOCAL_SIZE=str(ranks))
    if environment.get("WORLD_SIZE") == "1":
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            environment.pop(name, None)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    in_a_pod(int(sys.argv[1]), sys.argv[3:])
