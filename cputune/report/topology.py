"""A picture of a machine for the terminal: sockets, NUMA nodes, cores, who may run where.

One sign per physical core, eight to a group, so that 256 cores with 512 CPUs stay
readable within 80 columns.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from itertools import groupby

from cputune import cpulist
from cputune.facts import Core, HostFacts

GROUP = 8
LABELS = string.digits + string.ascii_lowercase + string.ascii_uppercase
MOST_CORES_DRAWN = 1024
"""Above that the picture names CPU ranges only."""


UNICODE_SIGNS = {"free": "■", "partly": "◧", "closed": "·"}
ASCII_SIGNS = {"free": "#", "partly": "%", "closed": "."}


def picture(
    facts: HostFacts,
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
    cores = sorted(facts.topology.cores, key=lambda c: (c.socket, _node(c), c.cpus[0]))
    if not cores:
        return ["no topology is known"]
    lines: list[str] = []
    drawn: set[str] = set()
    for (socket, node), members in groupby(cores, key=lambda c: (c.socket, _node(c))):
        group = list(members)
        lines.append(_heading(facts, socket, node, group, width))
        if len(cores) > MOST_CORES_DRAWN:
            continue
        cells = [_cell(facts, core, labels, signs) for core in group]
        drawn.update(cells)
        lines += _rows(cells, width)
    lines += _legend(drawn, labels, signs, facts, width)
    return lines


def _node(core: Core) -> int:
    return -1 if core.numa_node is None else core.numa_node


def _labels(bound: Mapping[str, Sequence[int]]) -> dict[str, tuple[str, frozenset[int]]]:
    """A sign for each bound party; beyond 62 parties they share the last."""
    return {
        name: (LABELS[min(i, len(LABELS) - 1)], frozenset(cpus))
        for i, (name, cpus) in enumerate(bound.items())
    }


def _heading(facts: HostFacts, socket: int, node: int, cores: list[Core], width: int) -> str:
    cpus = cpulist.render(cpu for core in cores for cpu in core.cpus)
    memory = next((n.memory_bytes for n in facts.topology.numa_nodes if n.id == node), None)
    parts = [f"socket {socket}"]
    if node >= 0:
        parts.append(f"node {node}")
    parts.append(f"{len(cores)} core{'s' if len(cores) > 1 else ''}")
    if memory is not None:
        parts.append(f"{memory / (1 << 30):.0f} GiB")
    head = "  ".join(parts) + "  CPUs "
    room = width - len(head)
    return head + (cpus if len(cpus) <= room else cpus[: max(0, room - 1)] + "…")


def _cell(
    facts: HostFacts,
    core: Core,
    labels: Mapping[str, tuple[str, frozenset[int]]],
    signs: Mapping[str, str],
) -> str:
    holders = [sign for sign, cpus in labels.values() if cpus.intersection(core.cpus)]
    if holders:
        return holders[0] if len(holders) == 1 else "+"
    open_cpus = len(set(facts.topology.allowed).intersection(core.cpus))
    if open_cpus == len(core.cpus):
        return signs["free"]
    return signs["partly"] if open_cpus else signs["closed"]


def _rows(cells: list[str], width: int) -> list[str]:
    groups = ["".join(cells[i : i + GROUP]) for i in range(0, len(cells), GROUP)]
    per_row = max(1, min(8, (width - 2) // (GROUP + 1)))
    return ["  " + " ".join(groups[i : i + per_row]) for i in range(0, len(groups), per_row)]


def _legend(
    drawn: set[str],
    labels: Mapping[str, tuple[str, frozenset[int]]],
    signs: Mapping[str, str],
    facts: HostFacts,
    width: int,
) -> list[str]:
    smt = facts.topology.threads_per_core
    free = "allowed core" + (f" ({smt} CPUs)" if smt > 1 else "")
    entries = [
        f"{signs[key]} {meaning}"
        for key, meaning in (
            ("free", free),
            ("partly", "only some of its CPUs allowed"),
            ("closed", "not allowed"),
        )
        if signs[key] in drawn
    ]
    entries += [
        f"{sign} {name}: CPUs {cpulist.render(cpus)}"
        for name, (sign, cpus) in labels.items()
        if sign in drawn or "+" in drawn
    ]
    if "+" in drawn:
        entries.append("+ shared by several of them")
    present = facts.topology.present
    if present is not None and len(present) > len(facts.topology.online):
        offline = set(present) - set(facts.topology.online)
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
