"""NUMA nodes: their CPUs and their memory, from sysfs."""

from __future__ import annotations

from cputune.facts import NumaNode
from cputune.probing._look import NODE_DIR, Look, fields, kibibytes


def read_numa_nodes(look: Look, online: frozenset[int]) -> tuple[NumaNode, ...]:
    """Every node that has a directory, those without CPUs or without memory too."""
    ids = look.numbered(NODE_DIR, "node")
    listed = look.cpu_list(f"{NODE_DIR}/online")
    if listed:
        ids = tuple(node for node in ids if node in listed)
    nodes = []
    for node in ids:
        directory = f"{NODE_DIR}/node{node}"
        cpus = look.cpu_list(f"{directory}/cpulist")
        if cpus is None:
            cpus = look.cpu_mask(f"{directory}/cpumap")
        if cpus is None:
            cpus = frozenset(look.numbered(directory, "cpu")) or None
        if cpus is None:
            look.not_known(f"topology.numa_nodes.{node}.cpus", look.why(f"{directory}/cpulist"))
        memory = {
            key.split()[-1]: value
            for key, value in fields(look.text(f"{directory}/meminfo")).items()
            if key
        }
        total, free = kibibytes(memory.get("MemTotal")), kibibytes(memory.get("MemFree"))
        for fact, bytes_ in (("memory_bytes", total), ("free_bytes", free)):
            if bytes_ is None:
                reason = look.why(f"{directory}/meminfo")
                look.not_known(f"topology.numa_nodes.{node}.{fact}", reason)
        nodes.append(
            NumaNode(
                id=node,
                cpus=None if cpus is None else tuple(sorted(cpus & online)),
                memory_bytes=total,
                free_bytes=free,
            )
        )
    if not nodes:
        look.not_known("topology.numa_nodes", f"no node is shown below {NODE_DIR}")
    return tuple(nodes)
