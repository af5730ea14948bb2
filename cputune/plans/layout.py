"""Cutting the allowed cores of a machine into one slice per rank. Pure.

The formulas follow the Intel launcher (ipexrun),
``intel_extension_for_pytorch/cpu/launch/launcher_distributed.py``: cores in order, one contiguous
slice per rank, the oneCCL workers on the first cores of each slice, one OpenMP thread on each other
core. Unlike it, they respect cpuset and quota.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from cputune.host.facts import Core, HostFacts
from cputune.plans.cores import QUOTA_SHARE, paid_cores, usable_cores
from cputune.plans.knobs.backend import BACKEND
from cputune.plans.knobs.kernels import IPEX
from cputune.plans.knobs.libraries import preloads
from cputune.plans.knobs.precision import advised_precision
from cputune.plans.knobs.record import Ask, Knob
from cputune.plans.placing import LEAST_USED_SHARE, by_caches, groups, rank_slices, team
from cputune.plans.plan import Plan
from cputune.plans.values import ALLOCATORS, Backend, KnobValue, Precision
from cputune.stack import LEAST_CCL_WORKERS
from cputune.text import plain

if TYPE_CHECKING:
    from cputune.plans.workload import Workload

# More ranks on a NUMA node hold more copies of the model and send more messages. Assumed.
MOST_RANKS_PER_NODE = 8


def thinkable_ranks(cores: tuple[Core, ...]) -> tuple[int, ...]:
    """The rank counts to consider: up to eight per NUMA node, and one per L3 cache with several
    cores.

    A rank of a large machine keeps two cores.
    """
    if not cores:
        return ()
    nodes, caches = len(groups(cores, by_node=True)), len(by_caches(cores))
    least_cores = 2
    if len(cores) <= 8:
        least_cores = 1
    most = max(nodes, min(len(cores) // least_cores, MOST_RANKS_PER_NODE * nodes))
    counts = list(range(1, most + 1))
    if most < caches <= len(cores) // 2:
        counts.append(caches)
    return tuple(counts)


def why_not_ranks(cores: tuple[Core, ...], ranks: int, *, paid: int | None = None) -> str | None:
    """Why this number of ranks makes no good plan on these cores; None if it does.

    Good are one rank, one per socket, NUMA node or L3 cache, and even divisions between and above
    these if at most a fifth of the cores is idle, or a tenth of the ``paid`` ones of a CPU quota.
    """
    sockets, nodes = len(groups(cores, by_node=False)), len(groups(cores, by_node=True))
    if nodes % ranks and ranks % sockets and ranks % nodes:
        return f"this number of ranks cannot be divided evenly over {sockets} sockets"
    size = len(rank_slices(cores, ranks)[0])
    if paid is None:
        least = LEAST_USED_SHARE * len(cores)
    else:
        least = QUOTA_SHARE * paid
    if size * ranks < least:
        return f"ranks of equal size would leave too many of {len(cores)} cores idle"
    return None


def lie_astride(cores: tuple[Core, ...], ranks: int) -> bool:
    """Whether some ranks have parts of two NUMA nodes, whose memory they wait for."""
    nodes = len(groups(cores, by_node=True))
    return bool(nodes % ranks and ranks % nodes)


def rank_counts(cores: tuple[Core, ...], *, paid: int | None = None) -> tuple[int, ...]:
    """The rank counts that make good plans on these cores, the fewest first."""
    return tuple(n for n in thinkable_ranks(cores) if why_not_ranks(cores, n, paid=paid) is None)


def fast_cores(cores: tuple[Core, ...]) -> tuple[Core, ...]:
    """The cores of the fastest kind; all if there is one kind."""
    most = max((core.speed for core in cores), default=0)
    return tuple(core for core in cores if core.speed > 0.9 * most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The layout of a launch on one machine before anything was measured, and why.

    ``cores`` are those of each rank; ``threads`` are on those without a oneCCL worker.
    """

    cores: tuple[tuple[Core, ...], ...]
    threads: int
    ccl_workers: int
    why: str

    @property
    def ranks(self) -> int:
        return len(self.cores)

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that threads run on, one of each core, over all ranks."""
        cpus = []
        for cores in self.cores:
            computing = cores[self.ccl_workers :]
            for core in computing[: self.threads]:
                cpus.append(core.cpus[0])
        return tuple(cpus)


# A variable may say any number.
MOST_RANKS = 100_000


def advise(
    facts: HostFacts,
    *,
    batch: int | None = None,
    nodes: int = 1,
    ranks: int | None = None,
    ccl_workers: int = 0,
) -> Advice:
    """How many ranks and threads, on which CPUs: the same advice for all fixes and plans.

    A rank per socket, as the Hugging Face CPU guides say; per NUMA node if sockets have a single
    core; fewer if sockets differ so much that cores would be idle, or if ``batch`` (samples of a
    step over ``nodes`` such machines) cannot be divided. Slow cores of a hybrid machine are not
    used: threads wait for the slowest. ``ranks`` is a number that a launcher has fixed. Of the
    ``ccl_workers`` as many are used as leave the threads a core.
    """
    cores, reason = usable_cores(facts), "one rank"
    if facts.topology.hybrid and len(fast_cores(cores)) < len(cores):
        reason = f"one rank on the {len(fast_cores(cores))} fast ones of {len(cores)} cores"
        cores = fast_cores(cores)
    if ranks is None:
        parts, part = len({core.socket for core in cores}), "socket"
        if 2 * parts > len(cores):
            parts, part = len({core.numa_node for core in cores}), "NUMA node"
        if not (2 * parts <= len(cores)):
            parts = 1
        counts = rank_counts(cores, paid=paid_cores(facts))
        good = [count for count in counts if count <= parts]
        fit = [count for count in good if batch is None or batch % (count * nodes) == 0]
        ranks = max(fit, default=1)
        if ranks == parts and ranks > 1:
            reason = f"one rank per {part}"
        elif fit != good and ranks < max(good):
            reason = f"a global batch of {batch} is divided by {ranks} on each of {nodes} machines"
    else:
        reason = f"{ranks} ranks, as they are started"
    if ranks <= len(cores):
        slices = rank_slices(cores, ranks)
    else:
        slices = (cores[:1],) * min(ranks, MOST_RANKS)
    least = 1
    if cores:
        least = len(slices[0])
    if ccl_workers < least:
        workers = ccl_workers
    else:
        workers = min(1, least - 1)
    return Advice(cores=slices, threads=max(1, least - workers), ccl_workers=workers, why=reason)


def thread_counts(cores_of_rank: tuple[Core, ...], *, ccl_workers: int = 0) -> tuple[int, ...]:
    """Thread counts worth trying on the cores of one rank, one thread per core, most first.

    All cores without oneCCL workers, three quarters, half and a quarter of them, and those of the
    first socket, NUMA node or fastest kind of core if the rank spans several.
    """
    computing = cores_of_rank[ccl_workers:]
    count = len(computing)
    if not computing:
        return ()
    wanted = {count, (3 * count + 2) // 4, count // 2, count // 4}
    for by_node in (True, False):
        wanted.add(len(groups(computing, by_node=by_node)[0]))
    wanted.add(len(fast_cores(computing)))
    return tuple(sorted(wanted - {0}, reverse=True))


def default_threads(facts: HostFacts) -> int:
    """OpenMP threads of a plain ``python train.py``: as requested, else one per allowed core.

    torch takes MKL's count (aten/src/ATen/ParallelOpenMP.cpp): MKL_NUM_THREADS before
    OMP_NUM_THREADS, and at most the physical cores of the affinity (seen with torch 2.13 on
    x86-64). It ignores a CPU quota.
    """
    cores = max(1, len(facts.topology.allowed_cores))
    has_mkl = facts.cpu.architecture in (None, "x86_64")
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") if has_mkl else ("OMP_NUM_THREADS",):
        setting = facts.environment.get(name, "").split(",")[0].strip()
        if re.fullmatch(r"[0-9]{1,6}", setting) and int(setting) > 0:
            if has_mkl:
                return min(int(setting), cores)
            return int(setting)
    return cores


def baseline_plan(facts: HostFacts, *, ranks: int = 1) -> Plan:
    """The current launch without a launcher: ``python train.py`` with default flags, not bound."""
    return Plan(
        processes_per_node=ranks,
        threads_per_process=default_threads(facts),
        cpus=(facts.topology.allowed or (0,),) * ranks,
        as_found=True,
    )


def mild_plan(facts: HostFacts) -> Plan:
    """A plan for a launch that was never measured, which changes no numbers of the training.

    One rank with a thread on each core, bound to them, and an allocator if one is installed.
    """
    plan = make_plan(usable_cores(facts), 1)
    for name in ALLOCATORS[1:]:
        if facts.library(name) is not None:
            chosen = replace(plan, allocator=name)
            return replace(chosen, preload=preloads(chosen, facts))
    return plan


def guide_plan(facts: HostFacts, workload: Workload | None = None, *, nodes: int = 1) -> Plan:
    """The plan of ``advise``, in the CPU's native precision, with IPEX and oneCCL if possible."""
    ask = Ask(workload=workload)
    batch = None
    if workload is not None:
        batch = workload.global_batch_size
    advice = advise(facts, batch=batch, nodes=nodes)
    # Of several ranks each has two cores: one for a oneCCL worker.
    ccl = advice.ranks > 1 and _is_possible(BACKEND, "ccl", facts, ask)
    return make_plan(
        tuple(chain.from_iterable(advice.cores)),
        advice.ranks,
        precision=advised_precision(facts),
        backend="ccl" if ccl else "gloo",
        ccl_workers=LEAST_CCL_WORKERS if ccl else 0,
        ipex=_is_possible(IPEX, True, facts, ask),
    )


def _is_possible(knob: Knob, value: KnobValue, facts: HostFacts, ask: Ask) -> bool:
    """Whether a knob can have this value on this machine, with these versions."""
    return knob.offers is not None and value in knob.choices(facts, ask).values


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
) -> Plan:
    """Lay ``ranks`` ranks out on ``cores``. Raises ValueError if it does not fit.

    ``threads`` defaults to one per core without a oneCCL worker; with ``smt`` to all siblings of
    those. With ``share_cores`` workers run on cores of threads.
    """
    rank_cpus: list[tuple[int, ...]] = []
    worker_cpus: list[tuple[int, ...]] = []
    for cores_of_rank in rank_slices(cores, ranks):
        if ccl_workers >= len(cores_of_rank) + share_cores:
            raise ValueError(
                f"{ccl_workers} oneCCL workers leave no core of {len(cores_of_rank)} for threads"
            )
        workers = cores_of_rank[:ccl_workers]
        if share_cores:
            computing = cores_of_rank
        else:
            computing = cores_of_rank[ccl_workers:]
        if not smt:
            computing = tuple(team(computing, len(computing) if threads is None else threads))
        cpus: list[int] = []
        for core in computing:
            if smt:
                cpus += core.cpus
            else:
                cpus.append(core.cpus[0])
        rank_cpus.append(tuple(sorted(cpus)))
        worker_cpus.append(tuple(core.cpus[0] for core in workers))
    least = min(map(len, rank_cpus))
    if threads is None:
        count = least
    else:
        count = threads
    if count > least:
        raise ValueError(f"{count} threads do not fit on the {plain.count(least, 'CPU')} of a rank")
    return Plan(
        processes_per_node=ranks,
        threads_per_process=count,
        ccl_workers=ccl_workers,
        backend=backend,
        precision=precision,
        ipex=ipex,
        cpus=tuple(rank_cpus),
        ccl_cpus=tuple(worker_cpus) if ccl_workers else (),
    )
