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


def _told(*pairs: tuple[str, object]) -> str:
    """Each value in its words, where it is known."""
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
"""Hundreds of lines for some packages; the machine's name stays with us."""

_CPU_LISTS = frozenset(("cpus", "cpuset"))

_WHERE_TOLD = frozenset(
    (
        *("up", "mbits_per_second", "installer", "build", "others", "driver", "energy_preference"),
        *("distances", "tier", "read_mb_per_second", "read_latency_ns", "nearest"),
    )
)
"""Facts that only some kernels, firmwares and installers tell: left out where they do not."""


def host_document(facts: HostFacts) -> dict[str, object]:
    """Plain JSON values. What is null is not known, and ``unknown`` says why, or is a limit
    that does not exist, and stands in ``limits.unlimited``.
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
    """The dialect and version of MPI launchers; of others nobody asks for them."""
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
"""Above that the picture names CPU ranges only."""
MANY_PLACES, FEW_CORES = 8, 4
"""From so many sockets and nodes on, those with so few cores stand side by side."""

UNICODE_SIGNS = {"free": "■", "slow": "□", "partly": "◧", "closed": "·", "edge": "│"}
ASCII_SIGNS = {"free": "#", "slow": "o", "partly": "%", "closed": ".", "edge": "|"}
_MEANINGS = {
    "free": "allowed core",
    "slow": "allowed, but a slower kind of core",
    "partly": "only some of its CPUs allowed",
    "closed": "not allowed",
}


def picture(
    topology: Topology,
    *,
    bound: Mapping[str, Sequence[int]] | None = None,
    width: int = 80,
    ascii_only: bool = False,
) -> list[str]:
    """Draw the topology as lines of at most ``width`` columns.

    ``bound`` maps whoever is bound ("rank 0") to logical CPUs; a core on which somebody
    is bound carries the sign that the legend gives him.
    """
    signs = ASCII_SIGNS if ascii_only else UNICODE_SIGNS
    labels = _labels(bound or {})
    cores = in_order(topology.cores)
    if not cores:
        return ["no topology is known"]
    places = [
        (socket, node, list(members))
        for (socket, node), members in groupby(cores, key=lambda c: (c.socket, _node(c)))
    ]
    slow = _slow_cores(topology)
    cells = {core.cpus: _cell(topology, core, labels, signs, slow) for core in cores}
    if len(places) > MANY_PLACES and max(len(members) for *_, members in places) <= FEW_CORES:
        entries = [f"{s} {''.join(cells[c.cpus] for c in members)}" for s, _, members in places]
        lines = ["sockets, with their cores:", *_flow(entries, width)]
    else:
        lines = []
        for socket, node, members in places:
            lines.append(_heading(topology, socket, node, members, width))
            if len(cores) <= MOST_CORES_DRAWN:
                lines += _rows(members, cells, signs["edge"], width)
    drawn = set(cells.values()) if len(cores) <= MOST_CORES_DRAWN else set()
    lines += _flow(
        [_memory_node(topology, node) for node in topology.numa_nodes if not node.cpus], width
    )
    return lines + _legend(drawn, labels, signs, topology, width)


def _memory_node(topology: Topology, node: NumaNode) -> str:
    """A node that is nothing but memory: ``node 2  no CPUs  64 GiB hbm  nearest to node 0``."""
    near = topology.nearest(node)
    parts = [f"node {node.id}", "CPUs not known" if node.cpus is None else "no CPUs"]
    parts += [_gib(node)] if node.memory_bytes else []
    if node.read_mb_per_second:
        parts.append(f"{node.read_mb_per_second / 1000:.0f} GB/s")
    return "  ".join(parts + [f"nearest to node {','.join(map(str, near))}"] * bool(near))


def _gib(node: NumaNode) -> str:
    kind = MEMORY_WORDS.get(node.kind or "", "")
    return f"{(node.memory_bytes or 0) / (1 << 30):.0f} GiB {kind}".rstrip()


def _slow_cores(topology: Topology) -> frozenset[tuple[int, ...]]:
    """The cores of a hybrid machine that are not of its fastest kind."""
    cores = topology.cores
    speeds = {core.cpus: core.speed for core in cores}
    limit = 0.9 * max(speeds.values(), default=0) if topology.hybrid else 0
    return frozenset(cpus for cpus, speed in speeds.items() if speed < limit)


def _node(core: Core) -> int:
    return -1 if core.numa_node is None else core.numa_node


def _labels(bound: Mapping[str, Sequence[int]]) -> dict[str, tuple[str, frozenset[int]]]:
    """A sign for each bound party; beyond 62 parties they share the last."""
    return {
        name: (LABELS[min(i, len(LABELS) - 1)], frozenset(cpus))
        for i, (name, cpus) in enumerate(bound.items())
    }


def _heading(topology: Topology, socket: int, node: int, cores: list[Core], width: int) -> str:
    memory = next((n for n in topology.numa_nodes if n.id == node), None)
    parts = [f"socket {socket}"]
    if node >= 0:
        parts.append(f"node {node}")
    parts.append(f"{len(cores)} core{'s' if len(cores) > 1 else ''}")
    cpus = sorted(cpu for core in cores for cpu in core.cpus)
    if memory is not None and memory.memory_bytes is not None:
        whole = "  ".join((*parts, _gib(memory), f"CPUs {cpulist.render(cpus)}"))
        parts += [_gib(memory)] if len(whole) <= width or width >= 80 else []
    head = "  ".join(parts) + "  CPUs "
    return head + _short(cpus, width - len(head))


def _short(cpus: list[int], room: int) -> str:
    """A CPU list that fits; one with a constant step as ``0,2…78``, as cut as need be else."""
    text = cpulist.render(cpus)
    if len(text) <= room:
        return text
    step = cpus[1] - cpus[0]
    if cpus == list(range(cpus[0], cpus[-1] + 1, step)):
        return f"{cpus[0]},{cpus[1]}…{cpus[-1]}"
    return text[: max(0, room - 1)] + "…"


def _cell(
    topology: Topology,
    core: Core,
    labels: Mapping[str, tuple[str, frozenset[int]]],
    signs: Mapping[str, str],
    slow: frozenset[tuple[int, ...]],
) -> str:
    holders = [sign for sign, cpus in labels.values() if cpus.intersection(core.cpus)]
    if holders:
        return holders[0] if len(holders) == 1 else "+"
    open_cpus = len(set(topology.allowed).intersection(core.cpus))
    if open_cpus == len(core.cpus):
        return signs["slow" if core.cpus in slow else "free"]
    return signs["partly"] if open_cpus else signs["closed"]


def _rows(
    cores: list[Core], cells: Mapping[tuple[int, ...], str], edge: str, width: int
) -> list[str]:
    """Cores in groups of eight, at most eight in a line; an ``edge`` where another L3 begins."""
    rows: list[str] = []
    groups = 0
    for number, (_, sharing) in enumerate(groupby(cores, key=lambda core: core.l3)):
        signs = "".join(cells[core.cpus] for core in sharing)
        for start in range(0, len(signs), GROUP):
            group = signs[start : start + GROUP]
            if rows and groups < 8 and len(rows[-1]) + 1 + len(group) <= width:
                rows[-1] += (" " if start or not number else edge) + group
                groups += 1
            else:
                rows.append("  " + group)
                groups = 1
    return rows


def _legend(
    drawn: set[str],
    labels: Mapping[str, tuple[str, frozenset[int]]],
    signs: Mapping[str, str],
    topology: Topology,
    width: int,
) -> list[str]:
    smt = topology.threads_per_core
    entries = [f"{signs[key]} {text}" for key, text in _MEANINGS.items() if signs[key] in drawn]
    if smt > 1 and entries:
        entries[0] += f" ({smt} CPUs)"
    entries += [
        f"{sign} {name}: CPUs {cpulist.render(cpus)}"
        for name, (sign, cpus) in labels.items()
        if sign in drawn or "+" in drawn
    ]
    if "+" in drawn:
        entries.append("+ shared by several of them")
    caches = {(core.socket, core.numa_node, core.l3) for core in topology.cores}
    if drawn and len(caches) > len({place[:2] for place in caches}):
        size = topology.cache_bytes
        entries.append(
            f"{signs['edge']} another L3 cache" + (f", {size >> 20} MiB" if size else "")
        )
    present = topology.present
    if present is not None and len(present) > len(topology.online):
        offline = set(present) - set(topology.online)
        entries.append(f"offline: CPUs {cpulist.render(offline)}")
    return _flow(entries, width)


def _flow(entries: list[str], width: int) -> list[str]:
    """Lay entries side by side as far as they fit; what is too long for a line is cut."""
    lines: list[str] = []
    for entry in (e if len(e) <= width else e[: width - 1] + "…" for e in entries):
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1] += "   " + entry
        else:
            lines.append(entry)
    return lines
