"""The facts of a machine: as labelled lines for people, and as the ``host`` part of a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from cputune import cpulist
from cputune.facts import (
    HostFacts,
    Launcher,
    Link,
    LinuxDistribution,
    Network,
    NumaNode,
    Package,
    Settings,
    Topology,
)
from cputune.probing.installed import MPI_PROGRAMS

_Item = TypeVar("_Item", str, int)

_PACKAGES = (
    "torch",
    "intel_extension_for_pytorch",
    "oneccl_bind_pt",
    "transformers",
    "accelerate",
    "numpy",
    "optuna",
)

_VECTOR_UNITS = (
    # the best first
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
    ("avx", "AVX"),
    ("sse4_2", "SSE"),
    ("sve", "SVE"),
    ("asimd", "NEON"),
    ("neon", "NEON"),
    ("vfpv4", "VFP, one number at a time"),
    ("vx", "vector facility of z/Architecture"),
)
_BF16_UNITS = (
    ("amx_bf16", "AMX"),
    ("avx512_bf16", "avx512_bf16"),
    ("bf16", "Arm bf16 instructions"),
)


def precision_units(facts: HostFacts) -> dict[str, str]:
    """What a matrix product of each precision runs on; empty where the ISA is not known.

    oneDNN's own order: AMX, then AVX-512 with the type's instructions, then conversion
    to fp32 (https://uxlfoundation.github.io/oneDNN/dev_guide_data_types.html).
    """
    cpu = facts.cpu
    vector = next((unit for flag, unit in _VECTOR_UNITS if cpu.has(flag)), None)
    if vector is None:
        return {}
    units = {"fp32": vector}
    bf16 = next((unit for flag, unit in _BF16_UNITS if cpu.has(flag)), None)
    if bf16 or not facts.why_unknown("cpu.isa"):
        units["bf16"] = bf16 or "plain (slower than fp32)"
    if cpu.has("amx_fp16"):
        units["fp16"] = "AMX (inference; the Trainer does not train in fp16 on a CPU)"
    return units


def machine_lines(facts: HostFacts) -> list[tuple[str, str]]:
    """(label, text) for CPU, precision, cores, memory, limits, settings, software, load."""
    rows = [
        ("CPU", _cpu(facts)),
        ("precision", ", ".join(f"{k}: {v}" for k, v in precision_units(facts).items())),
        ("cores", _cores(facts)),
        ("memory", _memory(facts)),
        ("limits", _limits(facts)),
        ("kernel", _settings(facts)),
        ("packages", _packages(facts)),
        ("launchers", _launchers(facts)),
        ("libraries", ", ".join(f"{lib.name} {lib.path}" for lib in facts.libraries)),
        ("load", _load(facts)),
    ]
    return [(label, text) for label, text in rows if text]


def _cpu(facts: HostFacts) -> str:
    cpu = facts.cpu
    parts = [cpu.model_name or cpu.vendor or "a processor that does not name itself"]
    if cpu.codename:
        parts.append(cpu.codename)
    if cpu.architecture:
        parts.append(cpu.architecture)
    if cpu.hypervisor:
        parts.append("virtual machine")
    if facts.topology.hybrid:
        parts.append("hybrid: fast and slow cores")
    return ", ".join(parts)


def _cores(facts: HostFacts) -> str:
    topology = facts.topology
    if not topology.cores:
        return ""
    per_socket = sorted(set(topology.cores_per_socket))
    if len(per_socket) == 1:
        sockets = f"{topology.sockets} socket{'s' if topology.sockets > 1 else ''}"
        shape = f"{sockets} × {per_socket[0]} core{'s' if per_socket[0] > 1 else ''}"
    else:
        shape = f"{topology.sockets} sockets of {per_socket[0]} to {per_socket[-1]} cores"
    threads = topology.threads_per_core
    if threads > 1:
        with_all = sum(len(core.cpus) == threads for core in topology.cores)
        whole = with_all == len(topology.cores)
        shape += (
            f" × {threads} threads" if whole else f" ({with_all} of them with {threads} threads)"
        )
    parts = [shape, f"{len(topology.online)} CPUs online ({cpulist.render(topology.online)})"]
    if topology.allowed != topology.online:
        parts.append(f"allowed {cpulist.render(topology.allowed) or 'none'}")
    nodes = len(topology.numa_nodes)
    if nodes:
        parts.append(f"{nodes} NUMA node{'s' if nodes > 1 else ''}")
    return ", ".join(parts)


def _memory(facts: HostFacts) -> str:
    memory = facts.memory
    parts = []
    if memory.total_bytes is not None:
        parts.append(gib(memory.total_bytes))
    if memory.available_bytes is not None:
        parts.append(f"{gib(memory.available_bytes)} available")
    if memory.swap_total_bytes and memory.swap_free_bytes is not None:
        used = memory.swap_total_bytes - memory.swap_free_bytes
        parts.append(f"swap {gib(used)} of {gib(memory.swap_total_bytes)} used")
    return ", ".join(parts)


def _limits(facts: HostFacts) -> str:
    limits = facts.limits
    parts = []
    if limits.cpu_quota is not None:
        parts.append(f"CPU quota {limits.cpu_quota:g}")
    if limits.memory_bytes is not None:
        parts.append(f"memory {gib(limits.memory_bytes)}")
    if limits.shm_bytes is not None:
        parts.append(f"/dev/shm {gib(limits.shm_bytes)}")
    if limits.open_files is not None:
        parts.append(f"{limits.open_files} open files")
    if limits.cgroup_version is not None:
        parts.append(f"cgroup v{limits.cgroup_version}")
    if facts.settings.container:
        parts.append(f"in {facts.settings.container}")
    return ", ".join(parts)


def _settings(facts: HostFacts) -> str:
    settings = facts.settings
    yes_no = {True: "on", False: "off", None: None}
    known = (
        ("", settings.distribution and _named(settings.distribution)),
        ("", settings.kernel),
        ("governor ", settings.governor),
        ("turbo ", yes_no[settings.turbo]),
        ("transparent huge pages ", settings.transparent_huge_pages),
        ("NUMA balancing ", yes_no[settings.numa_balancing]),
        ("SMT ", "none" if settings.smt == "notsupported" else settings.smt),
    )
    return ", ".join(f"{label}{text}" for label, text in known if text)


def _named(system: LinuxDistribution) -> str:
    return " ".join(filter(None, (system.id, system.version)))


def _packages(facts: HostFacts) -> str:
    found = [facts.package(name) for name in _PACKAGES]
    parts = [f"{p.name} {p.version or '(no version)'}" for p in found if p is not None]
    if facts.python:
        parts.insert(0, f"Python {facts.python}")
    if not any(p is not None and p.name == "torch" for p in found) and facts.python:
        parts.append("no torch")
    return ", ".join(parts)


def _launchers(facts: HostFacts) -> str:
    return ", ".join(
        " ".join(filter(None, (item.name, item.dialect, item.version))) + f" ({item.path})"
        for item in facts.launchers
    )


def _load(facts: HostFacts) -> str:
    load = facts.load
    parts = []
    if load.average_1min is not None:
        parts.append(f"{load.average_1min:g} over the last minute")
    if load.cpu_pressure_percent is not None:
        parts.append(f"CPU pressure {load.cpu_pressure_percent:g} %")
    if load.memory_pressure_percent is not None:
        parts.append(f"memory pressure {load.memory_pressure_percent:g} %")
    if load.steal_share is not None:
        parts.append(f"steal {100 * load.steal_share:.1f} %")
    return ", ".join(parts)


def gib(size_bytes: int) -> str:
    """Bytes for people, in MiB or GiB."""
    if size_bytes < 1 << 30:
        return f"{size_bytes / (1 << 20):.0f} MiB"
    return f"{size_bytes / (1 << 30):.1f} GiB"


def host_document(facts: HostFacts) -> dict[str, Any]:
    """Plain JSON values. What is null is not known, and ``unknown`` says why, or is a limit
    that does not exist, and stands in ``limits.unlimited``.
    """
    limits = asdict(facts.limits)
    limits["cpuset"] = _list(facts.limits.cpuset)
    limits["unlimited"] = list(facts.limits.unlimited)
    return {
        "cpu": {**asdict(facts.cpu), "isa": list(facts.cpu.isa)},
        "topology": _topology(facts.topology),
        "limits": limits,
        "memory": asdict(facts.memory),
        "settings": _settings_document(facts.settings),
        "load": {**asdict(facts.load), "busy": [asdict(process) for process in facts.load.busy]},
        "python": facts.python,
        "packages": [_package(package) for package in facts.packages],
        "libraries": [asdict(library) for library in facts.libraries],
        "launchers": [_launcher(launcher) for launcher in facts.launchers],
        "cxx": facts.cxx,
        "environment": dict(facts.environment),
        "preload_missing": list(facts.preload_missing),
        "accelerators": _items(facts.accelerators),
        "sys_nice": facts.sys_nice,
        "sys_resource": facts.sys_resource,
        "network": _network(facts.network),
        "bound_processes": [
            {"pid": process.pid, "name": process.name, "cpus": cpulist.render(process.cpus)}
            for process in facts.bound_processes
        ],
        "surroundings": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(facts.surroundings).items()
        },
        "unknown": [asdict(unknown) for unknown in facts.unknown],
    }


def _network(network: Network) -> dict[str, Any]:
    """Of a link nothing that is not known; the machine's name stays with us."""
    links = network.links
    return {
        "interfaces": _items(network.interfaces),
        "hostname_addresses": _items(network.hostname_addresses),
        "links": None if links is None else [_link(link) for link in links],
        "default_link": network.default_link,
    }


def _link(link: Link) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": link.name, "addresses": list(link.addresses)}
    if link.up is not None:
        shown["up"] = link.up
    if link.mbits_per_second is not None:
        shown["mbits_per_second"] = link.mbits_per_second
    return shown


def _package(package: Package) -> dict[str, Any]:
    """What there is, without what it requires (hundreds of lines for some)."""
    shown: dict[str, Any] = {
        "name": package.name,
        "version": package.version,
        "location": package.location,
    }
    if package.installer:
        shown["installer"] = package.installer
    if package.build:
        shown["build"] = package.build
    return {**shown, "others": list(package.others)} if package.others else shown


def _settings_document(settings: Settings) -> dict[str, Any]:
    groups = [
        {
            "cpus": cpulist.render(group.cpus),
            "governor": group.governor,
            **({"driver": group.driver} if group.driver else {}),
            **({"energy_preference": group.energy_preference} if group.energy_preference else {}),
        }
        for group in settings.frequencies
    ]
    return {**asdict(settings), "frequencies": groups}


def _launcher(launcher: Launcher) -> dict[str, Any]:
    """The dialect and version of MPI launchers; of others nobody asks for them."""
    shown: dict[str, Any] = {"name": launcher.name, "path": launcher.path}
    if launcher.name in MPI_PROGRAMS:
        shown |= {"dialect": launcher.dialect, "version": launcher.version}
    return shown


def _topology(topology: Topology) -> dict[str, Any]:
    cores, sockets = topology.cores_known, topology.sockets_known
    online = set(topology.online)
    present = topology.present
    return {
        "sockets": topology.sockets if sockets else None,
        "physical_cores": topology.physical_cores if cores else None,
        "threads_per_core": topology.threads_per_core if cores else None,
        "logical_cpus": len(topology.online) or None,
        "online": _list(topology.online or None),
        "offline": _list(None if present is None else tuple(set(present) - online)),
        "allowed": _list(topology.allowed or None),
        "cores_per_socket": list(topology.cores_per_socket) if cores and sockets else None,
        "numa_nodes": [_numa_node(node) for node in topology.numa_nodes],
        "l3": None
        if topology.l3 is None
        else [{"cpus": _list(c.cpus), "size_bytes": c.size_bytes} for c in topology.l3],
        "dies": _lists(topology.dies),
        "clusters": _lists(topology.clusters),
        "hybrid": topology.hybrid,
    }


def _numa_node(node: NumaNode) -> dict[str, Any]:
    """Of what only some kernels and firmwares tell nothing that is not known."""
    more = {
        "distances": _items(node.distances),
        "tier": node.tier,
        "read_mb_per_second": node.read_mb_per_second,
        "read_latency_ns": node.read_latency_ns,
        "nearest": list(node.nearest) or None,
    }
    return {
        "id": node.id,
        "cpus": _list(node.cpus),
        "memory_bytes": node.memory_bytes,
        "free_bytes": node.free_bytes,
        **({"kind": node.kind} if node.memory_bytes else {}),
        **{name: told for name, told in more.items() if told is not None},
    }


def _lists(sets: tuple[tuple[int, ...], ...] | None) -> list[str | None] | None:
    return None if sets is None else [_list(cpus) for cpus in sets]


def _list(cpus: tuple[int, ...] | None) -> str | None:
    return None if cpus is None else cpulist.render(cpus)


def _items(told: tuple[_Item, ...] | None) -> list[_Item] | None:
    return None if told is None else list(told)
