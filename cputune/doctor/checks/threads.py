"""How many OpenMP threads a training process starts, and on how many CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from cputune.doctor import variables as env
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.host.facts import HostFacts
from cputune.launch.launchers.mpirun import is_openmpi
from cputune.plans.cores import usable_cores
from cputune.text import cpulist

_UNBOUND = ("none", "disabled", "false", "no", "0", "off", "disable")


@check("threads-affinity", Severity.WARNING, under=("ranks-oversubscribed",))
def threads_affinity(facts: HostFacts) -> Iterator[Finding]:
    """There are more threads than allowed CPUs

    Symptom: training is up to thirty times slower than with fewer threads.

    Cause: the affinity of the process (taskset, numactl, cpuset, a scheduler) allows fewer CPUs
    than there are threads. They wait at each barrier for those that do not run.

    Remedy: Start one thread per allowed core, or widen the affinity.

    Source: pytorch/pytorch#125547, pytorch/pytorch#64864
    """
    allowed = facts.topology.allowed
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = env.number(facts, name)
        if threads is not None and allowed and threads > len(allowed):
            yield threads_affinity.finding(
                f"{name}={threads}, allowed CPUs: {len(allowed)} ({cpulist.render(allowed)})",
                command=_fix(facts, name),
            )


@check("threads-one", Severity.WARNING, tuned="threads")
def threads_one(facts: HostFacts) -> Iterator[Finding]:
    """Each rank computes with one thread

    Symptom: training is very slow under torchrun, and most cores are idle.

    Cause: torchrun sets OMP_NUM_THREADS=1 if it starts several ranks and the variable is unset
    (torch/distributed/run.py).

    Remedy: Set OMP_NUM_THREADS to the number of cores per rank; cputune tune also tries fewer.

    Source: pytorch/pytorch#22260, dmlc/dgl#2812, pytorch/pytorch#42094, pytorch/pytorch#93247
    """
    ranks = env.local_ranks(facts) or 1
    cores = len(usable_cores(facts)) // ranks
    threads, unset = env.number(facts, "OMP_NUM_THREADS"), not env.value(facts, "OMP_NUM_THREADS")
    if env.advised(facts).threads < 2:
        return
    if threads == 1 or (unset and ranks > 1 and env.under_torchrun(facts)):
        setting = "torchrun sets OMP_NUM_THREADS=1"
        if threads:
            setting = "OMP_NUM_THREADS=1"
        yield threads_one.finding(
            f"{setting}; local ranks: {ranks}, usable cores per rank: {cores}",
            command=_set_threads(facts),
        )
    elif unset and facts.package("torch") and env.number(facts, "MKL_NUM_THREADS") is None:
        yield threads_one.finding(
            f"OMP_NUM_THREADS is unset: python train.py will use {cores} cores, torchrun with "
            f"several ranks 1 thread each; {_per_rank(facts)}",
            severity=Severity.ADVICE,
            title="OMP_NUM_THREADS is left to the launcher",
            command=_set_threads(facts),
        )


def _set_threads(facts: HostFacts) -> str:
    return f"export OMP_NUM_THREADS={env.advised(facts).threads}"


def _fix(facts: HostFacts, name: str) -> str:
    """Set OMP_NUM_THREADS to the advised count; unset other counts."""
    if name == "OMP_NUM_THREADS":
        return _set_threads(facts)
    return f"unset {name}"


def _per_rank(facts: HostFacts) -> str:
    """``28 threads fit each of 2 ranks``."""
    advice = env.advised(facts)
    whom = "one rank"
    if advice.ranks != 1:
        whom = f"each of {advice.ranks} ranks"
    reason = ""
    if advice.why != whom:
        reason = f" ({advice.why})"
    return f"{advice.threads} threads fit {whom}{reason}"


@check("threads-malformed", Severity.WARNING)
def threads_malformed(facts: HostFacts) -> Iterator[Finding]:
    """A thread count is not a number

    Symptom: "libgomp: Invalid value for environment variable OMP_NUM_THREADS".

    Cause: the value is no positive number, for example an unexpanded ``$(nproc)`` from YAML. The
    runtime then uses its own default.

    Remedy: Set a whole number, 1 or more.

    Source: https://www.openmp.org/spec-html/5.0/openmpse50.html
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT"):
        text = env.value(facts, name)
        if text is not None and not re.fullmatch(r"0*[1-9]\d*(\s*,\s*0*[1-9]\d*)*", text):
            yield threads_malformed.finding(f"{name}={text!r}", command=_fix(facts, name))


@check("threads-mkl", Severity.WARNING)
def threads_mkl(facts: HostFacts) -> Iterator[Finding]:
    """MKL_NUM_THREADS and OMP_NUM_THREADS disagree

    Symptom: torch.get_num_threads() differs from OMP_NUM_THREADS.

    Cause: in torch built with MKL, MKL_NUM_THREADS overrides OMP_NUM_THREADS
    (aten/src/ATen/ParallelOpenMP.cpp).

    Remedy: Unset MKL_NUM_THREADS; torch then follows OMP_NUM_THREADS.

    Source: https://pytorch.org/docs/stable/notes/multiprocessing.html#cpu-oversubscription
    """
    mkl, omp = env.number(facts, "MKL_NUM_THREADS"), env.number(facts, "OMP_NUM_THREADS")
    if mkl is None:
        return
    if (omp is None and mkl < env.advised(facts).threads) or omp not in (None, mkl):
        uses = f", OMP_NUM_THREADS={omp or '(unset)'}: torch uses {mkl}; {_per_rank(facts)}"
        yield env.unset(threads_mkl, facts, "MKL_NUM_THREADS", uses)


@check("threads-limit", Severity.WARNING)
def threads_limit(facts: HostFacts) -> Iterator[Finding]:
    """OMP_THREAD_LIMIT is below the thread count

    Symptom: fewer cores are busy than torch.get_num_threads() says.

    Cause: OMP_THREAD_LIMIT caps every team of threads without a message.

    Remedy: Unset OMP_THREAD_LIMIT.

    Source: https://www.openmp.org/spec-html/5.0/openmpse58.html
    """
    limit, threads = env.number(facts, "OMP_THREAD_LIMIT"), env.number(facts, "OMP_NUM_THREADS")
    wanted = threads or len(usable_cores(facts))
    if limit is not None and 0 < limit < wanted:
        yield env.unset(
            threads_limit, facts, "OMP_THREAD_LIMIT", f", but {wanted} threads are requested"
        )


@check("threads-siblings", Severity.ADVICE, under=("ranks-oversubscribed",))
def threads_siblings(facts: HostFacts) -> Iterator[Finding]:
    """Two compute threads share one core

    Symptom: all CPUs are busy, but training is no faster than with half the threads.

    Cause: SMT siblings share the units that multiply matrices.

    Remedy: Start one thread per physical core; cputune tune measures both.

    Source: intel/intel-extension-for-pytorch#310
    """
    threads, cores = env.number(facts, "OMP_NUM_THREADS"), len(facts.topology.allowed_cores)
    ranks = env.local_ranks(facts) or 1
    total = (threads or 0) * ranks
    if threads is not None and cores < total <= len(facts.topology.allowed):
        yield threads_siblings.finding(
            f"{total} threads on {cores} allowed physical cores",
            command=_set_threads(facts) if threads > 1 else None,
        )


@check("affinity-shrinks", Severity.WARNING)
def affinity_shrinks(facts: HostFacts) -> Iterator[Finding]:
    """Importing torch binds the main thread to one core

    Symptom: everything runs on CPU 0; DataLoader workers and children are slow.

    Cause: with KMP_AFFINITY or OMP_PROC_BIND the OpenMP runtime binds the thread that imports torch
    to one core, and every worker process forked later inherits that.

    Remedy: Unset the variable and bind the whole process from outside: taskset, numactl or the
    launcher.

    Source: pytorch/pytorch#91989, pytorch/pytorch#99625, pytorch/pytorch#101850,
    huggingface/accelerate#3911
    """
    for name in env.openmp_binders(facts):
        if name != "GOMP_CPU_AFFINITY":
            yield env.unset(affinity_shrinks, facts, name)


@check("affinity-gomp", Severity.WARNING)
def affinity_gomp(facts: HostFacts) -> Iterator[Finding]:
    """GOMP_CPU_AFFINITY binds the main thread to one core

    Symptom: after ``import torch`` the process may use only one CPU.

    Cause: libgomp binds the thread that loads it to the first CPU of the list; threads and
    processes that it starts inherit that.

    Remedy: Unset the variable and bind the whole process from outside (taskset, numactl).

    Source: pytorch/pytorch#49971, pytorch/pytorch#149422
    """
    if env.value(facts, "GOMP_CPU_AFFINITY"):
        allowed = f"; allowed CPUs: {cpulist.render(facts.topology.allowed)}"
        yield env.unset(affinity_gomp, facts, "GOMP_CPU_AFFINITY", allowed)


@check("numa-not-zero", Severity.ADVICE)
def numa_not_zero(facts: HostFacts) -> Iterator[Finding]:
    """CPU 0 and its NUMA node are not allowed here

    Symptom: "numactl: failed to set … Invalid argument"; memory binding is lost.

    Cause: launchers test numactl with ``-C 0 -m 0``, which fails in a cpuset without CPU 0, and
    then do not bind.

    Remedy: Bind to the nodes that are allowed.

    Source: pytorch/pytorch#131011
    """
    topology, cpuset = facts.topology, facts.limits.cpuset
    allowed = set(topology.allowed)
    nodes = []
    for node in topology.numa_nodes:
        if allowed & set(node.cpus or ()):
            nodes.append(str(node.id))
    # A mask of taskset does not keep numactl from CPU 0; a cpuset does.
    if cpuset is not None and 0 not in cpuset and nodes and len(topology.numa_nodes) > 1:
        yield numa_not_zero.finding(
            f"the cpuset has CPUs {cpulist.render(cpuset)}; allowed are "
            f"{cpulist.render(allowed)}, on NUMA node {','.join(nodes)}"
        )


@check("mempolicy", Severity.ADVICE)
def mempolicy(facts: HostFacts) -> Iterator[Finding]:
    """This container may not bind memory

    Symptom: "set_mempolicy: Operation not permitted" from numactl in a container.

    Cause: Docker's seccomp profile allows set_mempolicy and mbind only with CAP_SYS_NICE.

    Remedy: Bind CPUs only (memory is allocated on the node that first writes it), or add SYS_NICE.

    Source: intel/intel-extension-for-pytorch#354, vllm-project/vllm#45438
    """
    nodes = []
    for node in facts.topology.numa_nodes:
        if node.memory_bytes != 0:
            nodes.append(node)
    if facts.settings.container and len(nodes) > 1 and facts.sys_nice is False:
        yield mempolicy.finding(
            f"in {facts.settings.container}, without CAP_SYS_NICE, with memory on "
            f"{len(nodes)} NUMA nodes",
            command="docker run --cap-add SYS_NICE IMAGE python train.py",
        )


@check("shell-bound", Severity.ADVICE, under=("threads-affinity", "one-core", "bound-twice"))
def shell_bound(facts: HostFacts) -> Iterator[Finding]:
    """This shell is bound to some of the CPUs

    Symptom: training uses fewer cores than the machine has.

    Cause: a parent process (taskset, a launcher, a scheduler) set an affinity, which children
    inherit.

    Remedy: To use the whole machine, start from a shell that is not bound.

    Source: pytorch/pytorch#99625
    """
    narrowed = _narrowed(facts)
    if narrowed and not env.under_mpi(facts) and not env.number(facts, "LOCAL_WORLD_SIZE"):
        yield shell_bound.finding(f"CPUs {narrowed}")


def _narrowed(facts: HostFacts) -> str | None:
    """CPUs of this process, if its affinity allows fewer than its cpuset; else None."""
    allowed = set(facts.topology.allowed)
    limit = set(facts.limits.cpuset or facts.topology.online)
    narrower = allowed and allowed < limit
    if narrower:
        return f"{cpulist.render(allowed)} of {cpulist.render(limit)}"
    return None


@check("openmpi-one-core", Severity.ADVICE)
def openmpi_one_core(facts: HostFacts) -> Iterator[Finding]:
    """Open MPI binds each of two ranks to one core

    Symptom: two ranks, both slow; all threads of a rank run on one core.

    Cause: with one or two ranks Open MPI binds each to a core (``--bind-to core``), from three on
    to a package or NUMA node.

    Remedy: Give mpirun the number of cores per rank, or pass --bind-to none.

    Source: open-mpi/ompi#13009, open-mpi/ompi#12900
    """
    advice, cores = env.advised(facts), len(usable_cores(facts))
    names = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")
    unbound = any((env.value(facts, name) or "").startswith("none") for name in names)
    launchers = [item for item in facts.launchers if is_openmpi(item.dialect)]
    if launchers and not unbound and not env.under_mpi(facts) and cores >= 4 and advice.ranks <= 2:
        yield openmpi_one_core.finding(
            f"{launchers[0].path} is Open MPI; mpirun -n 2 gives each rank 1 of {cores} cores",
            command=env.advised_launch(facts) if advice.ranks == 2 else None,
        )


@check("bound-twice", Severity.WARNING, under=("affinity-shrinks", "affinity-gomp"))
def bound_twice(facts: HostFacts) -> Iterator[Finding]:
    """Two programs bind the same process to CPUs

    Symptom: ranks share CPUs, although either binding alone would keep them apart.

    Cause: numactl or taskset, Intel MPI's I_MPI_PIN and the OpenMP runtime bind independently; the
    second chooses among the CPUs that the first allows.

    Remedy: Keep one binding: the launcher's, or that of numactl or taskset.

    Source: deepspeedai/DeepSpeed#4531
    """
    narrowed = _narrowed(facts)
    names = [name for name in ("I_MPI_PIN_DOMAIN", "I_MPI_PIN") if env.value(facts, name)]
    if (env.value(facts, "I_MPI_PIN") or "").lower() in _UNBOUND:
        names = []
    names = names[:1] + list(env.openmp_binders(facts))
    if "OMP_PROC_BIND" in names and not env.value(facts, "OMP_PLACES"):
        names.remove("OMP_PROC_BIND")  # without OMP_PLACES it keeps to the CPUs of the other
    binders = [f"{name}={env.value(facts, name)}" for name in names]
    if narrowed:
        binders.insert(0, f"the process is bound to CPUs {narrowed}")
    if len(binders) > 1:
        yield bound_twice.finding("; ".join(binders))


@check("pin-mask", Severity.WARNING)
def pin_mask(facts: HostFacts) -> Iterator[Finding]:
    """Intel MPI misreads this pin mask

    Symptom: ranks run on all CPUs, or on the wrong ones, with exit code 0.

    Cause: Intel MPI prints "IPL2 Error" for a mask without 0x and uses its default; a mask with
    CPUs that do not exist gives no message.

    Remedy: Write masks with 0x and existing CPUs only; then check the affinity of a rank.

    Source: geopm/geopm#614
    """
    text = env.value(facts, "I_MPI_PIN_DOMAIN") or ""
    if text.startswith("["):
        masks = text.strip("[]").split(",")
    else:
        masks = []
    bare = []
    for mask in masks:
        if not mask.strip().lower().startswith("0x"):
            bare.append(mask)
    named = set(chain.from_iterable(env.pin_domains(facts) or ()))
    outside = named - set(facts.topology.online or named)
    if bare:
        yield pin_mask.finding(f"I_MPI_PIN_DOMAIN={text}: no 0x before {', '.join(bare)}")
    elif outside:
        yield pin_mask.finding(
            f"I_MPI_PIN_DOMAIN={text} names CPUs {cpulist.render(outside)}; "
            f"online CPUs: {cpulist.render(facts.topology.online)}"
        )


CHECKS = checks_of(__name__)
