"""Limits of the container: CPUs, CPU time and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cputune.doctor import variables as env
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.plans.cores import usable_cores
from cputune.plans.layout import default_threads
from cputune.plans.memory import (
    VALUES_PER_PARAMETER,
    least_value_bytes,
    needed_bytes,
    room_bytes,
)
from cputune.text import cpulist
from cputune.text.plain import GIB, MIB

# Report throttling above this share of periods, and only after this many: ten seconds of periods
# of 100 ms. Assumed.
THROTTLED_SHARE = 0.1
FEWEST_PERIODS = 100


@check("ranks-auto", Severity.WARNING)
def ranks_auto(facts: HostFacts) -> Iterator[Finding]:
    """torchrun chooses the number of ranks

    Symptom: a pod runs out of memory or hangs right after its start.

    Cause: nproc_per_node=auto means one process per CPU of the host, also in a container with
    fewer. Each holds the whole model. A PyTorchJob without spec.nprocPerNode means auto too.

    Remedy: Set the number of ranks per node yourself: one per socket or NUMA node.

    Source: kubeflow/trainer#2407
    """
    setting = env.value(facts, "PET_NPROC_PER_NODE")
    if setting is None or setting.lower() not in ("auto", "cpu"):
        return
    cores, online = len(usable_cores(facts)), len(facts.topology.online)
    yield ranks_auto.finding(
        f"PET_NPROC_PER_NODE={setting} starts {online} ranks, one per CPU of the host; "
        f"usable cores: {cores}",
        severity=Severity.ERROR if cores < online else None,
        command=f"export PET_NPROC_PER_NODE={env.advised(facts).ranks}",
    )


@check("quota-threads", Severity.WARNING)
def quota_threads(facts: HostFacts) -> Iterator[Finding]:
    """More threads than the container has CPU time for

    Symptom: training in a container is many times slower than its CPU limit explains.

    Cause: the limit is a cgroup quota of CPU time, which no library reads. The threads use it up
    early in each period of 100 ms and then all stop until the next.

    Remedy: Start as many threads as the quota has whole CPUs.

    Source: onyx-dot-app/onyx#12351, springfall2008/batpred#4771, vllm-project/vllm#34462
    """
    quota, threads = facts.limits.cpu_quota, default_threads(facts)
    if quota is not None and threads > max(1, math.floor(quota)):
        setting = env.value(facts, "OMP_NUM_THREADS") or "unset, one per allowed core"
        yield quota_threads.finding(
            f"the cgroup quota is {quota:g} CPUs, a training process starts "
            f"{threads} threads (OMP_NUM_THREADS: {setting})",
            command=f"export OMP_NUM_THREADS={env.advised(facts).threads}",
        )


@check("nproc-host", Severity.ADVICE, under=("quota-threads", "ranks-auto"))
def nproc_host(facts: HostFacts) -> Iterator[Finding]:
    """nproc counts CPUs that this container has no time for

    Symptom: programs that count CPUs start too many threads or processes.

    Cause: a quota limits CPU time, not CPUs. nproc, os.cpu_count() and sched_getaffinity show those
    of the host; torchrun --nproc_per_node auto, num_proc=os.cpu_count() and make -j use that
    number.

    Remedy: Give such programs a number, or give the container a cpuset: docker run --cpuset-cpus,
    the static policy of the kubelet.

    Source: onyx-dot-app/onyx#12351, kubeflow/trainer#2407
    """
    quota, counted = facts.limits.cpu_quota, len(facts.topology.allowed)
    if quota is not None and counted > max(1, math.ceil(quota)):
        yield nproc_host.finding(
            f"nproc says {counted}, the cgroup quota is {quota:g} CPUs",
            remedy=f"Give such programs {max(1, math.floor(quota))}, or the container a cpuset: "
            "docker run --cpuset-cpus, the static policy of the kubelet.",
        )


@check("quota-throttled", Severity.WARNING, under=("quota-threads",))
def quota_throttled(facts: HostFacts) -> Iterator[Finding]:
    """This container is throttled

    Symptom: steps take much longer than the CPU time they use.

    Cause: the kernel stopped the container because its CPU quota was used up. ``cpu.stat`` counts
    these periods since the container started.

    Remedy: Start fewer threads, or set a higher CPU limit.

    Source: onyx-dot-app/onyx#12351, https://docs.kernel.org/scheduler/sched-bwc.html
    """
    limits = facts.limits
    periods, throttled, quota = limits.periods, limits.throttled_periods, limits.cpu_quota
    # The counters stay when a quota is lifted.
    if quota is None or periods is None or throttled is None or periods < FEWEST_PERIODS:
        return
    if throttled / periods > THROTTLED_SHARE:
        yield quota_throttled.finding(
            f"throttled in {throttled} of {periods} periods, the quota is {quota:g} CPUs"
        )


@check("ranks-oversubscribed", Severity.WARNING)
def ranks_oversubscribed(facts: HostFacts) -> Iterator[Finding]:
    """Ranks and threads exceed the CPUs

    Symptom: more ranks make training slower, not faster.

    Cause: every rank starts its own OpenMP threads. If ranks × threads exceed the CPUs, threads
    wait for CPUs while the others spin at a barrier.

    Remedy: Set OMP_NUM_THREADS to the number of cores divided by the number of ranks.

    Source: kubeflow/trainer#2407, pytorch/pytorch#22260
    """
    ranks, threads = env.local_ranks(facts), env.rank_threads(facts)
    cpus, quota = len(facts.limits.cpuset or facts.topology.online), facts.limits.cpu_quota
    if quota is None:
        room = cpus
    else:
        room = min(cpus, math.floor(quota))
    if ranks is None or ranks < 2 or threads is None or not cpus or ranks * threads <= room:
        return
    if room == cpus:
        limit = f"{cpus} CPUs"
    else:
        limit = f"a quota of {quota:g} CPUs"
    each = f"OMP_NUM_THREADS={threads}"
    if env.value(facts, "OMP_NUM_THREADS") is None:
        each = f"{threads} thread, which torchrun sets,"
    fewer = env.advised(facts).threads
    yield ranks_oversubscribed.finding(
        f"{ranks} local ranks × {each} are {ranks * threads} threads on {limit}",
        remedy=None if threads > 1 else "Start fewer ranks: each has one thread only.",
        command=f"export OMP_NUM_THREADS={fewer}" if threads > 1 else None,
    )


@check("one-core", Severity.WARNING)
def one_core(facts: HostFacts) -> Iterator[Finding]:
    """Only one core of this machine may be used

    Symptom: training runs on one core, and all others are idle.

    Cause: a cpuset, a scheduler or taskset allows one CPU (or both threads of one core).

    Remedy: Give the container or the shell more CPUs, unless the limit is intended.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpuset-interface-files
    """
    topology = facts.topology
    if env.under_mpi(facts) or env.number(facts, "LOCAL_WORLD_SIZE"):
        return  # one rank of several, which its launcher has bound
    if topology.cores_known and topology.physical_cores > 1 and len(topology.allowed_cores) == 1:
        yield one_core.finding(
            f"allowed CPUs: {cpulist.render(topology.allowed)}; the machine has "
            f"{topology.physical_cores} cores, CPUs {cpulist.render(topology.online)}"
        )


# The default recipe, and what the Hugging Face CPU guides train.
GUIDES = ("bert-mini", "distilbert-squad", "bert-base-squad", "bert-large-squad")


# No guide needs as much; with more room the recipes are not read.
MOST_GUIDE_BYTES = 17 * GIB


@check("memory-limit", Severity.ADVICE)
def memory_limit(facts: HostFacts) -> Iterator[Finding]:
    """The memory limit is too small for some workloads

    Symptom: the process is killed (exit code 137) in its first steps.

    Cause: weights, gradients and the two moments of AdamW take 16 bytes per parameter in each rank,
    activations come on top. The limit is the container's, else the machine's. The models are those
    of the Hugging Face CPU guides.

    Remedy: Raise the limit, or train a smaller model.

    Source: kubeflow/trainer#2407, https://huggingface.co/docs/transformers/perf_train_cpu
    """
    room = room_bytes(facts)
    if room is None or room > MOST_GUIDE_BYTES:
        return
    from cputune.plans.workload import Workload  # which takes long to import

    kept = least_value_bytes(facts)
    short = []
    for name in GUIDES:
        need = needed_bytes(Workload.from_recipe(name), value_bytes=kept)
        if need > room:
            short.append(f"{name} {need / GIB:.1f} GiB")
    if short:
        yield memory_limit.finding(
            f"{room / GIB:.1f} GiB may be used; one rank needs at least: {', '.join(short)}",
            severity=Severity.ERROR if len(short) == len(GUIDES) else None,
        )


@check("primitive-cache", Severity.ADVICE)
def primitive_cache(facts: HostFacts) -> Iterator[Finding]:
    """Memory grows with every new shape

    Symptom: resident memory grows for hours when batches vary in length.

    Cause: oneDNN compiles a kernel for every shape and keeps 1024 of them with their buffers.

    Remedy: Pad to a fixed length, or set *_CACHE_CAPACITY to keep fewer kernels.

    Source: pytorch/pytorch#98688, pytorch/pytorch#29893
    """
    limit = facts.limits.memory_bytes
    if limit is None or limit > 8 * GIB or not facts.package("torch"):
        return
    if not any(name.endswith("_CACHE_CAPACITY") and at for name, at in facts.environment.items()):
        yield primitive_cache.finding(
            f"the memory limit is {limit / GIB:.1f} GiB and no capacity is set "
            "(oneDNN keeps 1024 kernels)",
            command="export ONEDNN_PRIMITIVE_CACHE_CAPACITY=64 LRU_CACHE_CAPACITY=64",
        )


# What ranks and loader workers exchange takes some hundred MiB. Assumed.
SHM_NEEDED_BYTES = GIB
SHM_SMALL_BYTES = GIB // 4
# An interpreter with torch and a loader with two workers uses most of the smaller number.
FEWEST_OPEN_FILES = 1024
FEW_OPEN_FILES = 256
# OpenMP's team, torch's inter-op pool and the tokenizers' pool each have one per CPU.
THREADS_PER_CPU = 3
# Threads of the interpreter, autograd, gloo or oneCCL, and a few DataLoader workers.
OTHER_THREADS = 32


@check("shm-small", Severity.WARNING)
def shm_small(facts: HostFacts) -> Iterator[Finding]:
    """/dev/shm is too small for DataLoader workers, or full

    Symptom: "Bus error" or "unable to write to file </torch_…>" in a DataLoader worker.

    Cause: DataLoader workers, oneCCL and Open MPI pass data through /dev/shm. Docker's default is
    64 MiB, and killed jobs leave files there (torch_…, vader_segment…, psm_…). A write to a full
    /dev/shm kills the process.

    Remedy: Give the container more shared memory: docker run --shm-size=1g, or in Kubernetes an
    emptyDir of medium Memory at /dev/shm; or train with --dataloader_num_workers 0.

    Source: pytorch/pytorch#16979
    """
    size, free = facts.limits.shm_bytes, facts.limits.shm_free_bytes
    needed = f"{SHM_NEEDED_BYTES / MIB:.0f} MiB are needed"
    if size is not None and size < SHM_SMALL_BYTES:
        yield shm_small.finding(f"/dev/shm has {size / MIB:.0f} MiB, {needed}")
    elif size is not None and free is not None and free < SHM_SMALL_BYTES:
        yield shm_small.finding(
            f"{free / MIB:.0f} of {size / MIB:.0f} MiB of /dev/shm are free, {needed}",
            remedy="Remove the files of jobs that have ended, or make /dev/shm larger.",
            command="ls -lhS /dev/shm | head",
        )


@check("processes-few", Severity.WARNING)
def processes_few(facts: HostFacts) -> Iterator[Finding]:
    """The limit of processes is below the threads that training starts

    Symptom: "Resource temporarily unavailable" or "can't start new thread".

    Cause: pids.max of a container and ulimit -u count threads as processes, and a rank starts
    several threads per CPU.

    Remedy: Raise the limit (ulimit -u, docker run --pids-limit, podPidsLimit of the kubelet), or
    train with fewer threads.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#pid
    """
    limits, cpus = facts.limits, len(facts.topology.allowed)
    needed = THREADS_PER_CPU * cpus + OTHER_THREADS
    pids = None
    if limits.pids is not None:
        pids = limits.pids - (limits.pids_used or 0)
    # The user's limit does not apply to root or with CAP_SYS_RESOURCE.
    processes = None
    if facts.sys_resource is False:
        processes = limits.processes
    for name, free in (("pids.max", pids), ("ulimit -u", processes)):
        if free is not None and free < needed:
            raised = name == "ulimit -u" and "processes" not in limits.fixed
            yield processes_few.finding(
                f"{name} leaves {free}; ranks on {cpus} CPUs start about {needed} threads",
                command='ulimit -Su "$(ulimit -Hu)"' if raised else None,
            )


def _lifted(facts: HostFacts, name: str, finding: Finding) -> Finding:
    """The finding, without its command if this user may not raise the limit."""
    if name not in facts.limits.fixed or facts.sys_resource is not False:
        return finding
    remedy = (
        "The hard limit is as low, and this shell cannot raise it. Train "
        "from another shell, or raise it in limits.conf or the request of the job."
    )
    return replace(finding, command=None, remedy=remedy)


# Address space of torch's CPU build with transformers: 1.4 GiB; 1 GiB is too little.
IMPORT_BYTES = 2 * GIB
# Address space of a thread: its stack (8 MiB) and an arena of glibc's malloc (64 MiB).
THREAD_BYTES = 72 * MIB


@check("virtual-memory", Severity.WARNING)
def virtual_memory(facts: HostFacts) -> Iterator[Finding]:
    """The shell limits address space, and training needs much of it

    Symptom: "failed to map segment from shared object", "can't start new thread", "std::bad_alloc"
    while memory is free.

    Cause: ulimit -v counts reserved addresses, not used memory: libraries, and a stack and a malloc
    arena per thread. Schedulers set it to the memory of the job.

    Remedy: Lift the limit in the shell that trains; the cgroup limits memory.

    Source: https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    limit, threads = facts.limits.address_space_bytes, default_threads(facts)
    needed = IMPORT_BYTES + THREAD_BYTES * threads
    if limit is not None and limit < needed:
        finding = virtual_memory.finding(
            f"ulimit -v is {limit / GIB:.1f} GiB; a rank with {threads} threads reserves about "
            f"{needed / GIB:.1f} GiB before its model",
            severity=Severity.ERROR if limit < IMPORT_BYTES else None,
            command="ulimit -v unlimited",
        )
        yield _lifted(facts, "address_space_bytes", finding)


# Writable memory of a process that trains a tiny BERT (470 MiB), and of a thread's stack.
DATA_BYTES, STACK_BYTES = 512 * MIB, 8 * MIB


@check("data-segment", Severity.WARNING)
def data_segment(facts: HostFacts) -> Iterator[Finding]:
    """The shell limits the memory that a process may write

    Symptom: "std::bad_alloc", "MemoryError", "can't start new thread" while memory is free.

    Cause: ulimit -d counts the heap, the stack of every thread and all private memory.

    Remedy: Lift the limit in the shell that trains; the cgroup limits memory.

    Source: https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    limit, threads = facts.limits.data_bytes, default_threads(facts)
    least, weights = DATA_BYTES + STACK_BYTES * threads, facts.surroundings.model_bytes
    needed = least + (GIB if weights is None else VALUES_PER_PARAMETER * weights)
    if limit is not None and limit < needed:
        what = "this model"
        if weights is None:
            what = "a small model"
        finding = data_segment.finding(
            f"ulimit -d is {limit / GIB:.1f} GiB; a rank with {threads} threads and {what} writes "
            f"about {needed / GIB:.1f} GiB",
            severity=Severity.ERROR if limit < least else None,
            command="ulimit -d unlimited",
        )
        yield _lifted(facts, "data_bytes", finding)


LEAST_STACK_BYTES = MIB


@check("stack-small", Severity.WARNING)
def stack_small(facts: HostFacts) -> Iterator[Finding]:
    """The shell gives threads a small stack

    Symptom: "Segmentation fault", exit code 139, in the first steps or while compiling.

    Cause: ulimit -s is the stack size of every thread. With 64 KiB a tiny BERT crashes; deep models
    and torch.compile need more.

    Remedy: Set the usual 8 MiB in the shell that trains.

    Source: https://man7.org/linux/man-pages/man3/pthread_create.3.html
    """
    limit = facts.limits.stack_bytes
    if limit is not None and limit < LEAST_STACK_BYTES:
        finding = stack_small.finding(
            f"ulimit -s is {limit >> 10} KiB; 8192 KiB are usual",
            command="ulimit -s 8192",
        )
        yield _lifted(facts, "stack_bytes", finding)


# One day on all threads: a training may need that much.
LONG_SECONDS = 24 * 3600


@check("cpu-seconds", Severity.WARNING)
def cpu_seconds(facts: HostFacts) -> Iterator[Finding]:
    """The shell limits the CPU time of a process

    Symptom: "CPU time limit exceeded" or "Killed", always after the same time.

    Cause: ulimit -t counts the seconds of all threads together. Login nodes set it.

    Remedy: Lift the limit in the shell that trains, or train in a job of the scheduler.

    Source: https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    limit, threads = facts.limits.cpu_seconds, default_threads(facts)
    if limit is not None and limit < LONG_SECONDS * threads:
        finding = cpu_seconds.finding(
            f"ulimit -t is {limit} s; a rank with {threads} threads is ended after "
            f"{limit / threads / 60:.1f} minutes",
            command="ulimit -t unlimited",
        )
        yield _lifted(facts, "cpu_seconds", finding)


FILE_BYTES = GIB


@check("file-size", Severity.WARNING)
def file_size(facts: HostFacts) -> Iterator[Finding]:
    """The shell limits the size of a file below that of a checkpoint

    Symptom: "File too large", or an end by SIGXFSZ, at the first checkpoint or download.

    Cause: a login or a scheduler set ulimit -f.

    Remedy: Lift the limit in the shell that trains.

    Source: https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    limit, weights = facts.limits.file_bytes, facts.surroundings.model_bytes
    needed = FILE_BYTES if weights is None else 2 * weights  # the moments are in one file
    if limit is not None and limit < needed:
        finding = file_size.finding(
            f"ulimit -f limits a file to {limit / MIB:.0f} MiB; "
            f"one file of a checkpoint may need {needed / MIB:.0f} MiB",
            command="ulimit -f unlimited",
        )
        yield _lifted(facts, "file_bytes", finding)


@check("memlock-small", Severity.WARNING)
def memlock_small(facts: HostFacts) -> Iterator[Finding]:
    """The limit of locked memory is too small for the chosen network provider

    Symptom: MPI or oneCCL fails to register memory, or falls back to TCP.

    Cause: RDMA providers lock the buffers that they send from in memory.

    Remedy: Raise the limit (ulimit -l unlimited, or LimitMEMLOCK), or choose FI_PROVIDER=tcp.

    Source: https://ofiwg.github.io/libfabric/main/man/fi_verbs.7.html
    """
    provider, limit = (env.value(facts, "FI_PROVIDER") or "").lower(), facts.limits.memlock_bytes
    pins = any(name in provider for name in ("verbs", "psm", "mlx", "efa"))
    if pins and limit is not None and limit < GIB:
        yield memlock_small.finding(
            f"FI_PROVIDER={provider} with {limit / MIB:g} MiB of lockable memory"
        )


@check("open-files", Severity.ADVICE)
def open_files(facts: HostFacts) -> Iterator[Finding]:
    """The limit of open files is low

    Symptom: "Too many open files" or "received 0 items of ancdata" in a DataLoader.

    Cause: each tensor that a worker passes on uses a file descriptor.

    Remedy: Raise the soft limit in the shell that trains; the hard limit in limits.conf or with
    docker --ulimit nofile.

    Source: pytorch/pytorch#11201
    """
    limit, most = facts.limits.open_files, facts.limits.open_files_hard
    if limit is not None and limit < FEWEST_OPEN_FILES:
        can_be_raised = most is None or most > limit
        yield open_files.finding(
            f"{limit} open files are allowed (hard limit: {most}); {FEWEST_OPEN_FILES} is the "
            "usual minimum",
            severity=Severity.WARNING if limit < FEW_OPEN_FILES else None,
            command='ulimit -Sn "$(ulimit -Hn)"' if can_be_raised else None,
        )


CHECKS = checks_of(__name__)
