"""Limits of the container and the shell: CPU time, memory, shared memory, handles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import value
from cputune.facts import HostFacts
from cputune.layout import default_threads

GIB = 1 << 30
SHM_NEEDED_BYTES = GIB
SHM_SMALL_BYTES = GIB // 4


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
    every period of 100 ms and then all of them stand still until the next.
    """
    quota, threads = facts.limits.cpu_quota, default_threads(facts)
    if quota is None or threads <= max(1, math.floor(quota)):
        return
    fits = max(1, math.floor(quota))
    evidence = (
        f"the cgroup gives {quota:g} CPUs of time, a training process starts {threads} threads"
    )
    if value(facts, "OMP_NUM_THREADS"):
        evidence += f" (OMP_NUM_THREADS={value(facts, 'OMP_NUM_THREADS')})"
    else:
        evidence += " (one per allowed core)"
    periods, throttled = facts.limits.periods, facts.limits.throttled_periods
    if periods and throttled:
        evidence += f"; throttled in {100 * throttled / periods:.0f} % of periods so far"
    yield quota_threads.finding(evidence, command=f"export OMP_NUM_THREADS={fits}")


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
            f"/dev/shm holds {size / (1 << 20):.0f} MiB, "
            f"{SHM_NEEDED_BYTES / (1 << 20):.0f} MiB are needed"
        )


CHECKS: tuple[Check, ...] = (quota_threads, shm_small)
