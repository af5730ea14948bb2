"""What binds this process, and all that it starts: OpenMP, the shell, the cpuset."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune import cpulist
from cputune.doctor.bound import gomp_cpus, listed_cpus, omp_binds
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import loads_intel_openmp, number, under_mpi, value
from cputune.facts import HostFacts


@check(
    "affinity-shrinks",
    Severity.WARNING,
    title="Importing torch binds the main thread to one core",
    remedy=(
        "Unset it and bind the whole process from outside instead: taskset, numactl or the "
        "launcher's own binding."
    ),
    source=(
        "pytorch/pytorch#91989, pytorch/pytorch#99625, pytorch/pytorch#101850, "
        "huggingface/accelerate#3911"
    ),
)
def affinity_shrinks(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: everything runs on CPU 0; DataLoader workers and children are slow.

    Cause: with KMP_AFFINITY or OMP_PROC_BIND the OpenMP runtime binds the thread that
    loads it as soon as torch is imported. sched_getaffinity then shows one core, and
    every worker process that is forked later inherits it.
    """
    kmp = value(facts, "KMP_AFFINITY")
    if kmp is not None and not {"none", "disabled"} & set(re.split(r"[,=]", kmp.lower())):
        if loads_intel_openmp(facts):
            yield affinity_shrinks.finding(f"KMP_AFFINITY={kmp}", command="unset KMP_AFFINITY")
        else:
            yield affinity_shrinks.finding(
                f"KMP_AFFINITY={kmp}; nothing loads libiomp5 yet, and libgomp does not read it",
                severity=Severity.ADVICE,
                title="With libiomp5 this would bind the main thread to one core",
                command="unset KMP_AFFINITY",
            )
    if omp_binds(facts):
        yield affinity_shrinks.finding(
            f"OMP_PROC_BIND={value(facts, 'OMP_PROC_BIND')}", command="unset OMP_PROC_BIND"
        )


@check(
    "affinity-gomp",
    Severity.WARNING,
    title="GOMP_CPU_AFFINITY binds the main thread to one core",
    remedy="Unset it and bind the whole process from outside instead (taskset, numactl).",
    source="pytorch/pytorch#49971, pytorch/pytorch#149422",
)
def affinity_gomp(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: after ``import torch`` the process may use one CPU only.

    Cause: libgomp binds the thread that loads it to the first CPU of the list, and all
    that is started from it inherits that.
    """
    text = value(facts, "GOMP_CPU_AFFINITY")
    if text is None:
        return
    evidence = f"GOMP_CPU_AFFINITY={text}"
    cpus = gomp_cpus(facts)
    outside = set(cpus or ()) - set(facts.topology.allowed)
    if cpus and facts.topology.allowed and outside:
        evidence += (
            f" names CPUs {cpulist.render(outside)}, "
            f"allowed are {cpulist.render(facts.topology.allowed)}"
        )
    yield affinity_gomp.finding(evidence, command="unset GOMP_CPU_AFFINITY")


@check(
    "places-outside",
    Severity.WARNING,
    title="OMP_PLACES names CPUs that are not allowed",
    remedy="Write OMP_PLACES=cores, which means the allowed ones.",
    source="https://www.openmp.org/spec-html/5.0/openmpse53.html",
)
def places_outside(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: libgomp warns of places, and threads end up together on few CPUs.

    Cause: an explicit list was made for another machine, or for the host of a container.
    """
    cpus, allowed = listed_cpus(value(facts, "OMP_PLACES")), facts.topology.allowed
    outside = set(cpus or ()) - set(allowed)
    if outside and allowed:
        yield places_outside.finding(
            f"OMP_PLACES names CPUs {cpulist.render(outside)}; "
            f"allowed are {cpulist.render(allowed)}",
            command="export OMP_PLACES=cores",
        )


@check(
    "numa-not-zero",
    Severity.ADVICE,
    title="CPU 0 and its NUMA node are not allowed here",
    remedy="Bind to the nodes that are allowed; numactl -C 0 -m 0 fails in this cpuset.",
    source="pytorch/pytorch#131011",
)
def numa_not_zero(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "numactl: failed to set … Invalid argument"; memory binding is lost.

    Cause: launchers test numactl with ``-C 0 -m 0`` and give up binding when it fails,
    as it does in a cpuset without CPU 0.
    """
    topology = facts.topology
    allowed = set(topology.allowed)
    nodes = [node for node in topology.numa_nodes if allowed & set(node.cpus or ())]
    cpuset = facts.limits.cpuset
    # A mask of taskset does not keep numactl from CPU 0; a cpuset does.
    if cpuset is None or 0 in cpuset or not nodes or len(topology.numa_nodes) < 2:
        return
    ids = ",".join(str(node.id) for node in nodes)
    yield numa_not_zero.finding(
        f"the cpuset holds CPUs {cpulist.render(cpuset)}; allowed are "
        f"{cpulist.render(allowed)}, on NUMA node {ids}",
        command=f"numactl --physcpubind={cpulist.render(allowed)} --membind={ids} python train.py",
    )


@check(
    "mempolicy",
    Severity.ADVICE,
    title="This container may not bind memory",
    remedy="Bind CPUs alone (memory then lies where it is first used), or add SYS_NICE.",
    source="intel/intel-extension-for-pytorch#354, vllm-project/vllm#45438",
)
def mempolicy(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "set_mempolicy: Operation not permitted" from numactl in a container.

    Cause: Docker's seccomp profile lets set_mempolicy and mbind through only with
    CAP_SYS_NICE.
    """
    nodes = [node for node in facts.topology.numa_nodes if node.memory_bytes != 0]
    if facts.settings.container and len(nodes) > 1 and facts.sys_nice is False:
        yield mempolicy.finding(
            f"in {facts.settings.container}, without CAP_SYS_NICE, with memory on "
            f"{len(nodes)} NUMA nodes",
            command="docker run --cap-add SYS_NICE IMAGE python train.py",
        )


@check(
    "shell-bound",
    Severity.ADVICE,
    title="This shell is bound to some of the CPUs",
    remedy="To use the whole machine, start from a shell that is not bound.",
    source="pytorch/pytorch#99625",
)
def shell_bound(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training uses fewer cores than the machine has, whatever is set.

    Cause: a parent process (taskset, a launcher, a scheduler) set an affinity that every
    child inherits.
    """
    topology = facts.topology
    limit = set(facts.limits.cpuset or topology.online)
    narrow = topology.allowed and set(topology.allowed) < limit
    if narrow and not under_mpi(facts) and not number(facts, "LOCAL_WORLD_SIZE"):
        yield shell_bound.finding(
            f"CPUs {cpulist.render(topology.allowed)} of {cpulist.render(limit)}"
        )


CHECKS: tuple[Check, ...] = (
    affinity_shrinks,
    affinity_gomp,
    places_outside,
    numa_not_zero,
    mempolicy,
    shell_bound,
)
