"""HostFacts as the ``host`` part of the doctor's document (schema ``cputune.doctor/1``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cputune import cpulist
from cputune.facts import HostFacts, Launcher, Link, Network, Package, Settings, Topology
from cputune.probing.launchers import MPI_PROGRAMS


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
        "settings": _settings(facts.settings),
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


def _settings(settings: Settings) -> dict[str, Any]:
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
        "numa_nodes": [
            {
                "id": node.id,
                "cpus": _list(node.cpus),
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
