"""The facts of a machine: lines and a picture for people, and the ``host`` part of a document."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from cputune import cpulist
from cputune.facts import (
    MEMORY_WORDS,
    Core,
    HostFacts,
    Launcher,
    LinuxDistribution,
    NumaNode,
    Topology,
)
from cputune.portrait import in_order
from cputune.probing.installed import MPI_PROGRAMS

if TYPE_CHECKING:
    from cputune.documents import JSON

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
    each, threads = sorted(set(topology.cores_per_socket)), topology.threads_per_core
    shape = f"{_many(topology.sockets, 'socket')} × {'/'.join(map(str, each))} "
    shape += "core" if each == [1] else "cores"
    if threads > 1:
        with_all = sum(len(core.cpus) == threads for core in topology.cores)
        whole = with_all == len(topology.cores)
        shape += f" × {threads} threads" if whole else f" ({with_all} with {threads} threads)"
    parts = [shape, f"{len(topology.online)} CPUs online ({cpulist.render(topology.online)})"]
    if topology.allowed != topology.online:
        parts.append(f"allowed {cpulist.render(topology.allowed) or 'none'}")
    nodes = len(topology.numa_nodes)
    return ", ".join([*parts, *([_many(nodes, "NUMA node")] if nodes else [])])


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _told(*pairs: tuple[str, object]) -> str:
    """Each value in its words; values that are not known are left out."""
    return ", ".join(words.format(value) for words, value in pairs if value is not None)


def _memory(facts: HostFacts) -> str:
    memory = facts.memory
    told = _told(
        ("{}", _size(memory.total_bytes)),
        ("{} available", _size(memory.available_bytes)),
    )
    if not memory.swap_total_bytes or memory.swap_free_bytes is None:
        return told
    used = memory.swap_total_bytes - memory.swap_free_bytes
    swap = f"swap {gib(used)} of {gib(memory.swap_total_bytes)} used"
    return ", ".join(filter(None, (told, swap)))


def _limits(facts: HostFacts) -> str:
    limits = facts.limits
    return _told(
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
    return _told(
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

_CPU_LISTS = frozenset(("cpus", "cpuset"))

_WHERE_TOLD = frozenset(
    (
        *("up", "mbits_per_second", "installer", "build", "others", "driver", "energy_preference"),
        *("distances", "tier", "read_mb_per_second", "read_latency_ns", "nearest"),
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
    values = {one.name: getattr(record, one.name) for one in fields(record)}
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
        "numa_nodes": [_numa_node(node) for node in topology.numa_nodes],
        "l3": _json(topology.l3),
        "dies": _lists(topology.dies),
        "clusters": _lists(topology.clusters),
        "hybrid": topology.hybrid,
    }


def _numa_node(node: NumaNode) -> dict[str, JSON]:
    shown = _record(node)
    if not node.memory_bytes:  # without memory there is no kind of memory
        del shown["kind"]
    return shown


def _lists(sets: tuple[tuple[int, ...], ...] | None) -> list[JSON] | None:
    return None if sets is None else [_list(cpus) for cpus in sets]


def _list(cpus: tuple[int, ...] | None) -> str | None:
    return None if cpus is None else cpulist.render(cpus)


GROUP = 8
LABELS = string.digits + string.ascii_lowercase + string.ascii_uppercase
MOST_CORES_DRAWN = 1024
"""With more CPUs than this the picture names CPU ranges only."""

FREE, SLOW, PARTLY, CLOSED, SHARED, EDGE = "■□◧·+│"
_MEANINGS = {
    FREE: "allowed core",
    SLOW: "allowed, but a slower kind of core",
    PARTLY: "only some of its CPUs allowed",
    CLOSED: "not allowed",
    SHARED: "shared by several of them",
}

Labels = Mapping[str, tuple[str, frozenset[int]]]
"""Each party that is bound, with its sign in the picture and its CPUs."""


def picture(
    topology: Topology, *, bound: Mapping[str, Sequence[int]] | None = None, width: int = 80
) -> list[str]:
    """Draw the topology as lines of at most ``width`` columns.

    ``bound`` maps each party that is bound ("rank 0") to its logical CPUs. A core to which a party
    is bound shows the party's sign, which the legend explains. Beyond 62 parties all others share
    the last sign.
    """
    labels = {
        name: (LABELS[min(number, len(LABELS) - 1)], frozenset(cpus))
        for number, (name, cpus) in enumerate((bound or {}).items())
    }
    cores = in_order(topology.cores)
    if not cores:
        return ["no topology is known"]
    drawn = cores if len(cores) <= MOST_CORES_DRAWN else []
    cells = {core.cpus: _cell(topology, core, labels) for core in drawn}
    lines = []
    for (socket, node), members in groupby(cores, key=lambda core: (core.socket, core.numa_node)):
        of = list(members)
        lines.append(_heading(topology, socket, node, of, width))
        lines += _rows(of, cells, width) if cells else []
    for memory in topology.numa_nodes:
        if not memory.cpus:
            near = ",".join(map(str, topology.nearest(memory)))
            parts = [f"node {memory.id}", "CPUs not known" if memory.cpus is None else "no CPUs"]
            parts += [_gib(memory)] if memory.memory_bytes else []
            lines.append("  ".join([*parts, *([f"nearest to node {near}"] if near else [])]))
    return lines + _legend(set(cells.values()), labels, topology, width)


def _gib(node: NumaNode) -> str:
    kind = MEMORY_WORDS.get(node.kind or "", "")
    return f"{(node.memory_bytes or 0) / (1 << 30):.0f} GiB {kind}".rstrip()


def _heading(
    topology: Topology, socket: int, node: int | None, cores: list[Core], width: int
) -> str:
    memory = next((n for n in topology.numa_nodes if n.id == node and n.memory_bytes), None)
    parts = [f"socket {socket}"] + ([] if node is None else [f"node {node}"])
    parts.append(f"{len(cores)} core{'s' * (len(cores) > 1)}")
    parts += [_gib(memory)] if memory is not None and width >= 80 else []
    head = "  ".join(parts) + "  CPUs "
    return head + _short(sorted(cpu for core in cores for cpu in core.cpus), width - len(head))


def _short(cpus: list[int], room: int) -> str:
    """A CPU list in so many columns; one with a constant step as ``0,2…78``, else it is cut."""
    text = cpulist.render(cpus)
    if len(text) <= room:
        return text
    step = cpus[1] - cpus[0]
    if cpus == list(range(cpus[0], cpus[-1] + 1, step)):
        return f"{cpus[0]},{cpus[1]}…{cpus[-1]}"
    return text[: max(0, room - 1)] + "…"


def _cell(topology: Topology, core: Core, labels: Labels) -> str:
    holders = [sign for sign, cpus in labels.values() if cpus.intersection(core.cpus)]
    if holders:
        return holders[0] if len(holders) == 1 else SHARED
    allowed = len(set(topology.allowed).intersection(core.cpus))
    if allowed < len(core.cpus):
        return PARTLY if allowed else CLOSED
    fastest = max(one.speed for one in topology.cores)
    return SLOW if topology.hybrid and core.speed < 0.9 * fastest else FREE


def _rows(cores: list[Core], cells: Mapping[tuple[int, ...], str], width: int) -> list[str]:
    """Cores in groups of eight, at most eight groups in a line; an edge where another L3 begins."""
    rows: list[str] = []
    groups = 0
    for number, (_, sharing) in enumerate(groupby(cores, key=lambda core: core.l3)):
        signs = "".join(cells[core.cpus] for core in sharing)
        for start in range(0, len(signs), GROUP):
            group = signs[start : start + GROUP]
            if rows and groups < 8 and len(rows[-1]) + 1 + len(group) <= width:
                rows[-1] += (" " if start or not number else EDGE) + group
                groups += 1
            else:
                rows.append("  " + group)
                groups = 1
    return rows


def _legend(drawn: set[str], labels: Labels, topology: Topology, width: int) -> list[str]:
    smt = topology.threads_per_core
    free = [sign for sign in _MEANINGS if sign in drawn]
    entries = [f"{sign} {_MEANINGS[sign]}" for sign in free]
    if smt > 1 and entries:
        entries[0] += f" ({smt} CPUs)"
    entries += [
        f"{sign} {name}: CPUs {cpulist.render(cpus)}"
        for name, (sign, cpus) in labels.items()
        if sign in drawn or SHARED in drawn
    ]
    caches = {(core.socket, core.numa_node, core.l3) for core in topology.cores}
    if drawn and len(caches) > len({place[:2] for place in caches}):
        size = topology.cache_bytes
        entries.append(f"{EDGE} another L3 cache" + (f", {size >> 20} MiB" if size else ""))
    offline = set(topology.present or ()) - set(topology.online)
    if offline:
        entries.append(f"offline: CPUs {cpulist.render(offline)}")
    lines: list[str] = []
    for entry in (e if len(e) <= width else e[: width - 1] + "…" for e in entries):
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1] += "   " + entry
        else:
            lines.append(entry)
    return lines
