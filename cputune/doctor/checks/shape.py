"""The shape of the machine: SMT, sockets, NUMA nodes, hybrid cores, offline CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from cputune import cpulist
from cputune.cores import usable_cores
from cputune.doctor.finding import Check, Finding, Severity, check
from cputune.facts import HostFacts

GIB = 1 << 30
LITTLE_FREE_BYTES = 2 * GIB
MANY_SOCKETS = 4


@check(
    "siblings-together",
    Severity.ADVICE,
    title="SMT siblings are numbered side by side",
    remedy="Bind by cores: take one CPU of each sibling pair, or whole pairs.",
    source="intel/intel-extension-for-pytorch#310",
)
def siblings_together(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: half the speed on a cloud machine, with scripts that bind CPUs 0 to n-1.

    Cause: servers number the first threads of all cores first; clouds number both
    threads of a core one after the other, so that "0-15" is eight cores.
    """
    pairs = [core for core in facts.topology.allowed_cores if len(core.cpus) > 1]
    side_by_side = [core for core in pairs if core.cpus[1] == core.cpus[0] + 1]
    if len(pairs) > 1 and len(side_by_side) == len(pairs):
        cores = usable_cores(facts)
        first = cpulist.render(core.cpus[0] for core in cores)
        yield siblings_together.finding(
            f"CPUs {cpulist.render(pairs[0].cpus)} are one core; "
            f"{cpulist.render(cpu for core in pairs for cpu in core.cpus)} are {len(pairs)} cores",
            command=f"taskset -c {first} python train.py",
        )


@check(
    "hybrid-cores",
    Severity.ADVICE,
    title="Fast and slow cores in one machine",
    remedy="Keep a rank on the fast cores alone; the tuner measures whether all are better.",
    source="https://docs.kernel.org/arch/x86/topology.html",
)
def hybrid_cores(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: more threads make each step slower.

    Cause: torch cuts work into equal pieces. Fast cores wait at the barrier for the
    slow ones.
    """
    cores = facts.topology.allowed_cores
    if not facts.topology.hybrid or not cores:
        return
    speeds = [core.speed for core in cores]
    fast = [core for core, speed in zip(cores, speeds, strict=True) if speed > 0.9 * max(speeds)]
    if len(fast) == len(cores):
        yield hybrid_cores.finding(f"{len(cores)} cores of two kinds")
        return
    yield hybrid_cores.finding(
        f"{len(fast)} of {len(cores)} cores are the fast ones",
        command=(
            f"OMP_NUM_THREADS={len(fast)} taskset -c "
            f"{cpulist.render(core.cpus[0] for core in fast)} python train.py"
        ),
    )


@check(
    "cpus-offline",
    Severity.ADVICE,
    title="CPUs are switched off",
    remedy="Switch them on, unless that was meant.",
    source="https://docs.kernel.org/core-api/cpu_hotplug.html",
)
def cpus_offline(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: fewer cores than the data sheet says.

    Cause: CPUs were set offline by hand, by a power tool, or by SMT control (then all
    that is missing are second threads, and nothing is lost).
    """
    topology = facts.topology
    offline = sorted(set(topology.present or ()) - set(topology.online))
    if not offline or facts.settings.smt in ("off", "forceoff"):
        return
    yield cpus_offline.finding(
        f"present {cpulist.render(topology.present or ())}, "
        f"online {cpulist.render(topology.online)}",
        command="\n".join(
            f"echo 1 | sudo tee /sys/devices/system/cpu/cpu{cpu}/online" for cpu in offline[:8]
        ),
    )


@check(
    "numa-memoryless",
    Severity.WARNING,
    title="A NUMA node has CPUs but no memory",
    remedy="Fill the memory slots of that socket, or keep ranks off its cores.",
    source="https://docs.kernel.org/mm/numa.html",
)
def numa_memoryless(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ranks on one socket are slower, or numactl --membind fails there.

    Cause: all memory of that node's cores is remote.
    """
    allowed = set(facts.topology.allowed)
    bare = [
        n for n in facts.topology.numa_nodes if n.memory_bytes == 0 and allowed & set(n.cpus or ())
    ]
    if bare and any(node.memory_bytes for node in facts.topology.numa_nodes):
        yield numa_memoryless.finding(
            "; ".join(
                f"node {node.id}: CPUs {cpulist.render(node.cpus or ())}, 0 bytes" for node in bare
            )
        )


@check(
    "numa-cpuless",
    Severity.ADVICE,
    title="A NUMA node has memory but no CPUs",
    remedy="Count ranks by the nodes with CPUs; use the other memory (HBM, CXL) on purpose only.",
    source="https://docs.kernel.org/mm/numa.html",
)
def numa_cpuless(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: one rank per NUMA node is one too many, or numactl refuses a node.

    Cause: HBM in flat mode, CXL and persistent memory show as nodes without CPUs.
    """
    nodes = ((n.id, n.memory_bytes) for n in facts.topology.numa_nodes if n.cpus == ())
    bare = [f"node {id}: {memory / GIB:.0f} GiB, no CPUs" for id, memory in nodes if memory]
    if bare:
        yield numa_cpuless.finding("; ".join(bare))


@check(
    "numa-full",
    Severity.ADVICE,
    title="A NUMA node has little free memory",
    remedy="Free it before binding memory to that node, or bind CPUs alone.",
    source="https://docs.kernel.org/mm/numa.html",
)
def numa_full(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: a rank that is bound to a node is killed while the machine has memory.

    Cause: numactl --membind takes from that node alone. File cache counts as used
    here; the kernel gives it back on demand, but slowly.
    """
    nodes = [
        (n.id, n.free_bytes, n.memory_bytes)
        for n in facts.topology.numa_nodes
        if n.free_bytes is not None and n.memory_bytes
    ]
    tight = [
        f"node {id}: {free / GIB:.1f} of {memory / GIB:.0f} GiB free"
        for id, free, memory in nodes
        if free < LITTLE_FREE_BYTES
    ]
    if tight and len(tight) < len(nodes):
        yield numa_full.finding("; ".join(tight))


@check(
    "numa-in-socket",
    Severity.ADVICE,
    title="A socket is divided into several NUMA nodes",
    remedy="Try one rank per NUMA node instead of one per socket.",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
)
def numa_in_socket(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: one rank per socket is slower than expected.

    Cause: with sub-NUMA clustering (Intel) or NPS2 and NPS4 (AMD) half or more of a
    rank's memory is in another node of the same socket.
    """
    cores = usable_cores(facts)
    nodes = {core.numa_node for core in cores if core.numa_node is not None}
    sockets = {core.socket for core in cores}
    if facts.topology.sockets_known and len(nodes) > len(sockets):
        yield numa_in_socket.finding(
            f"{len(sockets)} socket{'s' if len(sockets) > 1 else ''}, {len(nodes)} NUMA nodes "
            "with usable cores",
            command=f"OMP_NUM_THREADS={len(cores) // len(nodes)} "
            f"mpirun -n {len(nodes)} python train.py",
        )


@check(
    "sockets-of-one-core",
    Severity.ADVICE,
    title="Sockets of one core",
    remedy="Ignore sockets here: one rank per NUMA node, with a thread per core.",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
)
def sockets_of_one_core(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: one rank per socket, as the guides say, starts a rank on every CPU.

    Cause: the virtual machine was defined with one core per socket, which says nothing
    about the hardware below.
    """
    topology = facts.topology
    sockets = topology.sockets
    if topology.sockets_known and sockets >= MANY_SOCKETS and sockets == topology.physical_cores:
        yield sockets_of_one_core.finding(f"{sockets} sockets with 1 core each")


@check(
    "sockets-unequal",
    Severity.ADVICE,
    title="Sockets with different numbers of usable cores",
    remedy="Give every rank as many threads as the smallest socket has cores, or use one rank.",
    source="https://huggingface.co/docs/transformers/perf_train_cpu_many",
)
def sockets_unequal(facts: HostFacts) -> Iterator[Finding]:
    """Symptom: ranks wait for the one on the smaller socket.

    Cause: CPUs are offline, or the cpuset cuts the sockets unevenly.
    """
    counts: dict[int, int] = {}
    for core in facts.topology.allowed_cores:
        counts[core.socket] = counts.get(core.socket, 0) + 1
    if facts.topology.sockets_known and len(set(counts.values())) > 1:
        yield sockets_unequal.finding(
            "allowed cores: " + ", ".join(f"socket {s}: {n}" for s, n in sorted(counts.items()))
        )


CHECKS: tuple[Check, ...] = (
    numa_memoryless,
    siblings_together,
    hybrid_cores,
    sockets_of_one_core,
    sockets_unequal,
    numa_in_socket,
    numa_cpuless,
    numa_full,
    cpus_offline,
)
