"""What stands around training: GPUs, network names, dead preloads, processes that are bound."""

from __future__ import annotations

import re

from cputune.facts import BoundProcess, Network, Topology
from cputune.probing._look import Look, whole_number

CAP_SYS_NICE = 23
"""Its bit in the capability masks (include/uapi/linux/capability.h)."""

_DRIVERS = (
    # a driver that is loaded makes a GPU usable; a card without one is none
    ("nvidia", "/proc/driver/nvidia"),
    ("nvidia", "/dev/nvidiactl"),
    ("amd", "/dev/kfd"),
    ("directx", "/dev/dxg"),
)
MOST_PROCESSES_READ = 4096


def read_accelerators(look: Look) -> tuple[str, ...] | None:
    """Which GPU drivers are there; None where a recording cannot tell."""
    found = tuple(dict.fromkeys(name for name, path in _DRIVERS if look.exists(path)))
    if not found and not all(look.host.knows(path) for _, path in _DRIVERS):
        look.not_known("accelerators", "the recording does not hold the device files")
        return None
    return found


def read_sys_nice(look: Look) -> bool | None:
    """Whether the process holds CAP_SYS_NICE, by its effective capabilities."""
    mask = re.search(r"^CapEff:\s*([0-9a-f]+)$", look.text("/proc/self/status") or "", re.M)
    number = whole_number(mask[1], base=16) if mask else None
    return None if number is None else bool(number >> CAP_SYS_NICE & 1)


def read_network(look: Look) -> Network:
    """The interfaces, and what /etc/hosts makes of the machine's own name."""
    names = look.names("/sys/class/net")
    host_name = look.text("/proc/sys/kernel/hostname")
    hosts = look.text("/etc/hosts")
    addresses = None
    if host_name and hosts is not None:
        rows = [line.partition("#")[0].split() for line in hosts.splitlines()]
        addresses = tuple(row[0] for row in rows if host_name in row[1:])
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


def read_bound_processes(look: Look, topology: Topology) -> tuple[BoundProcess, ...]:
    """Processes bound to fewer CPUs than are online and to others than we are.

    Kernel threads have no memory of their own (no VmSize) and are left out.
    """
    online, ours = topology.online, frozenset(topology.allowed)
    found = []
    for pid in look.numbered("/proc", "")[:MOST_PROCESSES_READ]:
        status = look.text(f"/proc/{pid}/status")
        allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status or "", re.M)
        if status is None or allowed is None or "VmSize:" not in status:
            continue
        cpus = (look.cpus(allowed[1]) or frozenset()) & set(online)
        if cpus and len(cpus) < len(online) and cpus != ours:
            name = re.search(r"^Name:\s*(.*)$", status, re.M)
            found.append(
                BoundProcess(pid=pid, name=name[1] if name else "", cpus=tuple(sorted(cpus)))
            )
    return tuple(found)
