"""Reads what slows this process down besides its limits: weights, priorities, caps, throttling."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cputune.host.facts import FrequencyCap, Restraints
from cputune.host.probing._look import CPU_DIR, Look, cpus_of, fields, kibibytes, whole_number
from cputune.host.probing.limits import Group, find_groups

STAT = "/proc/self/stat"
# Fields of /proc/self/stat, counted from 0 (proc_pid_stat(5)).
NICE, POLICY = 18, 40
POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}

OVERCOMMIT = "/proc/sys/vm/overcommit_memory"
# The mode in which the kernel does not promise more memory than there is (proc(5)).
NEVER_OVERCOMMIT = 2
MEMINFO = "/proc/meminfo"
UPTIME = "/proc/uptime"


def read_restraints(look: Look, online: tuple[int, ...]) -> Restraints:
    """Read what slows the process down. Weights and memory.high exist only in cgroups of version
    2.
    """
    groups = find_groups(look)
    nice, policy = _priority(look)
    return Restraints(
        memory_high_bytes=_smallest(look, groups["memory"], "memory.high"),
        cpu_weight=_smallest(look, groups["cpu"], "cpu.weight"),
        cpu_idle=_smallest(look, groups["cpu"], "cpu.idle", largest=True) == 1 or None,
        memory_nodes=_memory_nodes(look, groups["cpuset"]),
        nice=nice,
        policy=policy,
        frequency_caps=tuple(_caps(look, online)),
        max_perf_percent=look.number(f"{CPU_DIR}/intel_pstate/max_perf_pct"),
        commit_left_bytes=_commit_left(look),
        throttled_share=_throttled(look),
    )


def _smallest(look: Look, group: Group, name: str, *, largest: bool = False) -> int | None:
    """The smallest (or ``largest``) number in this file of the cgroup and its parents."""
    if group.version != 2:
        return None
    numbers = []
    for directory in group.directories:
        number = look.number(f"{directory}/{name}")
        if number is not None:
            numbers.append(number)
    if largest:
        return max(numbers, default=None)
    return min(numbers, default=None)


def _memory_nodes(look: Look, group: Group) -> tuple[int, ...] | None:
    names = ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems")
    for directory in group.directories:
        for name in names:
            nodes = look.cpu_list(f"{directory}/{name}")
            if nodes:
                return tuple(sorted(nodes))
    return None


def _priority(look: Look) -> tuple[int | None, str | None]:
    # The program's name is in parentheses and may contain spaces.
    parts = (look.text(STAT) or "").rpartition(")")[2].split()
    if len(parts) <= POLICY - 2:
        return None, None
    nice, policy = whole_number(parts[NICE - 2]), whole_number(parts[POLICY - 2])
    if policy is None:
        return nice, None
    return nice, POLICIES.get(policy)


def _caps(look: Look, online: tuple[int, ...]) -> Iterator[FrequencyCap]:
    """Groups of CPUs with a maximum frequency below what they can do."""
    base = f"{CPU_DIR}/cpufreq"
    for number in look.numbered(base, "policy"):
        directory = f"{base}/policy{number}"
        allowed = look.number(f"{directory}/scaling_max_freq")
        most = look.number(f"{directory}/cpuinfo_max_freq")
        if allowed is None or most is None or allowed >= most:
            continue
        listed = look.text(f"{directory}/affected_cpus")
        cpus: frozenset[int] | None = frozenset({number})
        if listed is not None:
            cpus = cpus_of(listed.replace(" ", ","))
        yield FrequencyCap(
            cpus=tuple(sorted((cpus or frozenset()) & frozenset(online))),
            allowed_khz=allowed,
            most_khz=most,
        )


def _commit_left(look: Look) -> int | None:
    if look.number(OVERCOMMIT) != NEVER_OVERCOMMIT:
        return None
    memory = fields(look.text(MEMINFO))
    limit = kibibytes(memory.get("CommitLimit"))
    used = kibibytes(memory.get("Committed_AS"))
    if limit is None or used is None:
        return None
    return max(0, limit - used)


def _throttled(look: Look) -> float | None:
    """The share of the time since boot in which the first package was throttled for heat."""
    text = look.text(f"{CPU_DIR}/cpu0/thermal_throttle/package_throttle_total_time_ms")
    uptime = re.match(r"\d+(?:\.\d+)?", look.text(UPTIME) or "")
    milliseconds = whole_number(text)
    if milliseconds is None or uptime is None or float(uptime[0]) <= 0:
        return None
    return min(1.0, milliseconds / 1000 / float(uptime[0]))
