"""What a process is handed out beside CPUs and memory: shared memory, files, threads, priority."""

from __future__ import annotations

from collections.abc import Iterator

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import value
from cputune.facts import HostFacts

MIB, GIB = 1 << 20, 1 << 30
SHM_NEEDED_BYTES = GIB
SHM_SMALL_BYTES = GIB // 4
FEWEST_OPEN_FILES = 1024
THREADS_PER_CPU = 3
"""OpenMP's team, torch's pool between operations, and the tokenizers' pool have one each."""
OTHER_THREADS = 32
"""Of the interpreter, autograd, gloo or oneCCL, and a few DataLoader workers."""


@check(
    "shm-small",
    Severity.WARNING,
    title="/dev/shm is too small for DataLoader workers",
    remedy=(
        "Give the container more shared memory: docker run --shm-size=1g, or in Kubernetes "
        "an emptyDir of medium Memory at /dev/shm; or train with --dataloader_num_workers 0."
    ),
    source="pytorch/pytorch#16979",
)
def shm_small(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Bus error" or "unable to write to file </torch_…>" in a DataLoader worker.

    Cause: workers hand batches over through /dev/shm, and so do oneCCL and Open MPI
    between ranks. Docker gives 64 MiB unless told otherwise, and a write beyond the
    end of it kills the process.
    """
    size = facts.limits.shm_bytes
    if size is not None and size < SHM_SMALL_BYTES:
        yield shm_small.finding(
            f"/dev/shm holds {size / MIB:.0f} MiB, {SHM_NEEDED_BYTES / MIB:.0f} MiB are needed"
        )


@check(
    "shm-full",
    Severity.WARNING,
    title="/dev/shm is full",
    remedy="Remove what ended jobs have left there, or give it more memory.",
    source="pytorch/pytorch#16979",
)
def shm_full(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Bus error" in a DataLoader worker, although /dev/shm is large.

    Cause: killed jobs leave their segments behind (torch_…, vader_segment…, psm_…), and
    they count as memory until somebody removes them.
    """
    size, free = facts.limits.shm_bytes, facts.limits.shm_free_bytes
    if size is None or free is None or size < SHM_SMALL_BYTES or free >= SHM_SMALL_BYTES:
        return
    yield shm_full.finding(
        f"{free / MIB:.0f} of {size / MIB:.0f} MiB of /dev/shm are free, "
        f"{SHM_NEEDED_BYTES / MIB:.0f} MiB are needed",
        command="ls -lhS /dev/shm | head",
    )


@check(
    "shm-read-only",
    Severity.WARNING,
    title="/dev/shm may not be written to",
    remedy="Mount a tmpfs there, or train with --dataloader_num_workers 0 and without oneCCL.",
    source="https://docs.pytorch.org/docs/stable/multiprocessing.html",
)
def shm_read_only(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "unable to open shared memory object … Read-only file system".

    Cause: a container with a read-only root and no tmpfs of its own at /dev/shm.
    """
    if facts.limits.shm_read_only:
        yield shm_read_only.finding("/dev/shm is mounted read-only")


@check(
    "open-files",
    Severity.ADVICE,
    title="Few open files are allowed",
    remedy="Raise the soft limit in the shell that trains.",
    source="pytorch/pytorch#11201",
)
def open_files(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Too many open files" or "received 0 items of ancdata" in a DataLoader.

    Cause: each tensor that a worker hands over holds a file descriptor.
    """
    limit, most = facts.limits.open_files, facts.limits.open_files_hard
    if limit is None or limit >= FEWEST_OPEN_FILES:
        return
    can_be_raised = most is None or most > limit
    yield open_files.finding(
        f"{limit} open files are allowed, {FEWEST_OPEN_FILES} is the usual least"
        + ("" if can_be_raised else "; the hard limit is no higher"),
        remedy=None
        if can_be_raised
        else "Raise the hard limit: limits.conf, docker --ulimit nofile.",
        command='ulimit -Sn "$(ulimit -Hn)"' if can_be_raised else None,
    )


@check(
    "processes-few",
    Severity.WARNING,
    title="Fewer threads may be started than training needs",
    remedy=(
        "Raise the limit (ulimit -u, docker run --pids-limit, podPidsLimit of the kubelet), or "
        "train with fewer threads."
    ),
    source="https://docs.kernel.org/admin-guide/cgroup-v2.html#pid",
)
def processes_few(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "Resource temporarily unavailable" or "can't start new thread".

    Cause: for the kernel a thread is a process. The limit of a container (pids.max) and of
    a user (ulimit -u) count each of them, and a rank starts several for each CPU.
    """
    limits = facts.limits
    needed = THREADS_PER_CPU * len(facts.topology.allowed) + OTHER_THREADS
    if limits.pids is not None and limits.pids - (limits.pids_used or 0) < needed:
        yield processes_few.finding(
            f"pids.max is {limits.pids}, of which {limits.pids_used or 0} exist; ranks on "
            f"{len(facts.topology.allowed)} CPUs start about {needed}"
        )
    # Root and whoever holds CAP_SYS_RESOURCE are not held to the user's limit.
    if limits.processes is not None and limits.processes < needed and facts.sys_resource is False:
        yield processes_few.finding(
            f"ulimit -u is {limits.processes}; ranks on {len(facts.topology.allowed)} CPUs start "
            f"about {needed}"
        )


@check(
    "niced",
    Severity.ADVICE,
    title="Everything else goes first",
    remedy="Start training from a shell that was not started with nice.",
    source="https://man7.org/linux/man-pages/man7/sched.7.html",
)
def niced(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training is slow as soon as anything else runs.

    Cause: children inherit the nice value. At 19 a thread gets a seventieth of the CPU
    time of a neighbour at 0, and the whole team waits for it at each barrier.
    """
    nice = facts.limits.nice
    if nice is not None and nice > 0:
        yield niced.finding(
            f"this shell runs at nice {nice}",
            severity=Severity.WARNING if facts.load.busy else None,
            command="sudo renice -n 0 -p $$",
        )


@check(
    "memlock-small",
    Severity.WARNING,
    title="The limit of locked memory is too small for the chosen network provider",
    remedy="Raise the limit (ulimit -l unlimited, or LimitMEMLOCK), or choose FI_PROVIDER=tcp.",
    source="https://ofiwg.github.io/libfabric/main/man/fi_verbs.7.html",
)
def memlock_small(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: MPI or oneCCL fails to register memory, or falls back to TCP.

    Cause: RDMA providers pin the buffers that they send from.
    """
    provider = (value(facts, "FI_PROVIDER") or "").lower()
    limit = facts.limits.memlock_bytes
    if limit is None or limit >= GIB:
        return
    if any(name in provider for name in ("verbs", "psm", "mlx", "efa")):
        yield memlock_small.finding(
            f"FI_PROVIDER={provider} with {limit / MIB:g} MiB of lockable memory"
        )


CHECKS: tuple[Check, ...] = (
    shm_small,
    shm_full,
    shm_read_only,
    processes_few,
    memlock_small,
    open_files,
    niced,
)
