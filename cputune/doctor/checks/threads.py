"""How many OpenMP threads a training process starts, and on how many CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune import cpulist
from cputune.cores import usable_cores
from cputune.doctor.finding import Finding, Severity, check, checks_of
from cputune.doctor.variables import (
    advised,
    advised_launch,
    gomp_cpus,
    listed_cpus,
    loads_intel_openmp,
    local_ranks,
    number,
    omp_binds,
    pin_domains,
    under_mpi,
    under_torchrun,
    value,
)
from cputune.facts import HostFacts

MANY_CORES = 8
"""From so many on what threads wait for each other can exceed what a tiny model computes."""


@check("threads-affinity", Severity.WARNING)
def threads_affinity(facts: HostFacts) -> Iterator[Finding]:
    """More threads than CPUs that they may run on

    Symptom: up to thirty times slower than with fewer threads.

    Cause: the affinity of the process (taskset, numactl, cpuset, a scheduler) is
    narrower than the thread count. Threads share CPUs and wait at each barrier for
    those that are not running.

    Remedy: Start as many threads as cores are allowed, or widen the affinity.

    Source: pytorch/pytorch#125547, pytorch/pytorch#64864
    """
    allowed = facts.topology.allowed
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        threads = number(facts, name)
        if threads is not None and allowed and threads > len(allowed):
            yield threads_affinity.finding(
                f"{name}={threads}, allowed CPUs: {len(allowed)} ({cpulist.render(allowed)})",
                command=_set_threads(facts) if name.startswith("OMP") else f"unset {name}",
            )


@check("threads-one", Severity.WARNING)
def threads_one(facts: HostFacts) -> Iterator[Finding]:
    """Each rank computes with one thread

    Symptom: training on the CPU is very slow under torchrun, most cores are idle.

    Cause: torchrun sets OMP_NUM_THREADS=1 in every rank when it starts more than one
    and the variable is unset (torch/distributed/run.py).

    Remedy: Set OMP_NUM_THREADS to the cores that each rank has; cputune tune measures fewer.

    Source: pytorch/pytorch#22260, dmlc/dgl#2812, pytorch/pytorch#42094, pytorch/pytorch#93247
    """
    ranks = local_ranks(facts) or 1
    cores = len(usable_cores(facts)) // ranks
    if advised(facts).threads < 2:
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
    elif unset and facts.package("torch") and number(facts, "MKL_NUM_THREADS") is None:
        yield threads_one.finding(
            "OMP_NUM_THREADS is unset: python train.py will use every allowed core "
            f"({cores} that are usable), torchrun with several ranks 1 thread each; "
            + _per_rank(facts)
            + ("; a tiny model is faster with fewer" if cores >= MANY_CORES else ""),
            severity=Severity.ADVICE,
            title="OMP_NUM_THREADS is left to the launcher",
            command=fits,
        )


def _set_threads(facts: HostFacts) -> str:
    return f"export OMP_NUM_THREADS={advised(facts).threads}"


def _per_rank(facts: HostFacts) -> str:
    """``28 threads fit each of 2 ranks``: which launch the advised count is meant for."""
    advice = advised(facts)
    whom = "one rank" if advice.ranks == 1 else f"each of {advice.ranks} ranks"
    why = "" if advice.why == whom else f" ({advice.why})"
    return f"{advice.threads} threads fit {whom}{why}"


@check("threads-malformed", Severity.WARNING)
def threads_malformed(facts: HostFacts) -> Iterator[Finding]:
    """A thread count that is no number

    Symptom: "libgomp: Invalid value for environment variable OMP_NUM_THREADS".

    Cause: the value is not a positive number (an unexpanded ``$(nproc)`` in a YAML
    file, say). The runtime goes on with its own default.

    Remedy: Give a whole number from 1 on; OpenMP ignores anything else.

    Source: https://www.openmp.org/spec-html/5.0/openmpse50.html
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT"):
        text = value(facts, name)
        if text is None or re.fullmatch(r"0*[1-9]\d*(\s*,\s*0*[1-9]\d*)*", text):
            continue
        cure = _set_threads(facts) if name == "OMP_NUM_THREADS" else f"unset {name}"
        yield threads_malformed.finding(f"{name}={text!r}", command=cure)


@check("threads-mkl", Severity.WARNING)
def threads_mkl(facts: HostFacts) -> Iterator[Finding]:
    """MKL_NUM_THREADS and OMP_NUM_THREADS disagree

    Symptom: torch.get_num_threads() is not what OMP_NUM_THREADS says.

    Cause: torch takes MKL's count where it is built with MKL, and MKL_NUM_THREADS
    beats OMP_NUM_THREADS there (aten/src/ATen/ParallelOpenMP.cpp).

    Remedy: Unset MKL_NUM_THREADS; torch then follows OMP_NUM_THREADS.

    Source: https://pytorch.org/docs/stable/notes/multiprocessing.html#cpu-oversubscription
    """
    mkl, omp = number(facts, "MKL_NUM_THREADS"), number(facts, "OMP_NUM_THREADS")
    threads = advised(facts).threads
    if mkl is not None and omp is None and mkl < threads:
        yield threads_mkl.finding(
            f"MKL_NUM_THREADS={mkl}, OMP_NUM_THREADS is unset: torch uses {mkl}; "
            + _per_rank(facts),
            title="MKL_NUM_THREADS holds torch to fewer threads than cores",
            command="unset MKL_NUM_THREADS",
        )
    if mkl is not None and omp is not None and mkl != omp:
        yield threads_mkl.finding(
            f"MKL_NUM_THREADS={mkl}, OMP_NUM_THREADS={omp}: torch uses {mkl}",
            command="unset MKL_NUM_THREADS",
        )


@check("threads-limit", Severity.WARNING)
def threads_limit(facts: HostFacts) -> Iterator[Finding]:
    """OMP_THREAD_LIMIT is below the thread count

    Symptom: fewer cores are busy than torch.get_num_threads() says.

    Cause: OMP_THREAD_LIMIT caps every team without a message.

    Remedy: Unset OMP_THREAD_LIMIT.

    Source: https://www.openmp.org/spec-html/5.0/openmpse58.html
    """
    limit, threads = number(facts, "OMP_THREAD_LIMIT"), number(facts, "OMP_NUM_THREADS")
    wanted = threads or len(usable_cores(facts))
    if limit is not None and 0 < limit < wanted:
        yield threads_limit.finding(
            f"OMP_THREAD_LIMIT={limit}, {wanted} threads are wanted",
            command="unset OMP_THREAD_LIMIT",
        )


@check("threads-subset", Severity.WARNING)
def threads_subset(facts: HostFacts) -> Iterator[Finding]:
    """KMP_HW_SUBSET leaves fewer places than threads

    Symptom: threads share cores although there are enough of them.

    Cause: KMP_HW_SUBSET (``1s,8c,1t``) hides hardware from libiomp5; OMP_NUM_THREADS was
    set for the whole machine. libgomp does not read it.

    Remedy: Unset KMP_HW_SUBSET, and bind the process from outside.

    Source: https://openmp.llvm.org/design/Runtimes.html#kmp-hw-subset
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


@check("threads-siblings", Severity.ADVICE)
def threads_siblings(facts: HostFacts) -> Iterator[Finding]:
    """Two compute threads on one core

    Symptom: all CPUs are busy, and training is no faster than with half the threads.

    Cause: SMT siblings share the units that multiply matrices, AMX above all.

    Remedy: One thread per physical core is the usual best; let the tuner measure both.

    Source: intel/intel-extension-for-pytorch#310
    """
    threads, cores = number(facts, "OMP_NUM_THREADS"), len(facts.topology.allowed_cores)
    ranks = local_ranks(facts) or 1
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

    Cause: with KMP_AFFINITY or OMP_PROC_BIND the OpenMP runtime binds the thread that
    loads it as soon as torch is imported. sched_getaffinity then shows one core, and
    every worker process that is forked later inherits it.

    Remedy: Unset it and bind the whole process from outside instead: taskset, numactl or the
    launcher's own binding.

    Source: pytorch/pytorch#91989, pytorch/pytorch#99625, pytorch/pytorch#101850,
    huggingface/accelerate#3911
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


@check("affinity-gomp", Severity.WARNING)
def affinity_gomp(facts: HostFacts) -> Iterator[Finding]:
    """GOMP_CPU_AFFINITY binds the main thread to one core

    Symptom: after ``import torch`` the process may use one CPU only.

    Cause: libgomp binds the thread that loads it to the first CPU of the list, and all
    that is started from it inherits that.

    Remedy: Unset it and bind the whole process from outside instead (taskset, numactl).

    Source: pytorch/pytorch#49971, pytorch/pytorch#149422
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


@check("places-outside", Severity.WARNING)
def places_outside(facts: HostFacts) -> Iterator[Finding]:
    """OMP_PLACES names CPUs that are not allowed

    Symptom: libgomp warns of places, and threads end up together on few CPUs.

    Cause: an explicit list was made for another machine, or for the host of a container.

    Remedy: Unset OMP_PLACES: threads then run on every allowed CPU. OMP_PLACES=cores would bind
    each to one core, the main thread and what it starts too.

    Source: https://www.openmp.org/spec-html/5.0/openmpse53.html
    """
    cpus, allowed = listed_cpus(value(facts, "OMP_PLACES")), facts.topology.allowed
    outside = set(cpus or ()) - set(allowed)
    if outside and allowed:
        yield places_outside.finding(
            f"OMP_PLACES names CPUs {cpulist.render(outside)}; "
            f"allowed are {cpulist.render(allowed)}",
            command="unset OMP_PLACES",
        )


@check("numa-not-zero", Severity.ADVICE)
def numa_not_zero(facts: HostFacts) -> Iterator[Finding]:
    """CPU 0 and its NUMA node are not allowed here

    Symptom: "numactl: failed to set … Invalid argument"; memory binding is lost.

    Cause: launchers test numactl with ``-C 0 -m 0`` and give up binding when it fails,
    as it does in a cpuset without CPU 0.

    Remedy: Bind to the nodes that are allowed; numactl -C 0 -m 0 fails in this cpuset.

    Source: pytorch/pytorch#131011
    """
    topology = facts.topology
    allowed = set(topology.allowed)
    nodes = [node for node in topology.numa_nodes if allowed & set(node.cpus or ())]
    cpuset = facts.limits.cpuset
    # A mask of taskset does not keep numactl from CPU 0; a cpuset does.
    if cpuset is None or 0 in cpuset or not nodes or len(topology.numa_nodes) < 2:
        return
    ids = ",".join(str(node.id) for node in nodes)
    here = any(item.name == "numactl" for item in facts.launchers)
    binding = f"numactl --physcpubind={cpulist.render(allowed)} --membind={ids} python train.py"
    yield numa_not_zero.finding(
        f"the cpuset holds CPUs {cpulist.render(cpuset)}; allowed are "
        f"{cpulist.render(allowed)}, on NUMA node {ids}",
        command=binding if here else None,
    )


@check("mempolicy", Severity.ADVICE)
def mempolicy(facts: HostFacts) -> Iterator[Finding]:
    """This container may not bind memory

    Symptom: "set_mempolicy: Operation not permitted" from numactl in a container.

    Cause: Docker's seccomp profile lets set_mempolicy and mbind through only with
    CAP_SYS_NICE.

    Remedy: Bind CPUs alone (memory then lies where it is first used), or add SYS_NICE.

    Source: intel/intel-extension-for-pytorch#354, vllm-project/vllm#45438
    """
    nodes = [node for node in facts.topology.numa_nodes if node.memory_bytes != 0]
    if facts.settings.container and len(nodes) > 1 and facts.sys_nice is False:
        yield mempolicy.finding(
            f"in {facts.settings.container}, without CAP_SYS_NICE, with memory on "
            f"{len(nodes)} NUMA nodes",
            command="docker run --cap-add SYS_NICE IMAGE python train.py",
        )


@check("shell-bound", Severity.ADVICE)
def shell_bound(facts: HostFacts) -> Iterator[Finding]:
    """This shell is bound to some of the CPUs

    Symptom: training uses fewer cores than the machine has, whatever is set.

    Cause: a parent process (taskset, a launcher, a scheduler) set an affinity that every
    child inherits.

    Remedy: To use the whole machine, start from a shell that is not bound.

    Source: pytorch/pytorch#99625
    """
    topology = facts.topology
    limit = set(facts.limits.cpuset or topology.online)
    narrow = topology.allowed and set(topology.allowed) < limit
    if narrow and not under_mpi(facts) and not number(facts, "LOCAL_WORLD_SIZE"):
        yield shell_bound.finding(
            f"CPUs {cpulist.render(topology.allowed)} of {cpulist.render(limit)}"
        )


_OFF = ("none", "disabled", "false", "no", "0", "off", "disable")


@check("openmpi-one-core", Severity.ADVICE)
def openmpi_one_core(facts: HostFacts) -> Iterator[Finding]:
    """Open MPI binds each of two ranks to one core

    Symptom: two ranks, both slow; every thread of a rank sits on one core.

    Cause: with one or two ranks Open MPI binds each to a core (``--bind-to core``),
    from three on to a package or NUMA node.

    Remedy: Tell mpirun how many cores each rank gets, or pass --bind-to none.

    Source: open-mpi/ompi#13009, open-mpi/ompi#12900
    """
    cores = len(usable_cores(facts))
    if under_mpi(facts) and number(facts, "OMPI_COMM_WORLD_SIZE"):
        allowed, online = len(facts.topology.allowed_cores), facts.topology.physical_cores
        local = number(facts, "OMPI_COMM_WORLD_LOCAL_SIZE") or 1
        if allowed == 1 and online // local > 1:
            yield openmpi_one_core.finding(
                f"this rank may use CPUs {cpulist.render(facts.topology.allowed)}: one core "
                f"of {online}, with {local} ranks on the machine",
                severity=Severity.WARNING,
                command=f"mpirun --map-by ppr:{local}:node:pe={online // local} python train.py",
            )
        return
    unbound = any(
        (value(facts, name) or "").startswith("none")
        for name in ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")
    )
    found = [item for item in facts.launchers if (item.dialect or "").startswith("openmpi")]
    if found and not unbound and cores >= 4 and advised(facts).ranks <= 2:
        yield openmpi_one_core.finding(
            f"{found[0].path} is Open MPI; mpirun -n 2 gives each rank 1 of {cores} cores",
            command=advised_launch(facts) if advised(facts).ranks == 2 else None,
        )


@check("bound-twice", Severity.WARNING)
def bound_twice(facts: HostFacts) -> Iterator[Finding]:
    """Two programs bind the same process to CPUs

    Symptom: ranks share CPUs although each binder alone would have kept them apart.

    Cause: numactl or taskset, Intel MPI's I_MPI_PIN and the OpenMP runtime each lay
    out CPUs on their own; the second one works inside what the first has left.

    Remedy: Keep one of them: the launcher's binding, or the one around it.

    Source: deepspeedai/DeepSpeed#4531
    """
    binders = []
    topology = facts.topology
    limit = set(facts.limits.cpuset or topology.online)
    if topology.allowed and set(topology.allowed) < limit:
        binders.append(f"the process is bound to CPUs {cpulist.render(topology.allowed)}")
    domain, pin = value(facts, "I_MPI_PIN_DOMAIN"), value(facts, "I_MPI_PIN")
    if (domain or pin) and (pin or "").lower() not in _OFF:
        binders.append(f"I_MPI_PIN_DOMAIN={domain}" if domain else f"I_MPI_PIN={pin}")
    kmp = value(facts, "KMP_AFFINITY")
    disabled = {"none", "disabled"} & set((kmp or "").lower().split(","))
    if kmp and not disabled and loads_intel_openmp(facts):
        binders.append(f"KMP_AFFINITY={kmp}")
    if value(facts, "GOMP_CPU_AFFINITY"):
        binders.append(f"GOMP_CPU_AFFINITY={value(facts, 'GOMP_CPU_AFFINITY')}")
    if omp_binds(facts) and value(facts, "OMP_PLACES"):
        binders.append(f"OMP_PLACES={value(facts, 'OMP_PLACES')}")
    if len(binders) > 1:
        yield bound_twice.finding("; ".join(binders))


@check("pin-mask", Severity.WARNING)
def pin_mask(facts: HostFacts) -> Iterator[Finding]:
    """Intel MPI reads this pin mask in another way than it is meant

    Symptom: ranks run on all CPUs, or on the wrong ones, with exit code 0.

    Cause: Intel MPI prints "IPL2 Error" for a mask without 0x and goes on with its
    default; a mask with CPUs that do not exist is accepted in silence.

    Remedy: Write masks with 0x, within the CPUs there are; then look at the affinity of a rank.

    Source: geopm/geopm#614
    """
    text = value(facts, "I_MPI_PIN_DOMAIN") or ""
    if not text.startswith("["):
        return
    bare = [m for m in text.strip("[]").split(",") if not m.strip().lower().startswith("0x")]
    if bare:
        yield pin_mask.finding(f"I_MPI_PIN_DOMAIN={text}: no 0x before {', '.join(bare)}")
        return
    named = {cpu for cpus in pin_domains(facts) or () for cpu in cpus}
    outside = named - set(facts.topology.online)
    if outside and facts.topology.online:
        yield pin_mask.finding(
            f"I_MPI_PIN_DOMAIN={text} names CPUs {cpulist.render(outside)}; "
            f"online are {cpulist.render(facts.topology.online)}"
        )


@check("pin-off", Severity.ADVICE)
def pin_off(facts: HostFacts) -> Iterator[Finding]:
    """Intel MPI is told to bind nothing

    Symptom: ranks wander between sockets, and their memory stays behind.

    Cause: I_MPI_PIN=0 switches binding off for all ranks. That is right only where
    something else binds them, as DeepSpeed's launcher does.

    Remedy: Unset I_MPI_PIN, or bind each rank yourself (numactl, taskset).

    Source: deepspeedai/DeepSpeed#4531
    """
    pin = value(facts, "I_MPI_PIN")
    intel = any(item.dialect == "intelmpi" for item in facts.launchers)
    whole = facts.topology.allowed == facts.topology.online
    if pin and pin.lower() in _OFF and intel and whole and len(facts.topology.numa_nodes) > 1:
        yield pin_off.finding(
            f"I_MPI_PIN={pin}, {len(facts.topology.numa_nodes)} NUMA nodes",
            command="unset I_MPI_PIN",
        )


CHECKS = checks_of(__name__)
