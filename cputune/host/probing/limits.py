"""What container and shell allow: CPU quota, cpuset, memory, shared memory, files.

A cgroup's limit holds for everything below it, so the directories of a group are the process's own
and all its ancestors up to the top of the mount. In a container the top of the mount is the
container's own group, and what lies above it cannot be seen.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cputune.host import Host
from cputune.host.facts import Limits
from cputune.host.probing._look import Look, Parsed, count, whole_number
from cputune.text import cpulist

SHELL = {
    "open_files": "Max open files",
    "memlock_bytes": "Max locked memory",
    "processes": "Max processes",
    "address_space_bytes": "Max address space",
    "file_bytes": "Max file size",
    "data_bytes": "Max data size",
    "stack_bytes": "Max stack size",
    "cpu_seconds": "Max cpu time",
}
"""The limits of ``ulimit``, as /proc/self/limits calls them."""
LIMITS = ("cpu_quota", "memory_bytes", "pids", "open_files_hard", *SHELL)
"""Facts that may be None because there is no such limit."""
SHM = "/dev/shm"

NO_LIMIT_BYTES = 1 << 62
"""Version 1 writes "no limit" as the largest page-aligned number, which depends on the kernel."""


def read_limits(look: Look) -> Limits:
    """Read the limits of the process that asks: the tightest of its cgroup and all above."""
    groups = find_groups(look)
    cpu, cpuset, memory, processes = (groups[name] for name in _CONTROLLERS)
    readable = next((group for group in (cpu, cpuset, memory) if group.directories), None)
    for group, facts in (
        (cpu, ("cpu_quota", "periods", "throttled_periods")),
        (cpuset, ("cpuset",)),
        (memory, ("memory_bytes",)),
        (processes, ("pids", "pids_used")),
        (readable or cpu, ("cgroup_version", "cgroup_path")),
    ):
        for fact in () if group.directories else facts:
            look.not_known(f"limits.{fact}", "no cgroup of this process can be seen")
    quota, quota_directory = _cpu_quota(look, cpu)
    statistics = _cpu_statistics(look, quota_directory)
    pids, pids_used = _pids(look, processes)
    size, free = look.host.disk_bytes(SHM)
    for fact, value in (("shm_bytes", size), ("shm_free_bytes", free)):
        if value is None:
            look.not_known(f"limits.{fact}", f"the size of {SHM} cannot be seen")
    limits = Limits(
        cpu_quota=quota,
        cpuset=_cpuset(look, cpuset),
        memory_bytes=_memory(look, memory),
        shm_bytes=size,
        cgroup_version=None if readable is None else readable.version,
        cgroup_path=None if readable is None else readable.path,
        throttled_periods=statistics.get("nr_throttled"),
        periods=statistics.get("nr_periods"),
        shm_free_bytes=free,
        pids=pids,
        pids_used=pids_used,
        **_shell_limits(look),
    )
    none = (name for name in LIMITS if getattr(limits, name) is None)
    return replace(
        limits, unlimited=tuple(name for name in none if not look.is_open(f"limits.{name}"))
    )


def _limits(
    look: Look, group: Group, fact: str, name: str, read: Callable[[str, str], Parsed | None]
) -> list[tuple[Parsed, str]]:
    """The limits that one file sets in the cgroup and in those above it, each with its directory.

    ``read`` makes a limit of text and directory; None is noted as what is not known.
    """
    found = []
    for directory in group.directories:
        text = look.text(f"{directory}/{name}")
        if text is None or text.startswith(("max", "-1")):
            continue
        limit = look.known(f"limits.{fact}", read(text, directory), f"{directory}/{name}")
        if limit is not None:
            found.append((limit, directory))
    return found


def _cpu_quota(look: Look, group: Group) -> tuple[float | None, str | None]:
    """The tightest quota in CPUs, and the directory that sets it (the own one for none)."""

    def share(text: str, directory: str) -> float | None:
        quota_of, _, period_of = text.partition(" ")
        period = whole_number(period_of or look.text(f"{directory}/cpu.cfs_period_us"))
        quota = whole_number(quota_of)
        return quota / period if quota and period and quota > 0 and period > 0 else None

    name = "cpu.max" if group.version == 2 else "cpu.cfs_quota_us"
    found = _limits(look, group, "cpu_quota", name, share)
    own = next(iter(group.directories), None)
    return min(found, key=lambda candidate: candidate[0], default=(None, own))


def _cpu_statistics(look: Look, directory: str | None) -> dict[str, int | None]:
    """``cpu.stat``: how many periods there were, and in how many the group was throttled."""
    if directory is None:
        return {}
    path = f"{directory}/cpu.stat"
    lines = (line.partition(" ") for line in (look.text(path) or "").splitlines())
    found = {name: whole_number(number) for name, _, number in lines}
    for fact, name in (("periods", "nr_periods"), ("throttled_periods", "nr_throttled")):
        if found.get(name) is None:
            look.not_known(f"limits.{fact}", f"{path} tells no {name}")
    return found


def _pids(look: Look, group: Group) -> tuple[int | None, int | None]:
    """Limit and number of processes and threads, in the cgroup that has the fewest left."""

    def left(text: str, directory: str) -> tuple[int, int] | None:
        number, used = whole_number(text), look.number(f"{directory}/pids.current")
        return None if number is None or used is None else (number, used)

    limits = [limit for limit, _ in _limits(look, group, "pids", "pids.max", left)]
    if limits or not group.directories:
        return min(limits, key=lambda limit: limit[0] - limit[1], default=(None, None))
    path = f"{group.directories[0]}/pids.current"
    return None, look.known("limits.pids_used", look.number(path), path)


def _cpuset(look: Look, group: Group) -> tuple[int, ...] | None:
    """The CPUs of the nearest cgroup that has any; the effective ones where they are told."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    for path in (f"{directory}/{name}" for directory in group.directories for name in names):
        if cpus := look.cpu_list(path):
            return tuple(sorted(cpus))
    look.not_known("limits.cpuset", "no cgroup of this process lists CPUs")
    return None


def _memory(look: Look, group: Group) -> int | None:
    """The tightest memory limit; None where there is none."""
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    found = _limits(look, group, "memory_bytes", name, lambda text, _: count(text))
    return min((limit for limit, _ in found if limit < NO_LIMIT_BYTES), default=None)


def _shell_limits(look: Look) -> dict[str, Any]:
    """The limits of ``ulimit`` by their names in Limits, and which of them only root raises."""
    soft = {name: _shell_limit(look, title, name) for name, title in SHELL.items()}
    hard = {name: _shell_limit(look, title, name, hard=True) for name, title in SHELL.items()}
    fixed = tuple(name for name, most in hard.items() if most is not None and soft[name] == most)
    files = _shell_limit(look, SHELL["open_files"], "open_files_hard", hard=True)
    return {**soft, "open_files_hard": files, "fixed": fixed}


def _shell_limit(look: Look, title: str, fact: str, *, hard: bool = False) -> int | None:
    """A soft or ``hard`` limit by its name; None: unlimited, or unknown with its reason."""
    path = "/proc/self/limits"
    for line in (look.text(path) or "").splitlines():
        if line.startswith(title):
            value = (*line.removeprefix(title).split(), "", "")[int(hard)]
            number = whole_number(value)
            if number is not None or value == "unlimited":
                return number
    look.not_known(f"limits.{fact}", look.why(path))
    return None


_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The cgroup of the process for one controller: own directory first, then upwards.

    Without directories it cannot be seen.
    """

    version: int = 2
    path: str = "/"
    directories: tuple[str, ...] = ()


def find_groups(look: Look) -> dict[str, Group]:
    """The process's cgroups for cpu, cpuset, memory and pids.

    A controller belongs to one version at a time (cgroups(7)): the line of
    /proc/self/cgroup that names it is version 1, else version 2 (``0::``) has it.
    """
    paths: dict[str, str] = {}  # by controller; version 2 has the empty one
    for line in (look.text("/proc/self/cgroup") or "").splitlines():
        controllers, colon, path = line.partition(":")[2].partition(":")
        for controller in controllers.split(",") if colon and path.startswith("/") else ():
            paths.setdefault(controller, path)
    found: dict[str, Group] = {}
    for line in (look.text("/proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if right[0] == "cgroup2" else 1
        held = _CONTROLLERS if version == 2 else right[2].split(",")
        for controller in _CONTROLLERS:
            owner = 2 if "" in paths else version
            if controller in paths:
                owner = 1
            if controller in found or controller not in held or version != owner:
                continue
            path = paths.get(controller if version == 1 else "", "/")
            root, point = (re.sub(r"\\([0-7]{3})", _unescaped, path) for path in left[3:5])
            directories = _upwards(look, root, posixpath.normpath(posixpath.join("/", point)), path)
            if directories:
                found[controller] = Group(version=version, path=path, directories=directories)
    return {controller: found.get(controller, Group()) for controller in _CONTROLLERS}


def _unescaped(octal: re.Match[str]) -> str:
    """A character that mount tables write as a number (``\\040`` is a space)."""
    return chr(int(octal[1], 8))


def _upwards(look: Look, root: str, point: str, path: str) -> tuple[str, ...]:
    """Directories from the cgroup at ``path`` up to the top of a mount, which shows ``root``.

    In a cgroup namespace, or where only a part of the hierarchy is mounted, the path
    may not lie below the mount's root: then the top is all there is to see.
    """
    top = root.rstrip("/") + "/"
    seen = path.startswith(top) and ".." not in path.split("/")
    directory = posixpath.normpath(posixpath.join(point, path.removeprefix(top) if seen else ""))
    if not look.exists(directory):
        directory = point
    found = []
    while True:
        if look.exists(directory):
            found.append(directory)
        if directory in (point, "/"):
            return tuple(found)
        directory = posixpath.dirname(directory)


def watch_cpus(host: Host) -> Callable[[], str | None]:
    """What says, in words, what this process may use less of than now; None where it is nothing.

    A container may be given another cpuset or quota while it runs, and a CPU may go offline.
    """
    before, quota = host.affinity() or (), _own_quota(host)

    def look() -> str | None:
        now, lower = host.affinity() or (), _own_quota(host)
        gone = cpulist.render(sorted(set(before) - set(now)))
        if gone:
            were = "CPU {} was" if gone.isdigit() else "CPUs {} were"
            return (
                f"{were.format(gone)} taken away in the middle: {cpulist.render(before)} could be "
                f"used at first, {cpulist.render(now) or 'none'} now"
            )
        if lower is None or (quota is not None and lower >= quota):
            return None
        if quota is None:
            return f"a CPU quota of {lower:g} was set in the middle"
        return f"the CPU quota was lowered in the middle, from {quota:g} to {lower:g}"

    return look


def _own_quota(host: Host) -> float | None:
    look = Look(host)
    return _cpu_quota(look, find_groups(look)["cpu"])[0]
