"""A picture of a machine for the terminal: sockets, NUMA nodes, cores, who may run where.

One sign per physical core, eight to a group, so that 256 cores with 512 CPUs stay
readable within 80 columns.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from itertools import groupby

from cputune import cpulist
from cputune.facts import MEMORY_WORDS, Core, NumaNode, Topology
from cputune.portrait import in_order

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
        [_memory(topology, node) for node in topology.numa_nodes if not node.cpus], width
    )
    return lines + _legend(drawn, labels, signs, topology, width)


def _memory(topology: Topology, node: NumaNode) -> str:
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
