"""The facts of a machine: lines for people, and the ``host`` part of a document."""

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
        ("NUMA nodes", _nodes(facts)),
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
    parts = (
        cpu.model_name or cpu.vendor or "a processor that does not name itself",
        cpu.codename,
        cpu.architecture,
        "virtual machine" if cpu.hypervisor else None,
        "hybrid: fast and slow cores" if facts.topology.hybrid else None,
    )
    return ", ".join(filter(None, parts))


def _cores(facts: HostFacts) -> str:
    topology = facts.topology
    if not topology.cores:
        return ""
    each, threads = sorted(set(topology.cores_per_socket)), topology.threads_per_core
    shape = f"{count(topology.sockets, 'socket')} × {'/'.join(map(str, each))} "
    shape += "core" if each == [1] else "cores"
    if threads > 1:
        with_all = sum(len(core.cpus) == threads for core in topology.cores)
        whole = with_all == len(topology.cores)
        shape += f" × {threads} threads" if whole else f" ({with_all} with {threads} threads)"
    parts = [shape, f"{len(topology.online)} CPUs online ({cpulist.render(topology.online)})"]
    if topology.allowed != topology.online:
        parts.append(f"allowed {cpulist.render(topology.allowed) or 'none'}")
    return ", ".join(parts)


def _joined(*pairs: tuple[str, object]) -> str:
    """Each value in its words; values that are not known are left out."""
    return ", ".join(words.format(value) for words, value in pairs if value not in (None, ""))


def _nodes(facts: HostFacts) -> str:
    """Where there are several: the CPUs of each, and its memory."""
    nodes = facts.topology.numa_nodes
    sizes = []
    for node in nodes if len(nodes) > 1 else ():
        cpus = "not known" if node.cpus is None else cpulist.render(node.cpus) or "none"
        size = "" if node.memory_bytes is None else f", {gib(node.memory_bytes)}"
        sizes.append(f"{node.id}: CPUs {cpus}{size}")
    return "; ".join(sizes)


def nodes_in_brief(facts: HostFacts) -> dict[str, str]:
    """The row of NUMA nodes where there are more than two: those that are alike, together."""
    alike: dict[str, list[int]] = {}
    nodes = facts.topology.numa_nodes
    for node in nodes if len(nodes) > 2 else ():
        cpus = "CPUs not known" if node.cpus is None else f"{len(node.cpus) or 'no'} CPUs"
        size = "" if node.memory_bytes is None else f", {gib(node.memory_bytes)}"
        alike.setdefault(cpus + size, []).append(node.id)
    listed = "; ".join(
        f"{cpulist.render(ids)}: {words}" + (" each" if len(ids) > 1 else "")
        for words, ids in alike.items()
    )
    return {"NUMA nodes": listed} if listed else {}


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
    return _joined(
        ("{}", system and f"{system.id} {system.version or ''}".strip()),
        ("{}", settings.kernel),
        ("governor {}", settings.governor),
        ("turbo {}", yes_no[settings.turbo]),
        ("transparent huge pages {}", settings.transparent_huge_pages),
        ("NUMA balancing {}", yes_no[settings.numa_balancing]),
        ("SMT {}", "none" if settings.smt == "notsupported" else settings.smt),
    )


def _packages(facts: HostFacts) -> str:
    found = [facts.package(name) for name in _PACKAGES]
    parts = [f"{p.name} {p.version or '(no version)'}" for p in found if p is not None]
    if facts.python:
        without = [] if facts.package("torch") else ["no torch"]
        parts = [f"Python {facts.python}", *parts, *without]
    return ", ".join(parts)


def _launchers(facts: HostFacts) -> str:
    return ", ".join(
        " ".join(filter(None, (item.name, item.dialect, item.version))) + f" ({item.path})"
        for item in facts.launchers
    )


def _load(facts: HostFacts) -> str:
    load = facts.load
    return _joined(
        ("{:g} over the last minute", load.average_1min),
        ("CPU pressure {:g} %", load.cpu_pressure_percent),
        ("memory pressure {:g} %", load.memory_pressure_percent),
        ("steal {:.1f} %", None if load.steal_share is None else 100 * load.steal_share),
    )


def _size(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else gib(size_bytes)


def gib(size_bytes: int) -> str:
    """Bytes for people, in MiB or GiB."""
    if size_bytes < 1 << 30:
        return f"{size_bytes / (1 << 20):.0f} MiB"
    return f"{size_bytes / (1 << 30):.1f} GiB"


_NOT_SHOWN = frozenset(("requires", "host_name", "recorded"))
"""Left out of a document: files of packages, some of which have hundreds of lines, and the name of
the machine, which is private."""

_CPU_LISTS = frozenset(("cpus", "cpuset", "memory_nodes"))

_WHERE_TOLD = frozenset(
    (
        *("up", "mbits_per_second", "installer", "build", "others", "driver"),
        *("energy_preference", "free_files", "model_bytes", "held_bytes", "files_missing"),
        *("memory_high_bytes", "cpu_weight", "cpu_idle", "memory_nodes", "nice", "policy"),
        *("frequency_caps", "max_perf_percent", "commit_left_bytes", "throttled_share"),
    )
)
"""Facts that only some kernels, firmwares and installers tell; people see them only where they are
known."""


def host_document(facts: HostFacts) -> dict[str, object]:
    """The machine as plain JSON values; null where a fact is not known.

    ``unknown`` gives the reason. A limit that does not exist is null as well, and is listed in
    ``limits.unlimited``.
    """
    document = _record(facts)
    unknown = document.pop("unknown")
    topology = _topology(facts.topology)
    launchers: list[JSON] = [_launcher(launcher) for launcher in facts.launchers]
    return {**document, "topology": topology, "launchers": launchers, "unknown": unknown}


def _record(record: object) -> dict[str, JSON]:
    """A record's fields, its tuples of CPUs as the kernel writes them (``0-3,8``)."""
    assert is_dataclass(record)
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: cpulist.render(value) if name in _CPU_LISTS and value is not None else _json(value)
        for name, value in values.items()
        if name not in _NOT_SHOWN and not (name in _WHERE_TOLD and value in (None, ()))
    }


def _json(value: object) -> JSON:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [_json(part) for part in value]
    return _record(value)


def _launcher(launcher: Launcher) -> dict[str, JSON]:
    """The dialect and version of an MPI launcher; other launchers have neither."""
    shown = _record(launcher)
    if launcher.name not in MPI_PROGRAMS:
        del shown["dialect"], shown["version"]
    return shown


def _topology(topology: Topology) -> dict[str, JSON]:
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
        "numa_nodes": [_record(node) for node in topology.numa_nodes],
        "l3": _json(topology.l3),
        "hybrid": topology.hybrid,
    }


def _list(cpus: tuple[int, ...] | None) -> str | None:
    return None if cpus is None else cpulist.render(cpus)
