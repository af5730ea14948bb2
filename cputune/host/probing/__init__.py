"""``cputune.probe()`` reads the ``HostFacts`` of a machine. Each module reads a part."""

from __future__ import annotations

import sys
from dataclasses import replace

from cputune.errors import HostError
from cputune.host import Host, Interpreter, LiveHost, Process
from cputune.host.facts import HostFacts
from cputune.host.probing._look import Look
from cputune.host.probing.cpu import read_cpu, read_cpuinfo
from cputune.host.probing.installed import (
    absent_files,
    dead_preloads,
    read_launchers,
    read_libraries,
    read_packages,
)
from cputune.host.probing.limits import read_limits
from cputune.host.probing.load import busiest, read_load
from cputune.host.probing.network import read_network
from cputune.host.probing.restraints import read_restraints
from cputune.host.probing.scrub import Scrubber, read_environment
from cputune.host.probing.settings import (
    CAP_SYS_NICE,
    CAP_SYS_RESOURCE,
    read_accelerators,
    read_capability,
    read_settings,
)
from cputune.host.probing.topology import read_memory, read_topology
from cputune.text.log import log

_LOG = log.getChild("probing")


_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}


def probe(
    host: Host | None = None, *, watched: bool = True, python: str | Interpreter | None = None
) -> HostFacts:
    """Examine a machine: this one, or the given ``host``.

    ``watched``: observe other processes for a moment to see which are busy. ``python``: the Python
    that trains on this machine, or its environment; None: the Python that runs cputune.

    An unknown fact has the value None, and ``HostFacts.unknown`` has the reason.
    Starts at most one child, for the version of mpirun, and imports none of the packages. Raises
    HostError if this machine is to be examined and does not run Linux, UsageError if ``python`` is
    not a Python.
    """
    if (host is None or host.live) and sys.platform != "linux":
        system = _SYSTEMS.get(sys.platform, sys.platform)
        raise HostError(
            f"this machine runs {system}, and cputune examines only Linux",
            hint="--root DIR examines a machine recorded with `cputune doctor --record DIR`",
        )
    look = Look(host or LiveHost(python))
    # The load is read first, before our own work adds to it. Processes are watched until the end.
    load = read_load(look)
    if watched:
        look.host.processes()
    info = read_cpuinfo(look)
    limits = read_limits(look)
    packages = read_packages(look)
    locations = dict.fromkeys(package.location for package in packages if package.location)
    python = look.host.python_version()
    if python is None:
        look.not_known("python", "the recording does not contain the interpreter")
    topology = read_topology(look, info, limits.cpuset)
    libraries = read_libraries(look, tuple(locations))
    processes: tuple[Process, ...] | None = ()
    if watched:
        processes = look.host.processes()
    if processes is None:
        look.not_known("load.busy", "processes cannot be seen")
    facts = HostFacts(
        cpu=read_cpu(look, info),
        topology=topology,
        limits=limits,
        memory=read_memory(look),
        settings=read_settings(look, topology.online),
        load=replace(load, busy=busiest(processes or ())),
        python=python,
        packages=packages,
        libraries=libraries,
        launchers=read_launchers(look),
        environment=read_environment(look.host.environment(), Scrubber.of(look.host)),
        accelerators=read_accelerators(look),
        sys_nice=read_capability(look, "sys_nice", CAP_SYS_NICE),
        sys_resource=read_capability(look, "sys_resource", CAP_SYS_RESOURCE),
        network=read_network(look),
        surroundings=look.host.surroundings(),
        restraints=read_restraints(look, topology.online),
        files_missing=absent_files(look.host),
        unknown=look.unknown,
        recorded=not look.host.live,
        interpreter=look.host.interpreter,
    )
    _LOG.info("examined a machine; %d facts are not known", len(facts.unknown))
    for item in facts.unknown:
        _LOG.debug("%s is not known: %s", item.fact, item.reason)
    preload = look.host.environment().get("LD_PRELOAD", "")
    return replace(facts, preload_missing=dead_preloads(preload, look.host, facts))
