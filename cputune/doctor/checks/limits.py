"""Limits of the container: CPUs, CPU time and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cputune import cpulist
from cputune.cores import usable_cores
from cputune.doctor.advised import advised_ranks, advised_threads
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import local_ranks, number, under_mpi, value
from cputune.facts import HostFacts, Unknown
from cputune.layout import default_threads
from cputune.memory import needed_bytes, room_bytes
from cputune.workload import Workload

GIB = 1 << 30
THROTTLED_SHARE = 0.1
FEWEST_PERIODS = 100
CACHE_ENTRIES = 1024
"""What oneDNN keeps unless ONEDNN_PRIMITIVE_CACHE_CAPACITY says otherwise."""


@check(
    "quota-threads",
    Severity.WARNING,
    title="More threads than the container has CPU time for",
    remedy="Start as many threads as the quota has whole CPUs.",
    source="onyx-dot-app/onyx#12351, springfall2008/batpred#4771, vllm-project/vllm#34462",
)
def quota_threads(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training in a container is many times slower than its CPU limit explains.

    Cause: the limit is a cgroup quota of CPU time, which no library looks at. torch
    starts one thread per core that it sees; together they use up the quota early in
    every period of 100 ms, and then all of them stand still until the next.
    """
    quota, threads = facts.limits.cpu_quota, default_threads(facts)
    if quota is None or threads <= max(1, math.floor(quota)):
        return
    asked = value(facts, "OMP_NUM_THREADS")
    why = f"OMP_NUM_THREADS={asked}" if asked else "one per allowed core"
    yield quota_threads.finding(
        f"the cgroup gives {quota:g} CPUs of time, a training process starts "
        f"{threads} threads ({why})",
        command=f"export OMP_NUM_THREADS={advised_threads(facts)}",
    )


@check(
    "quota-throttled",
    Severity.WARNING,
    title="This cgroup is being throttled",
    remedy="Start fewer threads, or ask for a higher CPU limit.",
    source="onyx-dot-app/onyx#12351, https://docs.kernel.org/scheduler/sched-bwc.html",
)
def quota_throttled(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: steps take much longer than the CPU time they use, again and again.

    Cause: the kernel stopped the cgroup because its quota was used up. ``cpu.stat``
    counts the periods in which that happened, over the whole life of the container.
    """
    periods, throttled = facts.limits.periods, facts.limits.throttled_periods
    quota = facts.limits.cpu_quota
    # The counters stay when a quota is lifted.
    if quota is None or periods is None or throttled is None or periods < FEWEST_PERIODS:
        return
    if throttled / periods > THROTTLED_SHARE:
        yield quota_throttled.finding(
            f"throttled in {throttled} of {periods} periods "
            f"({100 * throttled / periods:.0f} %), the quota is {quota:g} CPUs"
        )


@check(
    "ranks-auto",
    Severity.WARNING,
    title="The number of ranks is left to torchrun's guess",
    remedy="Give the number of ranks of each node yourself: one per socket or NUMA node.",
    source="kubeflow/trainer#2407",
)
def ranks_auto(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: a pod runs out of memory or hangs right after its start.

    Cause: nproc_per_node=auto means one process per CPU of the host, whatever the
    container may use, and each of them holds the whole model and as many threads as
    the pod has CPUs. In a PyTorchJob, leaving spec.nprocPerNode out means auto too.
    """
    asked = value(facts, "PET_NPROC_PER_NODE")
    if asked is None or asked.lower() not in ("auto", "cpu"):
        return
    cores = usable_cores(facts)
    ranks = advised_ranks(facts)
    online = len(facts.topology.online)
    yield ranks_auto.finding(
        f"PET_NPROC_PER_NODE={asked} starts {online} ranks, one per CPU of the host; "
        f"{len(cores)} core{'s' if len(cores) > 1 else ''} may be used",
        severity=Severity.ERROR if len(cores) < online else None,
        command=f"export PET_NPROC_PER_NODE={ranks}",
    )


@check(
    "ranks-oversubscribed",
    Severity.WARNING,
    title="Ranks and threads exceed the CPUs",
    remedy="Divide the cores by the ranks: that is OMP_NUM_THREADS.",
    source="kubeflow/trainer#2407, pytorch/pytorch#22260",
)
def ranks_oversubscribed(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: more ranks make training slower, not faster.

    Cause: every rank starts its own team of OpenMP threads. When ranks × threads exceed
    the CPUs, threads wait for CPUs while their team spins at a barrier for them.
    """
    ranks, threads = local_ranks(facts), number(facts, "OMP_NUM_THREADS")
    cpus, quota = len(facts.limits.cpuset or facts.topology.online), facts.limits.cpu_quota
    room = cpus if quota is None else min(cpus, math.floor(quota))
    if ranks is None or ranks < 2 or threads is None or not cpus or ranks * threads <= room:
        return
    limit = f"{cpus} CPUs" if room == cpus else f"a quota of {quota:g} CPUs"
    yield ranks_oversubscribed.finding(
        f"{ranks} local ranks × OMP_NUM_THREADS={threads} are {ranks * threads} threads on {limit}",
        remedy=None if threads > 1 else "Start fewer ranks: one thread each is too much already.",
        command=f"export OMP_NUM_THREADS={advised_threads(facts)}" if threads > 1 else None,
    )


@check(
    "one-core",
    Severity.WARNING,
    title="One core of this machine may be used",
    remedy="Give the container or the shell more CPUs, where that was not meant.",
    source="https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset-interface-files",
)
def one_core(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training runs on one core, whatever is set, and all others are idle.

    Cause: a cpuset, a scheduler or taskset leaves one CPU (or the siblings of one core).
    """
    topology = facts.topology
    if under_mpi(facts) or number(facts, "LOCAL_WORLD_SIZE"):
        return  # one rank of several, which its launcher has bound
    if topology.cores_known and topology.physical_cores > 1 and len(topology.allowed_cores) == 1:
        yield one_core.finding(
            f"CPU {cpulist.render(topology.allowed)} is allowed; the machine has "
            f"{topology.physical_cores} cores, CPUs {cpulist.render(topology.online)}"
        )


GUIDES = ("bert-mini", "distilbert-squad", "bert-base-squad", "bert-large-squad")
"""The default recipe, and what the Hugging Face CPU guides train."""


@check(
    "memory-limit",
    Severity.ADVICE,
    title="The memory limit is too small for some workloads",
    remedy="Raise the limit, or train a smaller model; each rank has its own weights and moments.",
    source="kubeflow/trainer#2407, https://huggingface.co/docs/transformers/perf_train_cpu",
)
def memory_limit(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: the process is killed (exit code 137) in its first steps.

    Cause: weights, gradients and the two moments of AdamW take 16 bytes per parameter in
    each rank; the activations of a step come on top. The limit is the container's, else
    the machine's. The tuner counts by the same rule, and leaves such plans out. The models
    of the Hugging Face CPU guides are looked at here.
    """
    room = room_bytes(facts)
    if room is None:
        return
    short, unknown = [], []
    for name in GUIDES:
        need = needed_bytes(Workload.from_recipe(name))
        if isinstance(need, Unknown):
            unknown.append(f"{need.fact} is not known: {need.reason}")
        elif need > room:
            short.append(f"{name} {need / GIB:.1f} GiB")
    if short:
        what = "the cgroup limit" if room == facts.limits.memory_bytes else "the machine's memory"
        said = f"{what} is {room / GIB:.1f} GiB; one rank needs at least {', '.join(short)}"
        yield memory_limit.finding("; ".join((said, *unknown)))


@check(
    "primitive-cache",
    Severity.ADVICE,
    title="Memory grows with every new shape",
    remedy=(
        "Pad to a fixed length, or keep fewer compiled kernels by the capacity variables; "
        "for inference on single shapes LRU_CACHE_CAPACITY=1."
    ),
    source="pytorch/pytorch#98688, pytorch/pytorch#29893",
)
def primitive_cache(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: resident memory grows for hours when batches vary in length.

    Cause: oneDNN compiles a kernel for every shape and keeps 1024 of them, buffers
    included. With little memory that is what a job dies of.
    """
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
    capacity = number(facts, *names)
    limit = facts.limits.memory_bytes
    command = "export ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 LRU_CACHE_CAPACITY=64"
    if capacity is not None and capacity > CACHE_ENTRIES:
        yield primitive_cache.finding(
            f"the cache may hold {capacity} kernels, {CACHE_ENTRIES} is oneDNN's own limit",
            command=command,
        )
    elif capacity is not None or value(facts, "LRU_CACHE_CAPACITY"):
        return
    elif limit is not None and limit <= 8 * GIB and facts.package("torch"):
        yield primitive_cache.finding(
            f"the memory limit is {limit / GIB:.1f} GiB and no capacity is set "
            f"(oneDNN keeps {CACHE_ENTRIES} kernels)",
            command=command,
        )


CHECKS: tuple[Check, ...] = (
    ranks_auto,
    quota_threads,
    quota_throttled,
    ranks_oversubscribed,
    one_core,
    memory_limit,
    primitive_cache,
)
