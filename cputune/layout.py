"""Where ranks go: cutting the allowed cores of a machine into one slice per rank.

Pure functions from facts to plans. The formulae follow the Intel launcher (ipexrun),
``intel_extension_for_pytorch/cpu/launch/launcher_distributed.py``: cores in order, one
contiguous slice per rank, the oneCCL workers on the first cores of each slice, one
OpenMP thread on each core that is left. Unlike it, they know cpuset and quota.
"""

from __future__ import annotations

import re

from cputune.cores import QUOTA_SHARE, groups, paid_cores, usable_cores
from cputune.facts import Core, HostFacts
from cputune.knobs.allocator import Allocator
from cputune.knobs.backend import BACKEND, Backend
from cputune.knobs.ipex import IPEX
from cputune.knobs.openmp import OpenMP
from cputune.knobs.precision import Precision, advised_precision
from cputune.knobs.record import Ask, Knob, KnobValue
from cputune.plan import Plan
from cputune.stack import LEAST_CCL_WORKERS
from cputune.workload import Workload

LEAST_USED_SHARE = 0.8
"""Rank counts that would leave more than a fifth of the cores idle are not proposed; and a
rank lies astride two sockets only where that much would be idle otherwise."""

MOST_RANKS_PER_NODE = 8


def rank_slices(cores: tuple[Core, ...], ranks: int) -> tuple[tuple[Core, ...], ...]:
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
    return tuple(cores[i * size : (i + 1) * size] for i in range(ranks))


def most_ranks(cores: tuple[Core, ...]) -> int:
    """The most ranks that are thought of; a rank of a large machine keeps two cores."""
    nodes = len(groups(cores, by_node=True))
    least_cores = 1 if len(cores) <= 8 else 2
    return max(nodes, min(len(cores) // least_cores, MOST_RANKS_PER_NODE * nodes))


def why_not_ranks(cores: tuple[Core, ...], ranks: int, *, paid: int | None = None) -> str | None:
    """Why so many ranks make no good plan on these cores; None where they do.

    Good are one over all, one per socket, one per NUMA node, and evenly between and above
    these, where few cores are left idle: a fifth of them at most, or a tenth of the
    ``paid`` ones, those that a CPU quota pays for.
    """
    sockets, nodes = (len(groups(cores, by_node=by_node)) for by_node in (False, True))
    if nodes % ranks and ranks % sockets and ranks % nodes:
        return f"so many ranks cannot be dealt out evenly over {sockets} sockets"
    size = len(rank_slices(cores, ranks)[0])
    least = LEAST_USED_SHARE * len(cores) if paid is None else QUOTA_SHARE * paid
    if size * ranks < least:
        return f"ranks of one size would leave too many of {len(cores)} cores idle"
    return None


def rank_counts(cores: tuple[Core, ...], *, paid: int | None = None) -> tuple[int, ...]:
    """The rank counts that make good plans on these cores, the fewest first."""
    counts = range(1, most_ranks(cores) + 1) if cores else ()
    return tuple(n for n in counts if why_not_ranks(cores, n, paid=paid) is None)


def thread_counts(cores_of_rank: tuple[Core, ...], *, ccl_workers: int = 0) -> tuple[int, ...]:
    """Thread counts worth trying on the cores of one rank, one thread per core, most first.

    All cores that the oneCCL workers leave, three quarters, half and a quarter of them,
    and those of its first socket, first NUMA node or fastest kind of core where it spans
    several.
    """
    computing = cores_of_rank[ccl_workers:]
    count = len(computing)
    if not computing:
        return ()
    wanted = {count, (3 * count + 2) // 4, count // 2, count // 4}
    for by_node in (True, False):
        wanted.add(len(groups(computing, by_node=by_node)[0]))
    wanted.add(sum(core.max_khz == computing[0].max_khz for core in computing))
    return tuple(sorted(wanted - {0}, reverse=True))


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


def baseline_plan(facts: HostFacts, *, ranks: int = 1) -> Plan:
    """What the user has today: plain ``python train.py`` with default flags, nothing bound.

    With a launcher it may be several ``ranks``, each of which may use every allowed CPU.
    """
    return Plan(
        processes_per_node=ranks,
        threads_per_process=default_threads(facts),
        cpus=(facts.topology.allowed or (0,),) * ranks,
        as_found=True,
    )


def guide_plan(facts: HostFacts, workload: Workload | None = None) -> Plan:
    """The Hugging Face CPU guides' plan: a rank per socket, all its cores, native precision.

    Fewer ranks where the sockets differ so much that one for each would leave cores idle.
    Where they live for this workload, it has IPEX, and oneCCL with one worker on a core of
    its own.
    """
    cores, ask = usable_cores(facts), Ask(workload=workload)
    sockets = len({core.socket for core in cores})
    good = rank_counts(cores, paid=paid_cores(facts))
    ranks = max((ranks for ranks in good if ranks <= sockets), default=1)
    ccl = ranks > 1 and len(rank_slices(cores, ranks)[0]) > 1 and _lives(BACKEND, "ccl", facts, ask)
    return make_plan(
        cores,
        ranks,
        precision=advised_precision(facts),
        backend="ccl" if ccl else "gloo",
        ccl_workers=LEAST_CCL_WORKERS if ccl else 0,
        ipex=_lives(IPEX, True, facts, ask),
    )


def _lives(knob: Knob, value: KnobValue, facts: HostFacts, ask: Ask) -> bool:
    """Whether a knob can take this value on this machine, with these versions."""
    return knob.choices is not None and value in knob.choices(facts, ask).values


def make_plan(
    cores: tuple[Core, ...],
    ranks: int,
    *,
    threads: int | None = None,
    smt: bool = False,
    ccl_workers: int = 0,
    share_cores: bool = False,
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
    each core gives all its siblings. With ``share_cores`` the workers run on cores that
    threads have too. Raises ValueError where it does not fit.
    """
    rank_cpus: list[tuple[int, ...]] = []
    worker_cpus: list[tuple[int, ...]] = []
    for cores_of_rank in rank_slices(cores, ranks):
        if ccl_workers >= len(cores_of_rank) + share_cores:
            raise ValueError(
                f"{ccl_workers} oneCCL workers leave no core of {len(cores_of_rank)} for threads"
            )
        workers = cores_of_rank[:ccl_workers]
        computing = cores_of_rank if share_cores else cores_of_rank[ccl_workers:]
        if not smt:
            computing = computing[:threads]
        cpus = tuple(
            sorted(cpu for core in computing for cpu in (core.cpus if smt else core.cpus[:1]))
        )
        rank_cpus.append(cpus)
        worker_cpus.append(tuple(core.cpus[0] for core in workers))
    least = min(map(len, rank_cpus))
    count = least if threads is None else threads
    if count > least:
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
