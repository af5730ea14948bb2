"""Reads sockets, caches, cores, SMT siblings, NUMA nodes and their memory from sysfs.

Sockets and cores are the distinct sibling sets of the online CPUs, as in lscpu (util-linux,
sys-utils/lscpu-topology.c). The ids cannot be used: they repeat between sockets, are -1 on Power,
and are wrong in virtual machines. The scheduler uses the sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields as fields_of

from cputune.host.facts import CacheDomain, Core, Memory, NumaNode, Topology
from cputune.host.probing._look import CPU_DIR, NODE_DIR, Look, cpus_of, fields, kibibytes
from cputune.host.probing.cpu import CpuInfo

# File names since Linux 5.3, and before.
CORE_SETS = ("core_cpus_list", "thread_siblings_list")
SOCKET_SETS = ("package_cpus_list", "core_siblings_list")

# Sets of CPUs that share something, in the order of their first CPU.
Parts = tuple[tuple[int, ...], ...]


def read_topology(look: Look, info: CpuInfo, cpuset: tuple[int, ...] | None) -> Topology:
    """Read the topology. ``cpuset`` are the CPUs that the cgroup allows, if known."""
    cpu_dirs = look.numbered(CPU_DIR, "cpu")
    online = _online(look, info, cpu_dirs)
    present = look.cpu_list(f"{CPU_DIR}/present") or frozenset(cpu_dirs) or None
    if not online:
        for fact in ("online", "logical_cpus", "allowed"):
            look.not_known(f"topology.{fact}", look.why(f"{CPU_DIR}/online"))
    nodes = read_numa_nodes(look, frozenset(online))
    cores = _parts(look, online, CORE_SETS, info.ids("physical id", "core id"))
    sockets = _parts(look, online, SOCKET_SETS, info.ids("physical id"))
    facts_of = [
        ("cores", cores, ("physical_cores", "threads_per_core", "cores_per_socket")),
        ("sockets", sockets, ("sockets", "cores_per_socket")),
    ]
    for what, parts, facts in facts_of:
        if parts is not None:
            continue
        for fact in facts:
            look.not_known(
                f"topology.{fact}",
                f"neither {CPU_DIR}/cpu*/topology nor /proc/cpuinfo lists the {what} of every "
                "online CPU",
            )
    look.known("topology.offline", present, f"{CPU_DIR}/present")
    l3 = _caches(look, online)
    node_of = _by_cpu((node.id, node.cpus or ()) for node in nodes)
    cache_of = _by_cpu((number, cache.cpus) for number, cache in enumerate(l3 or ()))
    socket_of = _by_cpu(enumerate(sockets or ()))
    core_sets = cores
    if core_sets is None:
        core_sets = tuple((cpu,) for cpu in online)
    built = []
    for cpus in core_sets:
        core = Core(
            cpus=cpus,
            socket=socket_of.get(cpus[0], 0),
            numa_node=node_of.get(cpus[0]),
            l3=cache_of.get(cpus[0]),
            max_khz=look.number(f"{CPU_DIR}/cpu{cpus[0]}/cpufreq/cpuinfo_max_freq"),
            capacity=_capacity(look, cpus[0]),
        )
        built.append(core)
    present_cpus = None
    if present is not None:
        present_cpus = tuple(sorted(present))
    return Topology(
        cores=tuple(built),
        online=online,
        present=present_cpus,
        allowed=_allowed(look, online, cpuset),
        numa_nodes=nodes,
        l3=l3,
        hybrid=_is_hybrid(look, tuple(built)),
        cores_known=cores is not None,
        sockets_known=sockets is not None,
    )


def _by_cpu(parts: Iterable[tuple[int, Iterable[int]]]) -> dict[int, int]:
    """The number of the node, cache or socket that each CPU is part of."""
    numbers = dict[int, int]()
    for number, cpus in parts:
        for cpu in cpus:
            numbers[cpu] = number
    return numbers


def _online(look: Look, info: CpuInfo, cpu_dirs: tuple[int, ...]) -> tuple[int, ...]:
    """Online CPUs: those of the kernel's list, or else those that no ``cpuN/online`` marks as
    off.
    """
    listed = look.cpu_list(f"{CPU_DIR}/online")
    if listed:
        return tuple(sorted(listed))
    not_off = tuple(cpu for cpu in cpu_dirs if look.number(f"{CPU_DIR}/cpu{cpu}/online") != 0)
    if not_off:
        return not_off
    return tuple(info.processors) or tuple(look.host.affinity() or ())


def _read_each(look: Look, online: tuple[int, ...], *names: str) -> Parts:
    """Sets of online CPUs that share something, from the first of these files that a CPU has.

    Only the files of one CPU of each set are read.
    """
    remaining, sets = set(online), []
    for cpu in online:
        if cpu not in remaining:
            continue
        for name in names:
            cpus = remaining.intersection(look.cpu_list(f"{CPU_DIR}/cpu{cpu}/{name}") or ())
            if cpu in cpus:
                sets.append(tuple(sorted(cpus)))
                remaining -= cpus
                break
    return tuple(sets)


def _parts(
    look: Look, online: tuple[int, ...], names: tuple[str, ...], ids: Mapping[int, Hashable]
) -> Parts | None:
    """Group the online CPUs by sets of siblings, or else by /proc/cpuinfo.

    None if neither has every online CPU.
    """
    texts = _read_each(look, online, *(f"topology/{name}" for name in names))
    if online and sum(map(len, texts)) == len(online):
        return texts
    if online and ids.keys() >= set(online):
        members: dict[Hashable, list[int]] = {}
        for cpu in online:
            members.setdefault(ids[cpu], []).append(cpu)
        return tuple(map(tuple, members.values()))
    if len(online) == 1:
        return (online,)
    return None


def _caches(look: Look, online: tuple[int, ...]) -> tuple[CacheDomain, ...] | None:
    at = "cache/index3"
    caches = []
    for cpus in _read_each(look, online, f"{at}/shared_cpu_list"):
        if look.number(f"{CPU_DIR}/cpu{cpus[0]}/{at}/level") == 3:
            size = look.text(f"{CPU_DIR}/cpu{cpus[0]}/{at}/size") or ""
            caches.append(CacheDomain(cpus=cpus, size_bytes=kibibytes(size.removesuffix("K"))))
    for place, cache in enumerate(caches):
        if cache.size_bytes is None:
            look.not_known(f"topology.l3.{place}.size_bytes", "the cache has no size in sysfs")
    if not caches and not any(look.exists(f"{CPU_DIR}/cpu{cpu}/cache") for cpu in online):
        look.not_known("topology.l3", f"{CPU_DIR}/cpu*/cache does not exist")
        return None
    return tuple(caches)


def _allowed(
    look: Look, online: tuple[int, ...], cpuset: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Online CPUs on which the process may run, by its affinity mask and its cpuset."""
    affinity = look.host.affinity()
    if affinity is None:
        status = fields(look.text("/proc/self/status"))
        listed = cpus_of(status.get("Cpus_allowed_list"))
        if listed is not None:
            affinity = tuple(listed)
    allowed = set(online)
    for name, limit in (("affinity", affinity), ("cpuset", cpuset)):
        if limit is None:
            continue
        if allowed & set(limit):
            allowed &= set(limit)
        else:
            look.not_known("topology.allowed", f"the {name} has no online CPU, so it is ignored")
    return tuple(sorted(allowed))


def _is_hybrid(look: Look, cores: tuple[Core, ...]) -> bool:
    """P and E cores: Linux shows a PMU for each kind, or capacities that differ.

    Favoured cores of one kind differ by less than a tenth.
    """
    if look.exists("/sys/devices/cpu_core") and look.exists("/sys/devices/cpu_atom"):
        return True
    capacities = []
    for core in cores:
        if core.capacity:
            capacities.append(core.capacity)
    return len(capacities) == len(cores) > 1 and max(capacities) > 1.1 * min(capacities)


def _capacity(look: Look, cpu: int) -> int | None:
    capacity = look.number(f"{CPU_DIR}/cpu{cpu}/cpu_capacity")
    if capacity is None:
        return look.number(f"{CPU_DIR}/cpu{cpu}/acpi_cppc/nominal_perf")
    return capacity


def read_numa_nodes(look: Look, online: frozenset[int]) -> tuple[NumaNode, ...]:
    """All nodes that have a directory, including those without CPUs or without memory."""
    ids = look.numbered(NODE_DIR, "node")
    listed = look.cpu_list(f"{NODE_DIR}/online")
    if listed:
        ids = tuple(node for node in ids if node in listed)
    nodes = []
    for node in ids:
        directory = f"{NODE_DIR}/node{node}"
        path = f"{directory}/cpulist"
        cpus = look.known(f"topology.numa_nodes.{node}.cpus", look.cpu_list(path), path)
        memory = {}
        for key, value in fields(look.text(f"{directory}/meminfo")).items():
            if key:
                memory[key.split()[-1]] = value
        total, free = kibibytes(memory.get("MemTotal")), kibibytes(memory.get("MemFree"))
        for fact, bytes_ in (("memory_bytes", total), ("free_bytes", free)):
            look.known(f"topology.numa_nodes.{node}.{fact}", bytes_, f"{directory}/meminfo")
        online_cpus = None
        if cpus is not None:
            online_cpus = tuple(sorted(cpus & online))
        nodes.append(NumaNode(id=node, cpus=online_cpus, memory_bytes=total, free_bytes=free))
    if not nodes:
        look.not_known("topology.numa_nodes", f"no node is shown below {NODE_DIR}")
    return tuple(nodes)


MEMINFO = "/proc/meminfo"


def read_memory(look: Look) -> Memory:
    """Read /proc/meminfo. ``MemAvailable`` exists since Linux 3.14."""
    sizes = fields(look.text(MEMINFO))
    memory = Memory(
        total_bytes=kibibytes(sizes.get("MemTotal")),
        available_bytes=kibibytes(sizes.get("MemAvailable")),
        swap_total_bytes=kibibytes(sizes.get("SwapTotal")),
        swap_free_bytes=kibibytes(sizes.get("SwapFree")),
    )
    for fact in fields_of(Memory):
        look.known(f"memory.{fact.name}", getattr(memory, fact.name), MEMINFO)
    return memory
