"""Kernel knobs, and what the shell and the cgroup allow beyond CPUs and memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import Cgroup, machine

from cputune.facts import BusyProcess, Frequency
from cputune.probing import probe

CPU = "sys/devices/system/cpu"


def test_the_governor_of_every_cpu_is_read_not_that_of_the_first(tmp_path: Path) -> None:
    files = {
        f"{CPU}/cpufreq/policy{cpu}/scaling_governor": "powersave" if cpu > 1 else "performance"
        for cpu in range(4)
    }

    settings = probe(machine(tmp_path, cores=4, files=files)).settings

    assert settings.governor == "performance,powersave"
    assert settings.frequencies == (
        Frequency(cpus=(0, 1), governor="performance"),
        Frequency(cpus=(2, 3), governor="powersave"),
    )


def test_policies_name_their_cpus_and_what_the_driver_is_asked_for(tmp_path: Path) -> None:
    files = {}
    for number, cpus in ((0, "0 1"), (2, "2 3"), (4, "\n")):
        policy = f"{CPU}/cpufreq/policy{number}"
        files[f"{policy}/affected_cpus"] = cpus
        files[f"{policy}/scaling_governor"] = "powersave\n"
        files[f"{policy}/scaling_driver"] = "intel_pstate\n"
        files[f"{policy}/energy_performance_preference"] = "performance\n"

    settings = probe(machine(tmp_path, cores=4, files=files)).settings

    assert settings.frequencies == (
        Frequency(
            cpus=(0, 1, 2, 3),
            governor="powersave",
            driver="intel_pstate",
            energy_preference="performance",
        ),
    )


@pytest.mark.parametrize(
    ("value", "balances"), [("0", False), ("1", True), ("2", False), ("3", True)]
)
def test_tiering_between_memories_is_no_balancing(
    tmp_path: Path, value: str, balances: bool
) -> None:
    files = {"proc/sys/kernel/numa_balancing": value}

    assert probe(machine(tmp_path, files=files)).settings.numa_balancing is balances


def test_shared_memory_that_is_full(tmp_path: Path) -> None:
    record = {"disk_bytes": {"/dev/shm": 64 << 20}, "disk_free_bytes": {"/dev/shm": 0}}

    limits = probe(machine(tmp_path, record=record)).limits

    assert (limits.shm_bytes, limits.shm_free_bytes) == (64 << 20, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_processes_of_the_cgroup_are_counted_where_least_are_left(
    tmp_path: Path, version: int
) -> None:
    top = "sys/fs/cgroup" + ("/pids" if version == 1 else "")
    files = {
        f"{top}/a/b/pids.max": "max\n",
        f"{top}/a/b/pids.current": "5\n",
        f"{top}/a/pids.max": "100\n",
        f"{top}/a/pids.current": "90\n",
        "proc/self/limits": "Max processes             512                  1024      processes\n",
    }
    if version == 1:
        files["proc/self/cgroup"] = "3:pids:/a/b\n"
        files["proc/self/mountinfo"] = f"31 25 0:27 / /{top} rw - cgroup cgroup rw,pids\n"

    limits = probe(machine(tmp_path, cgroup=Cgroup(path="/a/b"), files=files)).limits

    assert (limits.pids, limits.pids_used, limits.processes) == (100, 90, 512)


def test_who_computes_is_told_by_name_and_share(tmp_path: Path) -> None:
    processes = [
        {"pid": 4, "name": "sshd", "cpu_share": 0.0},
        {"pid": 5, "name": "train", "cpu_share": 1.5},
        {"pid": 6, "name": "make", "cpu_share": 0.75},
    ]

    facts = probe(machine(tmp_path, cores=4, record={"processes": processes}))

    assert facts.load.busy == (
        BusyProcess(pid=5, name="train", cpu_share=1.5),
        BusyProcess(pid=6, name="make", cpu_share=0.75),
    )
