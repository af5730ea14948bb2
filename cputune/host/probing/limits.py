"""Limits of the container and the shell: CPU quota, cpuset, memory, shared memory, files.

A limit of a cgroup applies to everything below it, so the directories of a group are its own and
those of all parents up to the top of the mount (in a container, its own group).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cputune.host import Host
from cputune.host.facts import Limits
from cputune.host.probing._look import Look, Parsed, count, whole_number
from cputune.text import cpulist

# The limits of ``ulimit``, by their names in /proc/self/limits.
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
# Facts whose value is None if there is no such limit.
LIMITS = ("cpu_quota", "memory_bytes", "pids", "open_files_hard") + tuple(SHELL)
SHM = "/dev/shm"

# cgroup v1 writes "no limit" as the largest page-aligned number.
NO_LIMIT_BYTES = 1 << 62


def read_limits(look: Look) -> Limits:
    """Read the limits of this process: the tightest of its cgroup and all parents."""
    groups = find_groups(look)
    cpu, cpuset, memory, processes = (groups[name] for name in _CONTROLLERS)
    readable = next((group for group in (cpu, cpuset, memory) if group.directories), None)
    facts_of = [
        (cpu, ("cpu_quota", "periods", "throttled_periods")),
        (cpuset, ("cpuset",)),
        (memory, ("memory_bytes",)),
        (processes, ("pids", "pids_used")),
        (readable or cpu, ("cgroup_version", "cgroup_path")),
    ]
    for group, facts in facts_of:
        if group.directories:
            continue
        for fact in facts:
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
    unlimited = []
    for name in LIMITS:
        if getattr(limits, name) is None and not look.is_open(f"limits.{name}"):
            unlimited.append(name)
    return replace(limits, unlimited=tuple(unlimited))


def _limits(
    look: Look, group: Group, fact: str, name: str, read: Callable[[str, str], Parsed | None]
) -> list[tuple[Parsed, str]]:
    """The limits that one file sets in the cgroup and its parents, each with its directory."""
    limits = []
    for directory in group.directories:
        text = look.text(f"{directory}/{name}")
        if text is None or text.startswith(("max", "-1")):
            continue
        limit = look.known(f"limits.{fact}", read(text, directory), f"{directory}/{name}")
        if limit is not None:
            limits.append((limit, directory))
    return limits


def _cpu_quota(look: Look, group: Group) -> tuple[float | None, str | None]:
    """The tightest quota in CPUs and its directory. Without a quota, the directory of the group
    itself.
    """

    def share(text: str, directory: str) -> float | None:
        quota_of, _, period_of = text.partition(" ")
        period = whole_number(period_of or look.text(f"{directory}/cpu.cfs_period_us"))
        quota = whole_number(quota_of)
        if not quota or not period or quota < 0 or period < 0:
            return None
        return quota / period

    name = "cpu.cfs_quota_us"
    if group.version == 2:
        name = "cpu.max"
    quotas = _limits(look, group, "cpu_quota", name, share)
    own_directory = next(iter(group.directories), None)
    return min(quotas, key=lambda quota: quota[0], default=(None, own_directory))


def _cpu_statistics(look: Look, directory: str | None) -> dict[str, int | None]:
    """The number of periods in ``cpu.stat``, and of those in which the group was throttled."""
    if directory is None:
        return {}
    path = f"{directory}/cpu.stat"
    lines = (line.partition(" ") for line in (look.text(path) or "").splitlines())
    statistics = {name: whole_number(number) for name, _, number in lines}
    for fact, name in (("periods", "nr_periods"), ("throttled_periods", "nr_throttled")):
        if statistics.get(name) is None:
            look.not_known(f"limits.{fact}", f"{path} has no {name}")
    return statistics


def _pids(look: Look, group: Group) -> tuple[int | None, int | None]:
    """Limit and number of processes and threads, in the cgroup that has the fewest left."""

    def left(text: str, directory: str) -> tuple[int, int] | None:
        number, used = whole_number(text), look.number(f"{directory}/pids.current")
        if number is None or used is None:
            return None
        return number, used

    limits = [limit for limit, _ in _limits(look, group, "pids", "pids.max", left)]
    if limits or not group.directories:
        return min(limits, key=lambda limit: limit[0] - limit[1], default=(None, None))
    path = f"{group.directories[0]}/pids.current"
    return None, look.known("limits.pids_used", look.number(path), path)


def _cpuset(look: Look, group: Group) -> tuple[int, ...] | None:
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    for directory in group.directories:
        for name in names:
            cpus = look.cpu_list(f"{directory}/{name}")
            if cpus:
                return tuple(sorted(cpus))
    look.not_known("limits.cpuset", "no cgroup of this process lists CPUs")
    return None


def _memory(look: Look, group: Group) -> int | None:
    name = "memory.limit_in_bytes"
    if group.version == 2:
        name = "memory.max"
    limits = _limits(look, group, "memory_bytes", name, lambda text, _: count(text))
    return min((limit for limit, _ in limits if limit < NO_LIMIT_BYTES), default=None)


def _shell_limits(look: Look) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    fixed = []
    for name, title in SHELL.items():
        limits[name] = _shell_limit(look, title, name)
        hard = _shell_limit(look, title, name, hard=True)
        if hard is not None and limits[name] == hard:
            fixed.append(name)
    files = _shell_limit(look, SHELL["open_files"], "open_files_hard", hard=True)
    return limits | {"open_files_hard": files, "fixed": tuple(fixed)}


def _shell_limit(look: Look, title: str, fact: str, *, hard: bool = False) -> int | None:
    """A soft or ``hard`` limit. None if it is unlimited, or unknown with a reason."""
    path = "/proc/self/limits"
    for line in (look.text(path) or "").splitlines():
        if line.startswith(title):
            value = (line.removeprefix(title).split() + ["", ""])[int(hard)]
            number = whole_number(value)
            if number is not None or value == "unlimited":
                return number
    look.not_known(f"limits.{fact}", look.why(path))
    return None


_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The cgroup of the process for one controller. ``directories``: its own first, then its
    parents.
    """

    version: int = 2
    path: str = "/"
    directories: tuple[str, ...] = ()


def find_groups(look: Look) -> dict[str, Group]:
    """The cgroups of the process for cpu, cpuset, memory and pids.

    A controller belongs to one version at a time (cgroups(7)): if a line of /proc/self/cgroup names
    it, it is version 1, else version 2 (``0::``).
    """
    paths: dict[str, str] = {}  # by controller; version 2 has the empty one
    for line in (look.text("/proc/self/cgroup") or "").splitlines():
        controllers, colon, path = line.partition(":")[2].partition(":")
        if not colon or not path.startswith("/"):
            continue
        for controller in controllers.split(","):
            paths.setdefault(controller, path)
    groups: dict[str, Group] = {}
    for line in (look.text("/proc/self/mountinfo") or "").splitlines():
        mount = _cgroup_mount(line)
        if mount is None:
            continue
        version, mounted, root, point = mount
        for controller in _CONTROLLERS:
            owner = 2 if "" in paths else version
            if controller in paths:
                owner = 1
            if controller in groups or controller not in mounted or version != owner:
                continue
            path = paths.get(controller if version == 1 else "", "/")
            directories = _upwards(look, root, point, path)
            if directories:
                groups[controller] = Group(version=version, path=path, directories=directories)
    return {controller: groups.get(controller, Group()) for controller in _CONTROLLERS}


def _cgroup_mount(line: str) -> tuple[int, Sequence[str], str, str] | None:
    """Version, controllers, root and mount point of a line of mountinfo. None if not a cgroup's."""
    before, _, after = line.partition(" - ")
    mount, filesystem = before.split(), after.split()
    if len(mount) < 5 or len(filesystem) < 3 or filesystem[0] not in ("cgroup", "cgroup2"):
        return None
    root, point = (re.sub(r"\\([0-7]{3})", _unescaped, path) for path in mount[3:5])
    point = posixpath.normpath(posixpath.join("/", point))
    if filesystem[0] == "cgroup2":
        return 2, _CONTROLLERS, root, point
    return 1, filesystem[2].split(","), root, point


def _unescaped(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))  # mount tables write a space as \040


def _upwards(look: Look, root: str, point: str, path: str) -> tuple[str, ...]:
    """Directories from the cgroup at ``path`` up to the top of a mount of ``root``.

    In a cgroup namespace, or if only a part of the hierarchy is mounted, the path may be outside of
    the mount. Then only the top can be seen.
    """
    top = root.rstrip("/") + "/"
    below = ""
    if path.startswith(top) and ".." not in path.split("/"):
        below = path.removeprefix(top)
    directory = posixpath.normpath(posixpath.join(point, below))
    if not look.exists(directory):
        directory = point
    directories = []
    while True:
        if look.exists(directory):
            directories.append(directory)
        if directory in (point, "/"):
            return tuple(directories)
        directory = posixpath.dirname(directory)


def watch_cpus(host: Host) -> Callable[[], str | None]:
    """A function that describes which CPUs or quota this process has lost since now, or None."""
    before, quota = host.affinity() or (), _own_quota(host)

    def look() -> str | None:
        now, lower = host.affinity() or (), _own_quota(host)
        gone = cpulist.render(sorted(set(before) - set(now)))
        if gone:
            were = f"CPUs {gone} were"
            if gone.isdigit():
                were = f"CPU {gone} was"
            return (
                f"{were} taken away during the measurement: {cpulist.render(before)} could be "
                f"used at first, {cpulist.render(now) or 'none'} now"
            )
        if lower is None or (quota is not None and lower >= quota):
            return None
        if quota is None:
            return f"a CPU quota of {lower:g} was set during the measurement"
        return f"the CPU quota was lowered during the measurement, from {quota:g} to {lower:g}"

    return look


class _OfProcess(Host):
    """The files of a host, with the cgroups of another process for ours."""

    def __init__(self, host: Host, pid: int) -> None:
        self._host, self._pid = host, pid

    def read_text(self, path: str) -> str:
        return self._host.read_text(path.replace("/proc/self/cgroup", f"/proc/{self._pid}/cgroup"))

    def list_dir(self, path: str) -> tuple[str, ...]:
        return self._host.list_dir(path)

    def exists(self, path: str) -> bool:
        return self._host.exists(path)


def with_quota_of(limits: Limits, host: Host, pid: int) -> Limits:
    """These limits with the CPU quota of another process, and how often that was stopped by it."""
    look = Look(_OfProcess(host, pid))
    quota, directory = _cpu_quota(look, find_groups(look)["cpu"])
    statistics = _cpu_statistics(look, directory)
    return replace(
        limits,
        cpu_quota=quota,
        periods=statistics.get("nr_periods"),
        throttled_periods=statistics.get("nr_throttled"),
    )


def _own_quota(host: Host) -> float | None:
    look = Look(host)
    return _cpu_quota(look, find_groups(look)["cpu"])[0]
