"""What container and shell allow: CPU quota, cpuset, memory, shared memory, files."""

from __future__ import annotations

import re

from cputune.facts import Limits
from cputune.probing._cgroup import Group, find_groups
from cputune.probing._look import Look, whole_number

NO_LIMIT_BYTES = 1 << 62
"""Version 1 writes "no limit" as the largest page-aligned number, which depends on the kernel."""


def read_limits(look: Look) -> Limits:
    """Read the limits of the process that asks: the tightest of its cgroup and all above."""
    groups = find_groups(look)
    cpu, cpuset, memory = (groups.get(name) for name in ("cpu", "cpuset", "memory"))
    for fact, group in (("cpu_quota", cpu), ("cpuset", cpuset), ("memory_bytes", memory)):
        if group is None:
            look.not_known(f"limits.{fact}", "no cgroup of this process can be seen")
    quota, quota_directory = _cpu_quota(look, cpu)
    statistics = _cpu_statistics(look, quota_directory)
    told = cpu or cpuset or memory
    return Limits(
        cpu_quota=quota,
        cpuset=_cpuset(look, cpuset),
        memory_bytes=_memory(look, memory),
        shm_bytes=_shared_memory(look),
        open_files=_shell_limit(look, "NOFILE", "Max open files", "open_files"),
        memlock_bytes=_shell_limit(look, "MEMLOCK", "Max locked memory", "memlock_bytes"),
        cgroup_version=None if told is None else told.version,
        cgroup_path=None if told is None else told.path,
        throttled_periods=statistics.get("nr_throttled"),
        periods=statistics.get("nr_periods"),
    )


def _cpu_quota(look: Look, group: Group | None) -> tuple[float | None, str | None]:
    """The tightest quota in CPUs, and the directory that sets it (the own one for none)."""
    if group is None:
        return None, None
    tightest: tuple[float, str] | None = None
    for directory in group.directories:
        quota = _quota_of(look, directory, group.version)
        if quota is not None and (tightest is None or quota < tightest[0]):
            tightest = (quota, directory)
    return tightest or (None, group.directories[0])


def _quota_of(look: Look, directory: str, version: int) -> float | None:
    """Quota over period of one cgroup: ``cpu.max``, or the two ``cpu.cfs_*`` files."""
    if version == 2:
        text = look.text(f"{directory}/cpu.max")
        first, _, second = (text or "max").partition(" ")
        if first == "max":
            return None
        quota, period = whole_number(first), whole_number(second) if second else 100_000
        path = f"{directory}/cpu.max"
    else:
        path = f"{directory}/cpu.cfs_quota_us"
        if look.text(path) is None:
            return None
        quota, period = look.number(path), look.number(f"{directory}/cpu.cfs_period_us")
        if quota == -1:
            return None
    if quota is None or period is None or quota <= 0 or period <= 0:
        look.not_known("limits.cpu_quota", look.why(path))
        return None
    return quota / period


def _cpu_statistics(look: Look, directory: str | None) -> dict[str, int]:
    """``cpu.stat``: how many periods there were, and in how many the group was throttled."""
    if directory is None:
        return {}
    found = {}
    for line in (look.text(f"{directory}/cpu.stat") or "").splitlines():
        name, _, number = line.partition(" ")
        count = whole_number(number)
        if count is not None:
            found[name] = count
    return found


def _cpuset(look: Look, group: Group | None) -> tuple[int, ...] | None:
    """The CPUs of the nearest cgroup that has any; the effective ones where they are told."""
    if group is None:
        return None
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus")
    for directory in group.directories:
        for name in names:
            cpus = look.cpu_list(f"{directory}/{name}")
            if cpus:
                return tuple(sorted(cpus))
    look.not_known("limits.cpuset", "no cgroup of this process lists CPUs")
    return None


def _memory(look: Look, group: Group | None) -> int | None:
    """The tightest memory limit; None where there is none."""
    if group is None:
        return None
    limits = []
    for directory in group.directories:
        if group.version == 2:
            path = f"{directory}/memory.max"
            text = look.text(path)
            if text in (None, "max"):
                continue
            limit = whole_number(text)
        else:
            path = f"{directory}/memory.limit_in_bytes"
            if look.text(path) is None:
                continue
            limit = look.number(path)
            # It knows of ancestors that are not mounted here.
            above = re.search(
                r"^hierarchical_memory_limit (\d{1,20})$",
                look.text(f"{directory}/memory.stat") or "",
                re.MULTILINE,
            )
            if above:
                limits.append(int(above[1]))
        if limit is None or limit < 0:
            look.not_known("limits.memory_bytes", look.why(path))
        else:
            limits.append(limit)
    return min((limit for limit in limits if limit < NO_LIMIT_BYTES), default=None)


def _shared_memory(look: Look) -> int | None:
    """Size of the file system at /dev/shm; of a recording the mount's ``size=`` option."""
    size = look.host.disk_bytes("/dev/shm")
    if size is not None:
        return size
    found = None
    for line in (look.text("/proc/self/mountinfo") or "").splitlines():
        parts = line.split()
        if len(parts) >= 5 and parts[4] == "/dev/shm":
            option = re.search(r"\bsize=(\d{1,15})([kmg]?)\b", parts[-1])
            found = option and int(option[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[option[2]]
    if found is None:
        look.not_known("limits.shm_bytes", "the size of /dev/shm cannot be seen")
    return found


def _shell_limit(look: Look, name: str, title: str, fact: str) -> int | None:
    """A soft limit from /proc/self/limits; None is unlimited, or unknown with its reason."""
    text = look.text("/proc/self/limits")
    for line in (text or "").splitlines():
        if line.startswith(title):
            soft = line.removeprefix(title).split()[:1]
            if soft == ["unlimited"]:
                return None
            number = whole_number(soft[0]) if soft else None
            if number is not None:
                return number
    limit = look.host.resource_limit(name)
    if limit is None and not look.host.live:
        look.not_known(f"limits.{fact}", look.why("/proc/self/limits"))
    return limit
