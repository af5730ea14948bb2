"""HostFacts as the ``host`` part of the doctor's document (schema ``cputune.doctor/1``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cputune import cpulist
from cputune.facts import HostFacts, Package, Topology


def host_document(facts: HostFacts) -> dict[str, Any]:
    """Plain JSON values. What is not known is null, and ``unknown`` says why."""
    limits = asdict(facts.limits)
    limits["cpuset"] = _list(facts.limits.cpuset)
    return {
        "cpu": {**asdict(facts.cpu), "isa": list(facts.cpu.isa)},
        "topology": _topology(facts.topology),
        "limits": limits,
        "memory": asdict(facts.memory),
        "settings": asdict(facts.settings),
        "load": asdict(facts.load),
        "python": facts.python,
        "packages": [_package(package) for package in facts.packages],
        "libraries": [asdict(library) for library in facts.libraries],
        "launchers": [asdict(launcher) for launcher in facts.launchers],
        "environment": dict(facts.environment),
        "preload_missing": list(facts.preload_missing),
        "accelerators": _items(facts.accelerators),
        "sys_nice": facts.sys_nice,
        "network": {
            "interfaces": _items(facts.network.interfaces),
            "hostname_addresses": _items(facts.network.hostname_addresses),
        },
        "bound_processes": [
            {"pid": process.pid, "name": process.name, "cpus": cpulist.render(process.cpus)}
            for process in facts.bound_processes
        ],
        "unknown": [asdict(unknown) for unknown in facts.unknown],
    }


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
        "numa_nodes": [
            {
                "id": node.id,
                "cpus": cpulist.render(node.cpus),
                "memory_bytes": node.memory_bytes,
                "free_bytes": node.free_bytes,
            }
            for node in topology.numa_nodes
        ],
        "hybrid": topology.hybrid,
    }


def _list(cpus: tuple[int, ...] | None) -> str | None:
    return None if cpus is None else cpulist.render(cpus)


def _items(texts: tuple[str, ...] | None) -> list[str] | None:
    return None if texts is None else list(texts)
