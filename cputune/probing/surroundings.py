"""What stands around training: GPUs, dead preloads, processes that are bound."""

from __future__ import annotations

import re

from cputune.facts import BoundProcess, HostFacts, Topology
from cputune.host import Host, Process
from cputune.probing._look import Look, whole_number
from cputune.probing.libraries import SYSTEM_DIRECTORIES, is_looked_for

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


def dead_preloads(text: str, host: Host, facts: HostFacts) -> tuple[str, ...]:
    """What LD_PRELOAD names and ld.so cannot load; it goes on without.

    ``facts`` hold the libraries that were found. Nothing is said of paths that a recording
    does not know of, nor of bare names that are not looked for.
    """
    entries = dict.fromkeys(entry for entry in re.split(r"[:\s]+", text) if entry)
    return tuple(entry for entry in entries if _is_dead(entry, host, facts))


def _is_dead(entry: str, host: Host, facts: HostFacts) -> bool:
    if "$" in entry:
        # ld.so expands these three; a shell would have expanded any other.
        return not re.search(r"\$\{?(LIB|ORIGIN|PLATFORM)\b", entry)
    if "/" in entry:
        return host.knows(entry) and not host.is_readable_file(entry)
    if not is_looked_for(entry):
        return False
    searched = (*facts.environment.get("LD_LIBRARY_PATH", "").split(":"), *SYSTEM_DIRECTORIES)
    places = [lib.path.rpartition("/") for lib in facts.libraries]
    return not any(file.startswith(entry) and place in searched for place, _, file in places)


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
