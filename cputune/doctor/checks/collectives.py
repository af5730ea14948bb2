"""oneCCL and gloo: whether the backend that is chosen can work here."""

from __future__ import annotations

from collections.abc import Iterator

from cputune import cpulist
from cputune.cores import usable_cores
from cputune.doctor.advised import advised_ranks, advised_threads, oneccl_absent, workers
from cputune.doctor.bound import ccl_worker_cpus
from cputune.doctor.checks.launchers import has_mpirun, mpi_launchers
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import (
    local_ranks,
    number,
    under_mpi,
    under_torchrun,
    value,
    world_size,
)
from cputune.facts import HostFacts
from cputune.stack import load, versions_of
from cputune.stack.fit import oneccl_torch
from cputune.stack.uses import ccl_refusals


@check(
    "ccl-affinity",
    Severity.ERROR,
    title="oneCCL workers are sent to CPUs that are not allowed",
    remedy="Name only CPUs that this process may use.",
    source="intel/torch-ccl#54",
)
def ccl_affinity(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "error while creating worker thread #0 pthread_create returns 22".

    Cause: CCL_WORKER_AFFINITY names a CPU outside the affinity or the cpuset, and the
    kernel refuses the thread (EINVAL is 22).
    """
    cpus, allowed = ccl_worker_cpus(facts), facts.topology.allowed
    outside = set(cpus or ()) - set(allowed)
    if outside and allowed:
        yield ccl_affinity.finding(
            f"CCL_WORKER_AFFINITY={value(facts, 'CCL_WORKER_AFFINITY')} names CPUs "
            f"{cpulist.render(outside)}; allowed are {cpulist.render(allowed)}",
            severity=Severity.ADVICE if oneccl_absent(facts) else None,
            command="unset CCL_WORKER_AFFINITY",
        )


@check(
    "ccl-workers",
    Severity.ERROR,
    title="Threads and oneCCL workers exceed the cores of a rank",
    remedy="Leave each worker a core of its own: threads + workers = cores of the rank.",
    source="uxlfoundation/oneCCL#168, https://uxlfoundation.github.io/oneCCL/env-variables.html",
)
def ccl_workers(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "the number of workers exceeds the number of available cores per process".

    Cause: CCL_WORKER_COUNT worker threads need cores that no OpenMP thread uses. oneCCL
    refuses more workers than a rank has cores, and disables them where they are as many.
    Where CCL_WORKER_AFFINITY names their CPUs it does neither: they take turns with threads.
    """
    asked, threads = number(facts, "CCL_WORKER_COUNT"), number(facts, "OMP_NUM_THREADS")
    ranks = local_ranks(facts) or 1
    cores = len(usable_cores(facts)) // ranks
    if not asked or not cores:
        return
    if asked + (threads or 1) > cores:
        yield ccl_workers.finding(
            f"CCL_WORKER_COUNT={asked} and {threads or 'at least 1'} OpenMP "
            f"thread{'s' if threads != 1 else ''} on {cores} usable core{'s' if cores > 1 else ''}"
            + (f" of each of {ranks} ranks" if ranks > 1 else ""),
            severity=(
                Severity.ADVICE
                if oneccl_absent(facts)
                else Severity.WARNING
                if asked <= cores or value(facts, "CCL_WORKER_AFFINITY")
                else None
            ),
            command=_fewer_workers(facts),
        )


def _fewer_workers(facts: HostFacts) -> str:
    """Threads that leave the workers their cores, or fewer workers, or none."""
    fitting = workers(facts)
    if not fitting or _finds_no_mpi(facts):
        return "unset CCL_WORKER_COUNT"
    fewer = "" if fitting == number(facts, "CCL_WORKER_COUNT") else f"CCL_WORKER_COUNT={fitting} "
    return f"export {fewer}OMP_NUM_THREADS={advised_threads(facts)}"


@check(
    "ccl-without-mpi",
    Severity.ERROR,
    title="oneCCL without an MPI launcher",
    remedy="Launch with mpirun, or use the gloo backend.",
    source="intel/torch-ccl#48, intel/llm-on-ray#242",
)
def ccl_without_mpi(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: hangs after "did not find MPI-launcher specific variables".

    Cause: oneCCL takes its ranks from an MPI launcher. Under torchrun or in a pod it
    finds none, and waits.
    """
    bindings = facts.package("oneccl_bind_pt") or facts.package("torch_ccl")
    if bindings is None or under_mpi(facts):
        return
    if _finds_no_mpi(facts):
        yield ccl_without_mpi.finding(
            f"CCL_WORKER_COUNT={value(facts, 'CCL_WORKER_COUNT')} selects oneCCL, WORLD_SIZE="
            f"{world_size(facts) or '(unset)'}, and no MPI variables (PMI_RANK) are there",
            command="unset CCL_WORKER_COUNT",
        )
    elif _selected(facts) and _process_launcher(facts) == "none" and _without_local_rank(facts):
        yield ccl_without_mpi.finding(
            "CCL_PROCESS_LAUNCHER=none, and CCL_LOCAL_RANK and CCL_LOCAL_SIZE are unset",
            remedy="Set CCL_LOCAL_RANK and CCL_LOCAL_SIZE in every rank, or launch with mpirun.",
        )
    elif not has_mpirun(facts):
        yield ccl_without_mpi.finding(
            f"{bindings.name} {bindings.version} is installed, and no mpirun was found",
            severity=Severity.ADVICE,
        )


def _selected(facts: HostFacts) -> bool:
    """Whether ranks were started, and will speak oneCCL."""
    started = world_size(facts) is not None or under_torchrun(facts)
    return started and bool(number(facts, "CCL_WORKER_COUNT"))


def _process_launcher(facts: HostFacts) -> str:
    return (value(facts, "CCL_PROCESS_LAUNCHER") or "").lower()


def _finds_no_mpi(facts: HostFacts) -> bool:
    """Whether oneCCL will look for an MPI launcher that did not start these ranks."""
    asks_mpi = _process_launcher(facts) not in ("none", "torchrun", "torch")
    return _selected(facts) and asks_mpi and not under_mpi(facts)


def _without_local_rank(facts: HostFacts) -> bool:
    return not (value(facts, "CCL_LOCAL_RANK") and value(facts, "CCL_LOCAL_SIZE"))


@check(
    "ccl-transport",
    Severity.WARNING,
    title="oneCCL is told to use an MPI that is not there",
    remedy="Source oneCCL's setvars.sh, or unset CCL_ATL_TRANSPORT.",
    source="intel/torch-ccl#48",
)
def ccl_transport(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: oneCCL fails to load its MPI transport.

    Cause: CCL_ATL_TRANSPORT=mpi needs Intel MPI, which setvars.sh brings (I_MPI_ROOT).
    """
    transport = (value(facts, "CCL_ATL_TRANSPORT") or "").lower()
    intel = any(item.dialect == "intelmpi" for item in facts.launchers)
    if transport == "mpi" and not value(facts, "I_MPI_ROOT") and not intel:
        yield ccl_transport.finding(
            "CCL_ATL_TRANSPORT=mpi, I_MPI_ROOT is unset and no Intel MPI was found",
            command="unset CCL_ATL_TRANSPORT",
        )


@check(
    "gloo-slow",
    Severity.ADVICE,
    title="gloo is used although oneCCL is here",
    remedy="Compare the two: oneCCL was 14 % faster with two ranks of a small BERT.",
    source="uxlfoundation/oneCCL#168",
)
def gloo_slow(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: gradients take longer to exchange than to compute.

    Cause: gloo is the default on CPUs. Where the oneCCL bindings fit torch, and ranks
    are started by mpirun, ccl uses shared memory and worker threads of its own.
    """
    versions = versions_of(facts)
    # What does not fit, or is not used, oneccl-torch-mismatch and oneccl-unused say.
    if oneccl_torch(load(), versions) or ccl_refusals(versions) or not mpi_launchers(facts):
        return
    known = versions.oneccl is not None and versions.torch is not None
    if known and not number(facts, "CCL_WORKER_COUNT"):
        yield gloo_slow.finding(
            f"oneccl_bind_pt {versions.oneccl} fits torch {versions.torch}; CCL_WORKER_COUNT is "
            f"{value(facts, 'CCL_WORKER_COUNT') or 'unset'}, so accelerate takes gloo",
            command=f"CCL_WORKER_COUNT=1 mpirun -n {advised_ranks(facts)} "
            "python train.py --ddp_backend ccl",
        )


CHECKS: tuple[Check, ...] = (
    ccl_affinity,
    ccl_workers,
    ccl_without_mpi,
    ccl_transport,
    gloo_slow,
)
