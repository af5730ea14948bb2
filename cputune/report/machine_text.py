"""The facts of a machine: lines for a terminal, and the ``host`` part of a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from cputune.host.facts import HostFacts, Launcher, Topology
from cputune.host.probing.installed import MPI_PROGRAMS
from cputune.text import cpulist
from cputune.text.plain import count

if TYPE_CHECKING:
    from cputune.text.documents import JSON

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
    """The units that compute matmuls of each precision. Empty if the ISA is not known.

    The order is that of oneDNN: AMX, then AVX-512 with instructions for the type, then conversion
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
    """(label, text) for CPU, precision, cores, memory, limits, settings, software and load."""
    rows = [
        ("CPU", _cpu(facts)),
        ("precision", ", ".join(f"{k}: {v}" for k, v in precision_units(facts).items())),
        ("cores", _cores(facts)),
        ("NUMA nodes", _nodes(facts)),
        ("memory", _memory(facts)),
        ("limits", _limits(facts)),
        ("kernel", _settings(facts)),
        ("packages", _packages(facts)),
        ("launchers", _launchers(facts)),
        ("libraries", ", ".join(f"{lib.name} {lib.path}" for lib in facts.libraries)),
        ("load", _load(facts)),
    ]
    pairs: list[tuple[str, str]] = []
    for label, text in rows:
        if text:
            pairs.append((label, text))
    return pairs


def _cpu(facts: HostFacts) -> str:
    cpu = facts.cpu
    name = cpu.model_name or cpu.vendor
    parts = [name or "a processor that does not name itself"]
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
    each, threads = sorted(set(topology.cores_per_socket)), topology.threads_per_core
    shape = f"{count(topology.sockets, 'socket')} × {'/'.join(map(str, each))} cores"
    if each == [1]:
        shape = shape.removesuffix("s")
    if threads > 1:
        with_all = sum(len(core.cpus) == threads for core in topology.cores)
        if with_all == len(topology.cores):
            shape += f" × {threads} threads"
        else:
            shape += f" ({with_all} with {threads} threads)"
    parts = [shape, f"{len(topology.online)} CPUs online ({cpulist.render(topology.online)})"]
    if topology.allowed != topology.online:
        parts.append(f"allowed {cpulist.render(topology.allowed) or 'none'}")
    return ", ".join(parts)


def _joined(*pairs: tuple[str, object]) -> str:
    """Format each value, leaving out those that are not known."""
    return ", ".join(template.format(value) for template, value in pairs if value not in (None, ""))


def _nodes(facts: HostFacts) -> str:
    nodes = facts.topology.numa_nodes
    if len(nodes) < 2:
        return ""
    sizes = []
    for node in nodes:
        cpus = "not known"
        if node.cpus is not None:
            cpus = cpulist.render(node.cpus) or "none"
        text = f"{node.id}: CPUs {cpus}"
        if node.memory_bytes is not None:
            text += f", {gib(node.memory_bytes)}"
        sizes.append(text)
    return "; ".join(sizes)


def nodes_in_brief(facts: HostFacts) -> dict[str, str]:
    """The row of NUMA nodes if there are more than two, with equal nodes together."""
    alike: dict[str, list[int]] = {}
    nodes = facts.topology.numa_nodes
    if len(nodes) < 3:
        return {}
    for node in nodes:
        text = "CPUs not known"
        if node.cpus is not None:
            text = f"{len(node.cpus) or 'no'} CPUs"
        if node.memory_bytes is not None:
            text += f", {gib(node.memory_bytes)}"
        alike.setdefault(text, []).append(node.id)
    listed = []
    for text, ids in alike.items():
        if len(ids) > 1:
            text += " each"
        listed.append(f"{cpulist.render(ids)}: {text}")
    return {"NUMA nodes": "; ".join(listed)}


def _memory(facts: HostFacts) -> str:
    memory, used = facts.memory, None
    if memory.swap_total_bytes and memory.swap_free_bytes is not None:
        swap = memory.swap_total_bytes
        used = f"{gib(swap - memory.swap_free_bytes)} of {gib(swap)}"
    return _joined(
        ("{}", _size(memory.total_bytes)),
        ("{} available", _size(memory.available_bytes)),
        ("swap {} used", used),
    )


def _limits(facts: HostFacts) -> str:
    limits = facts.limits
    return _joined(
        ("CPU quota {:g}", limits.cpu_quota),
        ("memory {}", _size(limits.memory_bytes)),
        ("/dev/shm {}", _size(limits.shm_bytes)),
        ("{} open files", limits.open_files),
        ("cgroup v{}", limits.cgroup_version),
        ("in {}", facts.settings.container or None),
    )


def _settings(facts: HostFacts) -> str:
    settings = facts.settings
    yes_no = {True: "on", False: "off", None: None}
    system = settings.distribution
    smt = settings.smt
    if smt == "notsupported":
        smt = "none"
    return _joined(
        ("{}", system and f"{system.id} {system.version or ''}".strip()),
        ("{}", settings.kernel),
        ("governor {}", settings.governor),
        ("turbo {}", yes_no[settings.turbo]),
        ("transparent huge pages {}", settings.transparent_huge_pages),
        ("NUMA balancing {}", yes_no[settings.numa_balancing]),
        ("SMT {}", smt),
    )


def _packages(facts: HostFacts) -> str:
    parts = []
    if facts.python:
        parts.append(f"Python {facts.python}")
    for name in _PACKAGES:
        package = facts.package(name)
        if package is not None:
            parts.append(f"{package.name} {package.version or '(no version)'}")
    if facts.python and not facts.package("torch"):
        parts.append("no torch")
    return ", ".join(parts)


def _launchers(facts: HostFacts) -> str:
    launchers = []
    for launcher in facts.launchers:
        names = filter(None, (launcher.name, launcher.dialect, launcher.version))
        launchers.append(f"{' '.join(names)} ({launcher.path})")
    return ", ".join(launchers)


def _load(facts: HostFacts) -> str:
    load = facts.load
    steal = None
    if load.steal_share is not None:
        steal = 100 * load.steal_share
    return _joined(
        ("{:g} over the last minute", load.average_1min),
        ("CPU pressure {:g} %", load.cpu_pressure_percent),
        ("memory pressure {:g} %", load.memory_pressure_percent),
        ("steal {:.1f} %", steal),
    )


def _size(size_bytes: int | None) -> str | None:
    if size_bytes is None:
        return None
    return gib(size_bytes)


def gib(size_bytes: int) -> str:
    """Format bytes in MiB or GiB."""
    if size_bytes < 1 << 30:
        return f"{size_bytes / (1 << 20):.0f} MiB"
    return f"{size_bytes / (1 << 30):.1f} GiB"


# Left out of a document: requirements of packages, and what is private: the paths of the
# machine's Python.
_NOT_SHOWN = frozenset(("requires", "recorded", "interpreter"))

_CPU_LISTS = frozenset(("cpus", "cpuset", "memory_nodes"))

_SELDOM_KNOWN = """
    up mbits_per_second installer build others driver energy_preference free_files model_bytes
    held_bytes files_missing memory_high_bytes cpu_weight cpu_idle memory_nodes nice policy
    frequency_caps max_perf_percent commit_left_bytes throttled_share
"""
# Facts that only some kernels, firmwares and installers report.
_ONLY_IF_KNOWN = frozenset(_SELDOM_KNOWN.split())


def host_document(facts: HostFacts) -> dict[str, object]:
    """The machine as plain JSON values. Unknown facts are null.

    A limit that does not exist is also null, and ``limits.unlimited`` lists it.
    """
    document: dict[str, object] = dict(_record(facts))
    unknown = document.pop("unknown")
    topology = _topology(facts.topology)
    launchers: list[JSON] = [_launcher(launcher) for launcher in facts.launchers]
    return document | {"topology": topology, "launchers": launchers, "unknown": unknown}


def _record(record: object) -> dict[str, JSON]:
    """The fields of a record, with sets of CPUs as the kernel writes them (``0-3,8``)."""
    assert is_dataclass(record)
    document: dict[str, JSON] = {}
    for field in fields(record):
        name, value = field.name, getattr(record, field.name)
        if name in _NOT_SHOWN or (name in _ONLY_IF_KNOWN and value in (None, ())):
            continue
        if name in _CPU_LISTS and value is not None:
            document[name] = cpulist.render(value)
        else:
            document[name] = _json(value)
    return document


def _json(value: object) -> JSON:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [_json(part) for part in value]
    return _record(value)


def _launcher(launcher: Launcher) -> dict[str, JSON]:
    shown = _record(launcher)
    if launcher.name not in MPI_PROGRAMS:
        del shown["dialect"], shown["version"]
    return shown


def _topology(topology: Topology) -> dict[str, JSON]:
    online, present = topology.online, topology.present
    offline = None
    if present is not None:
        offline = tuple(set(present) - set(online))
    document: dict[str, JSON] = {
        "sockets": topology.sockets,
        "physical_cores": topology.physical_cores,
        "threads_per_core": topology.threads_per_core,
        "logical_cpus": len(online) or None,
        "online": _list(online or None),
        "offline": _list(offline),
        "allowed": _list(topology.allowed or None),
        "cores_per_socket": list(topology.cores_per_socket),
        "numa_nodes": [_record(node) for node in topology.numa_nodes],
        "l3": _json(topology.l3),
        "hybrid": topology.hybrid,
    }
    if not topology.cores_known:
        document |= {"physical_cores": None, "threads_per_core": None, "cores_per_socket": None}
    if not topology.sockets_known:
        document |= {"sockets": None, "cores_per_socket": None}
    return document


def _list(cpus: tuple[int, ...] | None) -> str | None:
    if cpus is None:
        return None
    return cpulist.render(cpus)
