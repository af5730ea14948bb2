"""Limits of cgroups of both versions, nested and in containers, and of the shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import Cgroup, machine
from rows import every_row

from cputune import probe
from cputune.host.facts import Limits

GIB = 1 << 30
POD = (
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0.slice/cri-containerd-0.scope"
)


@pytest.mark.parametrize("version", [1, 2])
def test_quota_memory_and_cpuset(tmp_path: Path, version: int) -> None:
    group = Cgroup(
        version=version,
        path="/docker/0123456789ab",
        quota=2.5,
        memory_bytes=8 * GIB,
        cpuset="0-3",
        throttled=(95, 100),
    )

    facts = probe(machine(tmp_path, cores=8, cgroup=group))

    assert facts.limits.cpu_quota == 2.5
    assert facts.limits.memory_bytes == 8 * GIB
    assert facts.limits.cpuset == (0, 1, 2, 3)
    assert facts.topology.allowed == (0, 1, 2, 3)
    assert (facts.limits.throttled_periods, facts.limits.periods) == (95, 100)
    assert facts.limits.cgroup_version == version
    assert facts.settings.container == "docker"
    for container, files in ((None, {}), ("podman", {"run/.containerenv": ""})):
        other = probe(machine(tmp_path / str(container), cores=1, files=files))
        assert other.settings.container == container


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_of_all_that_stand_above_holds(tmp_path: Path, version: int) -> None:
    """As Kubernetes nests: the pod has the quota, a slice above it the memory limit."""
    pod = Cgroup(version=version, quota=8, memory_bytes=64 * GIB, throttled=(1, 2))
    group = Cgroup(
        version=version,
        path=POD,
        quota=12,
        cpuset="0-15",
        above=(pod, Cgroup(version=version), Cgroup(version=version, memory_bytes=32 * GIB)),
    )

    facts = probe(machine(tmp_path, cores=16, cgroup=group))

    assert facts.limits.cpu_quota == 8
    assert facts.limits.memory_bytes == 32 * GIB
    assert (facts.limits.throttled_periods, facts.limits.periods) == (1, 2)
    assert facts.settings.container == "kubernetes"


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path, version: int) -> None:
    """The mount shows the container's group; /proc/self/cgroup has the host's path or "/"."""
    whole = Cgroup(version=version, path=POD, root=POD, quota=4, cpuset="2-5")
    private = Cgroup(version=version, path="/", root="/", quota=4, cpuset="2-5")

    for name, group in (("whole", whole), ("private", private)):
        facts = probe(machine(tmp_path / name, cores=8, cgroup=group))

        assert facts.limits.cpu_quota == 4
        assert facts.topology.allowed == (2, 3, 4, 5)


def test_hybrid_hierarchies_have_each_controller_once(tmp_path: Path) -> None:
    """systemd's hybrid mode: controllers in version 1, version 2 mounted without any."""
    files = {
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/x\n0::/x\n",
        "proc/self/mountinfo": (
            "31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            "32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
            "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        ),
        "sys/fs/cgroup/unified/cgroup.controllers": "\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
    }

    limits = probe(machine(tmp_path, cores=4, files=files)).limits

    assert (limits.cpu_quota, limits.memory_bytes, limits.cgroup_version) == (3, 4 * GIB, 1)


MOUNTED = "31 25 0:27 / /mnt/cg rw - cgroup2 none rw\n"
OWN = {"proc/self/cgroup": "0::/own\n", "mnt/cg/own/cpu.max": "150000 100000\n"}


def quota(*trees: dict[str, str]) -> float | None:
    files = {path: text for tree in trees for path, text in tree.items()}
    return probe(machine(None, files=files)).limits.cpu_quota


@pytest.mark.parametrize(
    ("point", "directory"),
    # with a space; and no path, from where it went upwards for ever
    [("/mnt/c\\040g", "mnt/c g"), ("a/../b", "b")],
)
def test_a_mount_point_is_any_text(point: str, directory: str) -> None:
    files = {"proc/self/mountinfo": MOUNTED.replace("/mnt/cg", point)}
    assert quota(OWN, files, {f"{directory}/own/cpu.max": "200000 100000\n"}) == 2


@every_row(
    "damage",
    ["rubbish", "1 2 3 4 5 6", "20 25 0:27 / - cgroup2 none rw", "20 25 0:27 / /x rw - cgroup2 x"],
)
def test_damage_among_the_mounts_is_passed_over(damage: str) -> None:
    assert quota(OWN, {"proc/self/mountinfo": f"{damage}\n{MOUNTED}"}) == 1.5


def test_an_empty_cpuset_is_that_of_its_parent(tmp_path: Path) -> None:
    group = Cgroup(version=1, path="/a/b", above=(Cgroup(version=1, cpuset="1-2"),))

    assert probe(machine(tmp_path, cores=4, cgroup=group)).limits.cpuset == (1, 2)


@every_row(
    ("path", "text", "fact"),
    [
        ("cpu.max", "abc 100000\n", "limits.cpu_quota"),
        ("cpu.max", "200000 0\n", "limits.cpu_quota"),
        ("cpu.max", "-5 100000\n", "limits.cpu_quota"),
        ("memory.max", "a lot\n", "limits.memory_bytes"),
        ("memory.max", "", "limits.memory_bytes"),
    ],
)
def test_garbage_in_a_limit_is_unknown(tmp_path: Path, path: str, text: str, fact: str) -> None:
    files = {f"sys/fs/cgroup/a/{path}": text}

    facts = probe(machine(tmp_path, cgroup=Cgroup(path="/a", cpuset="0"), files=files))

    assert facts.limits.cpu_quota is None
    assert facts.limits.memory_bytes is None
    assert path in (facts.why_unknown(fact) or "")


def limits(*trees: dict[str, str]) -> Limits:
    files = {path: text for tree in trees for path, text in tree.items()}
    return probe(machine(None, files={"proc/self/mountinfo": MOUNTED, **files})).limits


@every_row(
    ("text", "seen"),
    [
        ("max 100000", None),
        ("1 100000", 0.00001),
        ("0 100000", None),
        ("100000 1", 100_000),
    ],
)
def test_a_quota_is_time_in_a_period(text: str, seen: float | None) -> None:
    assert limits(OWN, {"mnt/cg/own/cpu.max": text}).cpu_quota == seen


def test_of_processes_the_limit_counts_that_leaves_the_least() -> None:
    files = {
        "proc/self/cgroup": "0::/a/b/c\n",
        "mnt/cg/a/b/c/pids.max": "max\n",
        "mnt/cg/a/b/c/pids.current": "7\n",
        "mnt/cg/a/b/pids.max": "100\n",
        "mnt/cg/a/b/pids.current": "10\n",
        "mnt/cg/a/pids.max": "200\n",
        "mnt/cg/a/pids.current": "150\n",
    }
    found = limits(files)
    assert (found.pids, found.pids_used) == (200, 150)
    free = {path: "max\n" if path.endswith("max") else text for path, text in files.items()}
    found = limits(free)
    assert (found.pids, found.pids_used) == (None, 7)
    assert "pids" in found.unlimited


@pytest.mark.parametrize("damage", ["pids.max", "pids.current"])
def test_a_count_of_processes_that_cannot_be_read_is_unknown(damage: str) -> None:
    group = {"mnt/cg/own/pids.max": "10\n", "mnt/cg/own/pids.current": "1\n"}
    files = {**OWN, **group, f"mnt/cg/own/{damage}": "x\n", "proc/self/mountinfo": MOUNTED}
    facts = probe(machine(None, files=files))
    assert facts.limits.pids is None
    assert "pids.max" in (facts.why_unknown("limits.pids") or "")


def test_a_shell_has_a_soft_and_a_hard_limit() -> None:
    text = (
        "Max processes   100   200   processes\n"
        "Max open files   1024   unlimited   files\n"
        "Max locked memory   x   y   bytes\n"
        "Max cpu time   60   60   seconds\n"
    )
    found = limits({"proc/self/limits": text})
    assert (found.processes, found.open_files, found.open_files_hard) == (100, 1024, None)
    assert found.memlock_bytes is None
    assert (found.cpu_seconds, found.fixed) == (60, ("cpu_seconds",))
    assert "open_files_hard" in found.unlimited
    assert "memlock_bytes" not in found.unlimited
