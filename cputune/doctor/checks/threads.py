"""How many OpenMP threads a training process starts, and on how many CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune import cpulist
from cputune.cores import usable_cores
from cputune.doctor.advised import advised_ranks, advised_threads
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import (
    loads_intel_openmp,
    local_ranks,
    number,
    under_torchrun,
    value,
)
from cputune.facts import HostFacts


@check(
    "threads-one",
    Severity.WARNING,
    title="Each rank computes with one thread",
    remedy="Set OMP_NUM_THREADS to the number of cores that each rank has.",
    source="pytorch/pytorch#22260, dmlc/dgl#2812",
)
def threads_one(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: training on the CPU is very slow under torchrun, most cores are idle.

    Cause: torchrun sets OMP_NUM_THREADS=1 in every rank when it starts more than one
    and the variable is unset (torch/distributed/run.py).
    """
    ranks = local_ranks(facts) or 1
    cores = len(usable_cores(facts)) // ranks
    if advised_threads(facts) < 2:
        return
    fits = _set_threads(facts)
    threads, unset = number(facts, "OMP_NUM_THREADS"), not value(facts, "OMP_NUM_THREADS")
    if threads == 1:
        yield threads_one.finding(
            f"OMP_NUM_THREADS=1, while {cores} cores may be used by each of {ranks} "
            f"local rank{'s' if ranks > 1 else ''}",
            command=fits,
        )
    elif unset and ranks > 1 and under_torchrun(facts):
        yield threads_one.finding(
            f"OMP_NUM_THREADS is unset, so torchrun gives 1 thread to each of {ranks} local "
            f"ranks; {cores} cores are there for each",
            command=fits,
        )
    elif unset and facts.package("torch"):
        yield threads_one.finding(
            "OMP_NUM_THREADS is unset: python train.py will use every allowed core "
            f"({cores} that are usable), torchrun with several ranks 1 thread each; "
            + _per_rank(facts),
            severity=Severity.ADVICE,
            title="OMP_NUM_THREADS is left to the launcher",
            command=fits,
        )


def _set_threads(facts: HostFacts) -> str:
    return f"export OMP_NUM_THREADS={advised_threads(facts)}"


def _per_rank(facts: HostFacts) -> str:
    """``28 threads fit each of 2 ranks``: which launch the advised count is meant for."""
    ranks = advised_ranks(facts)
    whom = "one rank" if ranks == 1 else f"each of {ranks} ranks"
    return f"{advised_threads(facts)} threads fit {whom}"


@check(
    "threads-malformed",
    Severity.WARNING,
    title="A thread count that is no number",
    remedy="Give a whole number from 1 on; OpenMP ignores anything else.",
    source="https://www.openmp.org/spec-html/5.0/openmpse50.html",
)
def threads_malformed(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: "libgomp: Invalid value for environment variable OMP_NUM_THREADS".

    Cause: the value is not a positive number (an unexpanded ``$(nproc)`` in a YAML
    file, say). The runtime goes on with its own default.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT"):
        text = value(facts, name)
        if text is None or re.fullmatch(r"0*[1-9]\d*(\s*,\s*0*[1-9]\d*)*", text):
            continue
        cure = _set_threads(facts) if name == "OMP_NUM_THREADS" else f"unset {name}"
        yield threads_malformed.finding(f"{name}={text!r}", command=cure)


@check(
    "threads-affinity",
    Severity.WARNING,
    title="More threads than CPUs that they may run on",
    remedy="Start as many threads as cores are allowed, or widen the affinity.",
    source="pytorch/pytorch#125547, pytorch/pytorch#64864",
)
def threads_affinity(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: up to thirty times slower than with fewer threads.

    Cause: the affinity of the process (taskset, numactl, cpuset, a scheduler) is
    narrower than the thread count. Threads share CPUs and wait at each barrier for
    those that are not running.
    """
    allowed = facts.topology.allowed
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = number(facts, name)
        if threads is not None and allowed and threads > len(allowed):
            yield threads_affinity.finding(
                f"{name}={threads}, allowed CPUs: {len(allowed)} ({cpulist.render(allowed)})",
                command=_set_threads(facts) if name.startswith("OMP") else f"unset {name}",
            )


@check(
    "threads-siblings",
    Severity.ADVICE,
    title="Two compute threads on one core",
    remedy="One thread per physical core is the usual best; let the tuner measure both.",
    source="intel/intel-extension-for-pytorch#310",
)
def threads_siblings(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: all CPUs are busy, and training is no faster than with half the threads.

    Cause: SMT siblings share the units that multiply matrices, AMX above all.
    """
    threads, cores = number(facts, "OMP_NUM_THREADS"), len(facts.topology.allowed_cores)
    ranks = local_ranks(facts) or 1
    total = (threads or 0) * ranks
    if threads is not None and cores < total <= len(facts.topology.allowed):
        yield threads_siblings.finding(
            f"{total} threads on {cores} allowed physical cores",
            command=_set_threads(facts) if threads > 1 else None,
        )


@check(
    "threads-mkl",
    Severity.WARNING,
    title="MKL_NUM_THREADS and OMP_NUM_THREADS disagree",
    remedy="Unset MKL_NUM_THREADS; torch then follows OMP_NUM_THREADS.",
    source="https://pytorch.org/docs/stable/notes/multiprocessing.html#cpu-oversubscription",
)
def threads_mkl(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: torch.get_num_threads() is not what OMP_NUM_THREADS says.

    Cause: torch takes MKL's count where it is built with MKL, and MKL_NUM_THREADS
    beats OMP_NUM_THREADS there (aten/src/ATen/ParallelOpenMP.cpp).
    """
    mkl, omp = number(facts, "MKL_NUM_THREADS"), number(facts, "OMP_NUM_THREADS")
    if mkl is not None and omp is not None and mkl != omp:
        yield threads_mkl.finding(
            f"MKL_NUM_THREADS={mkl}, OMP_NUM_THREADS={omp}: torch uses {mkl}",
            command="unset MKL_NUM_THREADS",
        )


@check(
    "threads-limit",
    Severity.WARNING,
    title="OMP_THREAD_LIMIT is below the thread count",
    remedy="Unset OMP_THREAD_LIMIT.",
    source="https://www.openmp.org/spec-html/5.0/openmpse58.html",
)
def threads_limit(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: fewer cores are busy than torch.get_num_threads() says.

    Cause: OMP_THREAD_LIMIT caps every team without a message.
    """
    limit, threads = number(facts, "OMP_THREAD_LIMIT"), number(facts, "OMP_NUM_THREADS")
    wanted = threads or len(usable_cores(facts))
    if limit is not None and 0 < limit < wanted:
        yield threads_limit.finding(
            f"OMP_THREAD_LIMIT={limit}, {wanted} threads are wanted",
            command="unset OMP_THREAD_LIMIT",
        )


@check(
    "threads-subset",
    Severity.WARNING,
    title="KMP_HW_SUBSET leaves fewer places than threads",
    remedy="Unset KMP_HW_SUBSET, and bind the process from outside.",
    source="https://openmp.llvm.org/design/Runtimes.html#kmp-hw-subset",
)
def threads_subset(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: threads share cores although there are enough of them.

    Cause: KMP_HW_SUBSET (``1s,8c,1t``) hides hardware from libiomp5; OMP_NUM_THREADS was
    set for the whole machine. libgomp does not read it.
    """
    text = (value(facts, "KMP_HW_SUBSET") or "").lower()
    counts = dict.fromkeys("sct", 0)
    for number_text, unit in re.findall(r"(\d{1,6})\s*([sct])", text):
        counts[unit] = int(number_text)
    threads = number(facts, "OMP_NUM_THREADS")
    places = (counts["s"] or facts.topology.sockets) * counts["c"] * (counts["t"] or 1)
    if threads is not None and 0 < places < threads and loads_intel_openmp(facts):
        yield threads_subset.finding(
            f"KMP_HW_SUBSET={text} leaves {places} places, OMP_NUM_THREADS={threads}",
            command="unset KMP_HW_SUBSET",
        )


CHECKS: tuple[Check, ...] = (
    threads_affinity,
    threads_one,
    threads_malformed,
    threads_mkl,
    threads_limit,
    threads_subset,
    threads_siblings,
)
