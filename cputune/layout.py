"""Where ranks go: cutting the allowed cores of a machine into one slice per rank.

Pure functions from facts to plans. The formulae follow the Intel launcher (ipexrun),
``intel_extension_for_pytorch/cpu/launch/launcher_distributed.py``: cores in order, one
contiguous slice per rank, the oneCCL workers on the first cores of each slice, one
OpenMP thread on each core that is left. Unlike it, they know cpuset and quota.
"""

from __future__ import annotations

import math
import re

from cputune.facts import Core, HostFacts
from cputune.knobs.allocator import Allocator
from cputune.knobs.backend import Backend
from cputune.knobs.openmp import OpenMP
from cputune.knobs.precision import Precision, native_precisions
from cputune.plan import Plan


def usable_cores(facts: HostFacts) -> tuple[Core, ...]:
    """The cores that threads may be bound to, ordered by socket, NUMA node, first CPU.

    With a CPU quota only as many cores are used as whole CPUs of time are given: more
    threads than that are throttled, all at once, in every period.
    """
    cores = sorted(
        facts.topology.allowed_cores,
        key=lambda c: (c.socket, -1 if c.numa_node is None else c.numa_node, c.cpus[0]),
    )
    if facts.topology.hybrid:
        # P and E cores in one team run at the pace of the slowest: P cores first.
        cores.sort(key=lambda c: -c.speed)
    quota = facts.limits.cpu_quota
    if quota is None or quota >= len(cores):
        return tuple(cores)
    return tuple(cores[: max(1, math.floor(quota))])


def rank_slices(cores: tuple[Core, ...], ranks: int) -> tuple[tuple[Core, ...], ...]:
    """Cut cores into ``ranks`` contiguous slices of equal size; what is left over is idle.

    Where the cores lie on several sockets or nodes and the ranks can be dealt out
    evenly over them, no rank straddles two of them. Raises ValueError where there are
    fewer cores than ranks.
    """
    if ranks > len(cores):
        raise ValueError(f"{ranks} ranks do not fit on {len(cores)} cores")
    for groups in (_groups(cores, by_node=True), _groups(cores, by_node=False)):
        if len(groups) > 1 and ranks % len(groups) == 0:
            each = ranks // len(groups)
            size = min(len(group) for group in groups) // each
            if size:
                return tuple(
                    group[i * size : (i + 1) * size] for group in groups for i in range(each)
                )
    size = len(cores) // ranks
    return tuple(cores[i * size : (i + 1) * size] for i in range(ranks))


LEAST_USED_SHARE = 0.8
"""Rank counts that would leave more than a fifth of the cores idle are not proposed."""

MOST_RANKS_PER_NODE = 8


def rank_counts(cores: tuple[Core, ...]) -> tuple[int, ...]:
    """Ranks that fit the machine: one over all, one per socket, one per NUMA node, and
    evenly between and above these, as long as no rank straddles a border unevenly, few
    cores are left idle, and a rank of a large machine keeps at least two cores.
    """
    if not cores:
        return ()
    sockets, nodes = (len(_groups(cores, by_node=by_node)) for by_node in (False, True))
    least_cores = 1 if len(cores) <= 8 else 2
    most = max(nodes, sockets, min(len(cores) // least_cores, MOST_RANKS_PER_NODE * nodes))
    found = []
    for ranks in range(1, most + 1):
        even = nodes % ranks == 0 or any(ranks % groups == 0 for groups in {sockets, nodes})
        if not even or ranks > len(cores):
            continue
        used = sum(len(cores_of_rank) for cores_of_rank in rank_slices(cores, ranks))
        if ranks == 1 or used >= LEAST_USED_SHARE * len(cores):
            found.append(ranks)
    return tuple(found)


def thread_counts(cores_of_rank: tuple[Core, ...], *, ccl_workers: int = 0) -> tuple[int, ...]:
    """Thread counts worth trying on the cores of one rank, one thread per core, most first.

    All cores that the oneCCL workers leave, three quarters, half and a quarter of them,
    and those of its first socket, first NUMA node or fastest kind of core where it spans
    several.
    """
    computing = cores_of_rank[ccl_workers:]
    count = len(computing)
    if count <= 4:
        return tuple(range(count, 0, -1))
    wanted = {count, (3 * count + 2) // 4, count // 2, count // 4}
    for by_node in (True, False):
        wanted.add(len(_groups(computing, by_node=by_node)[0]))
    wanted.add(sum(core.max_khz == computing[0].max_khz for core in computing))
    return tuple(sorted(wanted, reverse=True))


def nodes_spanned(facts: HostFacts, cpus: tuple[int, ...]) -> tuple[int, int]:
    """How many sockets and how many NUMA nodes these CPUs lie on."""
    wanted = set(cpus)
    on = [core for core in facts.topology.cores if not wanted.isdisjoint(core.cpus)]
    return len(_groups(tuple(on), by_node=False)), len(_groups(tuple(on), by_node=True))


def _groups(cores: tuple[Core, ...], *, by_node: bool) -> tuple[tuple[Core, ...], ...]:
    found: dict[object, list[Core]] = {}
    for core in cores:
        key = (core.socket, core.numa_node) if by_node else core.socket
        found.setdefault(key, []).append(core)
    return tuple(tuple(group) for group in found.values())


def default_threads(facts: HostFacts) -> int:
    """OpenMP threads of a plain ``python train.py``: what is asked for, else every allowed core.

    torch takes MKL's count (aten/src/ATen/ParallelOpenMP.cpp): MKL_NUM_THREADS before
    OMP_NUM_THREADS, and no more than the physical cores of the affinity mask (seen with
    torch 2.13 on x86-64; builds for other processors have no MKL). A CPU quota is not seen
    by anybody.
    """
    cores = max(1, len(facts.topology.allowed_cores))
    has_mkl = facts.cpu.architecture in (None, "x86_64")
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if has_mkl else ("OMP_NUM_THREADS",):
        asked = facts.environment.get(name, "").split(",")[0].strip()
        if re.fullmatch(r"[0-9]{1,6}", asked) and int(asked) > 0:
            return min(int(asked), cores) if has_mkl else int(asked)
    return cores


def baseline_plan(facts: HostFacts) -> Plan:
    """What the user has today: plain ``python train.py`` with default flags, nothing bound."""
    return Plan(
        processes_per_node=1,
        threads_per_process=default_threads(facts),
        cpus=(facts.topology.allowed or (0,),),
        as_found=True,
    )


def guide_plan(facts: HostFacts, *, backend: Backend = "gloo", ccl_workers: int = 0) -> Plan:
    """The Hugging Face CPU guides' plan: a rank per socket, all its cores, native precision.

    With oneCCL the workers take the first cores of each rank and the threads the rest.
    """
    cores = usable_cores(facts)
    ranks = len({core.socket for core in cores}) or 1
    return make_plan(
        cores,
        ranks,
        precision=native_precisions(facts)[0],
        backend=backend,
        ccl_workers=ccl_workers if backend == "ccl" else 0,
    )


def make_plan(
    cores: tuple[Core, ...],
    ranks: int,
    *,
    threads: int | None = None,
    smt: bool = False,
    ccl_workers: int = 0,
    backend: Backend = "gloo",
    precision: Precision = "fp32",
    ipex: bool = False,
    allocator: Allocator = "default",
    openmp: OpenMP = "default",
    preload: tuple[str, ...] = (),
    nodes: int = 1,
) -> Plan:
    """Lay ``ranks`` ranks out on ``cores`` and say which CPUs each gets.

    ``threads`` defaults to one per core that the oneCCL workers leave; with ``smt``
    each core gives all its siblings. Raises ValueError where it does not fit:
    threads + workers may not exceed the cores of a rank (oneCCL refuses it).
    """
    rank_cpus: list[tuple[int, ...]] = []
    worker_cpus: list[tuple[int, ...]] = []
    least: int | None = None
    for cores_of_rank in rank_slices(cores, ranks):
        if ccl_workers >= len(cores_of_rank):
            raise ValueError(
                f"{ccl_workers} oneCCL workers leave no core of {len(cores_of_rank)} for threads"
            )
        workers, computing = cores_of_rank[:ccl_workers], cores_of_rank[ccl_workers:]
        if threads is not None and not smt:
            computing = computing[:threads]
        cpus = tuple(
            sorted(cpu for core in computing for cpu in (core.cpus if smt else core.cpus[:1]))
        )
        rank_cpus.append(cpus)
        worker_cpus.append(tuple(core.cpus[0] for core in workers))
        least = len(cpus) if least is None else min(least, len(cpus))
    count = threads if threads is not None else least or 1
    if least is not None and count > least:
        raise ValueError(f"{count} threads do not fit on the {least} CPUs of a rank")
    return Plan(
        nodes=nodes,
        processes_per_node=ranks,
        threads_per_process=count,
        ccl_workers=ccl_workers,
        backend=backend,
        precision=precision,
        ipex=ipex,
        allocator=allocator,
        openmp=openmp,
        preload=preload,
        cpus=tuple(rank_cpus),
        ccl_cpus=tuple(worker_cpus) if ccl_workers else (),
    )
