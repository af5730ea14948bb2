"""How many CPUs a pod asks for, and how many of a node it leaves to the kubelet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cputune.emitters import header
from cputune.emitters.checked_words import typed
from cputune.emitters.format import LaunchJob
from cputune.text.plain import count


def reserved_cpus(cpus: int, threads_per_core: int = 1) -> int:
    """CPUs of a node of this size that its kubelet and system keep, whole cores.

    6 % of the first CPU, 1 % of the second, 0.5 % of the next two and 0.25 % of all others, as GKE
    and EKS reserve (https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes,
    awslabs/amazon-eks-ami); AKS keeps less than one CPU of up to 64, too
    (https://learn.microsoft.com/azure/aks/node-resource-reservations). A pod of the Guaranteed
    class needs whole CPUs; in the rest of the last one the node's DaemonSets fit.
    """
    shares = [0.06, 0.01, 0.005, 0.005]
    kept = sum(shares[:cpus]) + 0.0025 * max(cpus - len(shares), 0)
    return math.ceil(math.ceil(kept) / threads_per_core) * threads_per_core


def with_reserve(job: LaunchJob) -> LaunchJob:
    """The job with the threads that fit next to the reserve of a node like the measured one."""
    if job.machine.physical_cores is None:
        return job
    cpus = job.machine.physical_cores * job.machine.threads_per_core
    kept = job.site.cluster.reserve_cpus
    if kept is None:
        kept = reserved_cpus(cpus, job.machine.threads_per_core)
    threads = job.plan.threads_per_process
    fewer = job
    while pod_cpus(fewer) > cpus - kept and threads > 1:
        threads -= 1
        fewer = _with_threads(job, threads)
    if pod_cpus(fewer) > cpus - kept:
        return job
    return fewer


def _with_threads(job: LaunchJob, threads: int) -> LaunchJob:
    """The job with fewer threads in each rank, in every variable."""
    cut = tuple(share[:threads] for share in job.plan.cpus)
    plan = replace(job.plan, threads_per_process=threads, cpus=cut)
    before, after = job.plan.environment(), plan.environment()
    changed = {name: after[name] for name in after if after[name] != before.get(name)}

    def renewed(values: Mapping[str, str]) -> dict[str, str]:
        return {name: changed.get(name, value) for name, value in values.items()}

    promise = replace(
        job.promise,
        plan=plan,
        environment=renewed(job.promise.environment or {}),
        samples_per_second=None,
    )
    environment = typed(renewed(dict(job.environment.items())))
    lines = header.with_another_plan(job, plan)
    return replace(job, plan=plan, environment=environment, promise=promise, header=lines)


def note_of_reserve(job: LaunchJob, measured: LaunchJob) -> str | None:
    """What is said of the CPUs that a node keeps for itself."""
    if job.machine.physical_cores is None:
        return None
    cpus = job.machine.physical_cores * job.machine.threads_per_core
    now, before = job.plan.threads_per_process, measured.plan.threads_per_process
    if now != before:
        return (
            f"{count(now, 'thread')} for each rank in place of {before}: the kubelet keeps "
            f"{cpus - pod_cpus(job)} of the {cpus} CPUs of such a node. "
            "On larger nodes: --reserve-cpus 0"
        )
    if pod_cpus(job) >= cpus:
        return (
            f"Each pod asks for all {pod_cpus(job)} CPUs of such a machine, and a node keeps some "
            "for itself: without a larger node the pods stay Pending; tune with fewer threads."
        )
    return None


def pod_cpus(job: LaunchJob) -> int:
    """CPUs that a pod requests. A Kubernetes CPU is a hyperthread.

    A plan with one thread on each core requests all siblings of its cores; otherwise two
    hyperthreads of one core would be two of its "cores".
    """
    plan = job.plan
    threads = plan.threads_per_process * (1 if job.on_siblings else job.machine.threads_per_core)
    workers = plan.ccl_workers * job.machine.threads_per_core
    return plan.processes_per_node * (threads + workers)
