"""Who binds ranks: Open MPI, Intel MPI, and two programs that bind the same process."""

from __future__ import annotations

from collections.abc import Iterator

from cputune import cpulist
from cputune.cores import usable_cores
from cputune.doctor.bound import omp_binds, pin_domains
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.doctor.variables import loads_intel_openmp, number, under_mpi, value
from cputune.facts import HostFacts

_OFF = ("none", "disabled", "false", "no", "0", "off", "disable")


@check(
    "openmpi-one-core",
    Severity.ADVICE,
    title="Open MPI binds each of two ranks to one core",
    remedy="Tell mpirun how many cores each rank gets, or pass --bind-to none.",
    source="open-mpi/ompi#13009, open-mpi/ompi#12900",
)
def openmpi_one_core(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: two ranks, both slow; every thread of a rank sits on one core.

    Cause: with one or two ranks Open MPI binds each to a core (``--bind-to core``),
    from three on to a package or NUMA node.
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
    if found and not unbound and cores >= 4:
        yield openmpi_one_core.finding(
            f"{found[0].path} is Open MPI; mpirun -n 2 gives each rank 1 of {cores} cores",
            command=f"mpirun -n 2 --map-by ppr:2:node:pe={cores // 2} python train.py",
        )


@check(
    "bound-twice",
    Severity.WARNING,
    title="Two programs bind the same process to CPUs",
    remedy="Keep one of them: the launcher's binding, or the one around it.",
    source="deepspeedai/DeepSpeed#4531",
)
def bound_twice(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ranks share CPUs although each binder alone would have kept them apart.

    Cause: numactl or taskset, Intel MPI's I_MPI_PIN and the OpenMP runtime each lay
    out CPUs on their own; the second one works inside what the first has left.
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


@check(
    "pin-mask",
    Severity.WARNING,
    title="Intel MPI reads this pin mask in another way than it is meant",
    remedy="Write masks with 0x, within the CPUs there are; then look at the affinity of a rank.",
    source="geopm/geopm#614",
)
def pin_mask(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ranks run on all CPUs, or on the wrong ones, with exit code 0.

    Cause: Intel MPI prints "IPL2 Error" for a mask without 0x and goes on with its
    default; a mask with CPUs that do not exist is accepted in silence.
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


@check(
    "pin-off",
    Severity.ADVICE,
    title="Intel MPI is told to bind nothing",
    remedy="Unset I_MPI_PIN, or bind each rank yourself (numactl, taskset).",
    source="deepspeedai/DeepSpeed#4531",
)
def pin_off(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ranks wander between sockets, and their memory stays behind.

    Cause: I_MPI_PIN=0 switches binding off for all ranks. That is right only where
    something else binds them, as DeepSpeed's launcher does.
    """
    pin = value(facts, "I_MPI_PIN")
    intel = any(item.dialect == "intelmpi" for item in facts.launchers)
    whole = facts.topology.allowed == facts.topology.online
    if pin and pin.lower() in _OFF and intel and whole and len(facts.topology.numa_nodes) > 1:
        yield pin_off.finding(
            f"I_MPI_PIN={pin}, {len(facts.topology.numa_nodes)} NUMA nodes",
            command="unset I_MPI_PIN",
        )


CHECKS: tuple[Check, ...] = (
    openmpi_one_core,
    bound_twice,
    pin_mask,
    pin_off,
)
