"""What stands around training: GPUs, network names, dead preloads, processes that are bound."""

from __future__ import annotations

import re

from cputune.facts import BoundProcess, Network, Topology
from cputune.host import Process
from cputune.probing._look import Look, whole_number

CAP_SYS_NICE, CAP_SYS_RESOURCE = 23, 24
"""Their bits in the capability masks (include/uapi/linux/capability.h)."""

_DRIVERS = (
    # a driver that is loaded makes a GPU usable; a card without one is none
    ("nvidia", "/proc/driver/nvidia"),
    ("nvidia", "/dev/nvidiactl"),
    ("amd", "/dev/kfd"),
    ("directx", "/dev/dxg"),
)
STATUS = "/proc/self/status"
HOST_NAME = "/proc/sys/kernel/hostname"
HOSTS = "/etc/hosts"


def read_accelerators(look: Look) -> tuple[str, ...] | None:
    """Which GPU drivers are there; None where a recording cannot tell."""
    found = tuple(dict.fromkeys(name for name, path in _DRIVERS if look.exists(path)))
    if not found and not all(look.host.knows(path) for _, path in _DRIVERS):
        look.not_known("accelerators", "the recording does not hold the device files")
        return None
    return found


def read_capability(look: Look, fact: str, bit: int) -> bool | None:
    """Whether the process holds a capability, by its effective ones."""
    mask = re.search(r"^CapEff:\s*([0-9a-f]+)$", look.text(STATUS) or "", re.M)
    number = whole_number(mask[1], base=16) if mask else None
    if number is None:
        look.not_known(fact, look.why(STATUS))
        return None
    return bool(number >> bit & 1)


def read_network(look: Look) -> Network:
    """The interfaces, and what /etc/hosts makes of the machine's own name."""
    names = look.names("/sys/class/net")
    if not names:
        look.not_known("network.interfaces", "/sys/class/net shows none")
    host_name = look.text(HOST_NAME)
    hosts = look.text(HOSTS)
    addresses = None
    if host_name and hosts is not None:
        rows = [line.partition("#")[0].split() for line in hosts.splitlines()]
        addresses = tuple(row[0] for row in rows if host_name in row[1:])
    else:
        look.not_known("network.hostname_addresses", look.why(HOSTS if host_name else HOST_NAME))
    return Network(interfaces=names or None, hostname_addresses=addresses)


def read_preload_missing(look: Look) -> tuple[str, ...]:
    """Absolute paths in LD_PRELOAD that no file has; ld.so goes on without them.

    Nothing is said of paths that a recording does not know of.
    """
    entries = re.split(r"[:\s]+", look.host.environment().get("LD_PRELOAD", ""))
    return tuple(
        entry
        for entry in entries
        if "/" in entry  # else ld.so searches for it; it also expands $LIB and $ORIGIN itself
        and "$" not in entry
        and look.host.knows(entry)
        and not look.exists(entry)
    )


def bound_processes(processes: tuple[Process, ...], topology: Topology) -> tuple[BoundProcess, ...]:
    """Those that are bound to fewer CPUs than are online, and to others than we are."""
    online, ours = frozenset(topology.online), frozenset(topology.allowed)
    return tuple(
        BoundProcess(pid=process.pid, name=process.name, cpus=cpus)
        for process in processes
        if (cpus := tuple(cpu for cpu in process.cpus if cpu in online))
        and len(cpus) < len(online)
        and frozenset(cpus) != ours
    )
