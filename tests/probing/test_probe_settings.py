"""Kernel knobs, shared memory, who computes, GPUs, capabilities, names, dead preloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hosts.builder import machine

from cputune import HostFacts, probe
from cputune.host.facts import BusyProcess, Frequency

CPU = "sys/devices/system/cpu"
NO_DRIVERS = dict.fromkeys(("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"), False)


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


def test_policies_name_their_cpus_and_the_preference_of_the_driver(tmp_path: Path) -> None:
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


def test_who_computes_is_reported_by_name_and_share(tmp_path: Path) -> None:
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


def facts(root: Path, *, files: dict[str, str] | None = None, **record: Any) -> HostFacts:
    return probe(machine(root, cores=4, files=files, record=record))


def test_no_driver_is_no_gpu_and_no_answer_is_unknown(tmp_path: Path) -> None:
    assert facts(tmp_path / "a", paths=NO_DRIVERS).accelerators == ()
    assert facts(tmp_path / "b", paths={"/dev/kfd": True}).accelerators == ("amd",)
    silent = facts(tmp_path / "c")
    assert silent.accelerators is None
    assert silent.why_unknown("accelerators")


@pytest.mark.parametrize(
    ("mask", "held"), [("000001ffffffffff", True), ("00000000a80425fb", False)]
)
def test_sys_nice_is_a_bit_of_the_capabilities(tmp_path: Path, mask: str, held: bool) -> None:
    found = facts(tmp_path, files={"/proc/self/status": f"Name:\tx\nCapEff:\t{mask}\n"})
    assert found.sys_nice is held


def test_the_own_name_is_looked_up_in_etc_hosts(tmp_path: Path) -> None:
    hosts = "127.0.0.1 localhost\n127.0.1.1 box box.local # Debian\n10.0.0.7 boxer\n"
    files = {"/proc/sys/kernel/hostname": "box\n", "/etc/hosts": hosts}
    assert facts(tmp_path, files=files).network.hostname_addresses == ("127.0.1.1",)


def test_dead_preloads_are_those_known_not_to_be_there(tmp_path: Path) -> None:
    entries = ("/gone.so", "/there.so", "/never/looked/at.so", "libplain.so", "/usr/$LIB/x.so")
    more = ("libtcmalloc.so.4", "libjemalloc.so.2", "${CONDA_PREFIX}/lib/libjemalloc.so")
    found = facts(
        tmp_path,
        environment={"LD_PRELOAD": ":".join((*entries, *more))},
        paths={"/gone.so": False, "/there.so": True, "/usr/$LIB/x.so": False},
        directories={"/usr/lib64": ["libjemalloc.so.2"]},
    )
    assert found.preload_missing == ("/gone.so", "libtcmalloc.so.4", more[-1])
