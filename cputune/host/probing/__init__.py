"""``cputune.probe()`` looks at a machine and returns its ``HostFacts``; each file reads a part."""

from __future__ import annotations

import sys
from dataclasses import replace

from cputune.errors import HostError
from cputune.host import Host, LiveHost
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


def probe(host: Host | None = None, *, watched: bool = True) -> HostFacts:
    """Look at a machine: the live one, or the ``host`` that is given.

    ``watched``: other processes are looked at for a moment, to see which of them are busy.

    Raises HostError on a system that is not Linux, where it is the live one. Never raises for
    what a machine does not tell: such facts are None, and
    ``HostFacts.unknown`` holds the reasons. Starts one child at most, for the version
    of mpirun. Imports no package that it looks at.
    """
    if (host is None or host.live) and sys.platform != "linux":
        raise HostError(
            f"this machine runs {_SYSTEMS.get(sys.platform, sys.platform)}, and only Linux is "
            "looked at",
            hint="--root DIR takes a machine that `cputune doctor --record DIR` has recorded",
        )
    look = Look(LiveHost() if host is None else host)
    # The load is read before our own work counts; processes are watched from here to the end.
    load = read_load(look)
    if watched:
        look.host.processes()
    info = read_cpuinfo(look)
    limits = read_limits(look)
    packages = read_packages(look)
    locations = dict.fromkeys(package.location for package in packages if package.location)
    python = look.host.python_version()
    if python is None:
        look.not_known("python", "the recording does not name the interpreter")
    topology = read_topology(look, info, limits.cpuset)
    libraries = read_libraries(look, tuple(locations))
    processes = look.host.processes() if watched else ()
    if processes is None:
        look.not_known("load.busy", "no process can be seen")
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
    )
    _LOG.info("looked at a machine; %d facts are not known", len(facts.unknown))
    for item in facts.unknown:
        _LOG.debug("%s is not known: %s", item.fact, item.reason)
    preload = look.host.environment().get("LD_PRELOAD", "")
    return replace(facts, preload_missing=dead_preloads(preload, look.host, facts))
