"""What slows a process down beside its limits: read from cgroups, /proc and cpufreq."""

import sys

from hosts.builder import Cgroup, machine
from unknown_machine import UNKNOWN

from cputune import probe
from cputune.host import LiveHost
from cputune.host.facts import FrequencyCap
from cputune.host.probing.installed import dead_preloads

POLICY = "/sys/devices/system/cpu/cpufreq/policy0"


def restraints(files, **shape):
    return probe(machine(None, files=files, **shape)).restraints


def test_of_a_cgroup_and_those_above_the_tightest_counts():
    group = Cgroup(path="/pod/box", above=(Cgroup(path="/pod"), Cgroup(path="/")))
    top = "/sys/fs/cgroup"
    files = {
        f"{top}/pod/box/memory.high": "max\n",
        f"{top}/pod/memory.high": "4294967296\n",
        f"{top}/pod/box/cpu.weight": "100\n",
        f"{top}/pod/cpu.weight": "1\n",
        f"{top}/pod/box/cpu.idle": "0\n",
        f"{top}/pod/cpu.idle": "1\n",
        f"{top}/pod/box/cpuset.mems.effective": "1\n",
    }
    found = restraints(files, cgroup=group)
    assert (found.memory_high_bytes, found.cpu_weight, found.cpu_idle) == (4 << 30, 1, True)
    assert found.memory_nodes == (1,)


def test_a_frequency_below_what_the_cpu_can():
    files = {
        f"{POLICY}/affected_cpus": "0 1",
        f"{POLICY}/scaling_max_freq": "1200000",
        f"{POLICY}/cpuinfo_max_freq": "3800000",
        "/sys/devices/system/cpu/intel_pstate/max_perf_pct": "50",
    }
    found = restraints(files)
    cap = FrequencyCap(cpus=(0, 1), allowed_khz=1_200_000, most_khz=3_800_000)
    assert (found.frequency_caps, found.max_perf_percent) == ((cap,), 50)
    whole = {**files, f"{POLICY}/scaling_max_freq": "3800000"}
    assert restraints(whole).frequency_caps == ()


def test_what_can_still_be_reserved_counts_only_if_nothing_is_overcommitted():
    memory = "MemTotal: 100 kB\nCommitLimit: 4096 kB\nCommitted_AS: 1024 kB\n"
    mode = "/proc/sys/vm/overcommit_memory"
    assert restraints({mode: "2", "/proc/meminfo": memory}).commit_left_bytes == 3 << 20
    assert restraints({mode: "0", "/proc/meminfo": memory}).commit_left_bytes is None


def test_the_share_of_time_in_which_the_package_was_throttled():
    path = "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_total_time_ms"
    assert restraints({path: "5000", "/proc/uptime": "100.00 190.00"}).throttled_share == 0.05
    assert restraints({path: "5000", "/proc/uptime": ""}).throttled_share is None


def test_a_preload_that_is_no_library_is_named_on_the_live_machine(tmp_path):
    script = tmp_path / "tcmalloc.sh"
    script.write_text("#!/bin/sh\n")
    assert dead_preloads(f"{script}:{sys.executable}", LiveHost(), UNKNOWN) == (str(script),)
