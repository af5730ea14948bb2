"""A real kernel with two sockets of two cores of two threads, and two NUMA nodes."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import recordings
from hosts.lscpu import COMMAND, assert_as_lscpu
from vm.guest import Guest

from cputune import RecordedHost, probe
from cputune.report.machine_text import host_document
from cputune.text import cpulist

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

CPU = "/sys/devices/system/cpu"
CGROUP = "/sys/fs/cgroup"
GIB = 1 << 30
Document = dict[str, Any]


def inside(cgroup: str) -> str:
    """A prefix that starts a command as a member of a cgroup."""
    return f"sh -c 'echo $$ > {cgroup}/cgroup.procs; exec \"$@\"' sh"


STATES = {
    # of a recording: what to do before, what to undo, and within what the doctor is started
    "whole": ("true", "true", ""),
    "cpus-offline": (
        f"echo 0 > {CPU}/cpu2/online; echo 0 > {CPU}/cpu5/online",
        f"echo 1 > {CPU}/cpu2/online; echo 1 > {CPU}/cpu5/online",
        "",
    ),
    "smt-off": (f"echo off > {CPU}/smt/control", f"echo on > {CPU}/smt/control", ""),
    "container": (
        f"mkdir {CGROUP}/job; cd {CGROUP}/job; echo 150000 100000 > cpu.max;"
        f"echo 2-5 > cpuset.cpus; echo {GIB} > memory.max",
        f"rmdir {CGROUP}/job",
        inside(f"{CGROUP}/job"),
    ),
}


@contextlib.contextmanager
def changed(guest: Guest, do: str, undo: str) -> Iterator[None]:
    """The guest in another state, for a while."""
    guest.run(do)
    try:
        yield
    finally:
        guest.run(undo)


def doctor(guest: Guest, within: str = "") -> Document:
    """The document of a doctor that is started ``within`` a command, such as taskset."""
    ended = guest.run(f"{within} python3 -m cputune doctor --json --fail-on never".strip())
    document: Document = json.loads(ended.stdout)
    return document


def host(guest: Guest, within: str = "") -> Document:
    found: Document = doctor(guest, within)["host"]
    return found


def codes(document: Document) -> set[str]:
    return {finding["code"] for finding in document["findings"]}


def test_the_whole_machine_is_as_lscpu_says(guest: Guest) -> None:
    whole = host(guest)
    topology = whole["topology"]

    assert_as_lscpu(topology, guest.run(COMMAND).stdout)
    assert (topology["sockets"], topology["physical_cores"]) == (2, 4)
    assert topology["allowed"] == "0-7"
    assert [node["cpus"] for node in topology["numa_nodes"]] == ["0-3", "4-7"]
    assert not topology["hybrid"]
    nodes = guest.run("grep -h MemTotal /sys/devices/system/node/node*/meminfo").stdout
    assert [node["memory_bytes"] for node in topology["numa_nodes"]] == [
        1024 * int(line.split()[3]) for line in nodes.splitlines()
    ]
    assert {"cpu_quota", "memory_bytes", "pids"} <= set(whole["limits"]["unlimited"])


@pytest.mark.parametrize("cpus", ["3", "2,5-7", "4,6"])
def test_cpus_that_are_taken_offline(guest: Guest, cpus: str) -> None:
    switch = "".join(f"echo {{0}} > {CPU}/cpu{cpu}/online; " for cpu in cpulist.parse(cpus))
    with changed(guest, switch.format(0), switch.format(1)):
        document = doctor(guest)
        topology = document["host"]["topology"]
        assert_as_lscpu(topology, guest.run(COMMAND).stdout)
        assert topology["offline"] == cpus
        assert "cpus-offline" in codes(document)


def test_smt_that_is_switched_off(guest: Guest) -> None:
    do, undo, _ = STATES["smt-off"]
    with changed(guest, do, undo):
        document = doctor(guest)
        topology = document["host"]["topology"]
        assert_as_lscpu(topology, guest.run(COMMAND).stdout)
        assert (topology["physical_cores"], topology["threads_per_core"]) == (4, 1)
        assert document["host"]["settings"]["smt"] == "off"
        assert "cpus-offline" not in codes(document)


@pytest.mark.parametrize("cpus", ["2-5", "7", "1,3,5"])
def test_taskset_is_what_is_allowed(guest: Guest, cpus: str) -> None:
    document = doctor(guest, f"taskset --cpu-list {cpus}")
    topology = document["host"]["topology"]

    assert topology["allowed"] == cpus
    assert topology["online"] == "0-7"
    assert document["host"]["limits"]["cpuset"] == "0-7"
    assert "shell-bound" in codes(document)
    assert ("one-core" in codes(document)) == (cpus == "7")


@pytest.fixture
def cgroup(guest: Guest) -> Iterator[str]:
    """A cgroup of version 2 that has all controllers; its limits hold for ``within(cgroup)``."""
    path = f"{CGROUP}/job"
    guest.run(f"mkdir {path}")
    yield path
    guest.run(f"rmdir {path}/* 2> /dev/null; rmdir {path}")


def test_a_quota_and_a_cpuset_and_limits_of_a_cgroup(guest: Guest, cgroup: str) -> None:
    guest.run(f"echo 150000 100000 > {cgroup}/cpu.max; echo 2-5 > {cgroup}/cpuset.cpus")
    guest.run(f"echo {GIB} > {cgroup}/memory.max; echo 40 > {cgroup}/pids.max")

    document = doctor(guest, inside(cgroup))
    limits = document["host"]["limits"]

    assert (limits["cpu_quota"], limits["cpuset"]) == (1.5, "2-5")
    assert (limits["memory_bytes"], limits["pids"]) == (GIB, 40)
    assert document["host"]["topology"]["allowed"] == "2-5"
    assert limits["cgroup_version"] == 2
    assert limits["periods"] >= limits["throttled_periods"] >= 0
    assert {"quota-threads", "processes-few"} <= codes(document)


def test_the_tightest_quota_above_holds(guest: Guest, cgroup: str) -> None:
    guest.run(f"echo 300000 100000 > {cgroup}/cpu.max; echo +cpu > {cgroup}/cgroup.subtree_control")
    guest.run(f"mkdir {cgroup}/inner; echo 500000 100000 > {cgroup}/inner/cpu.max")

    limits = host(guest, inside(f"{cgroup}/inner"))["limits"]

    assert limits["cpu_quota"] == 3
    assert limits["cgroup_path"] == "/job/inner"


@pytest.mark.parametrize(("value", "balances"), [(0, False), (1, True), (2, False)])
def test_numa_balancing_is_read_from_its_sysctl(guest: Guest, value: int, balances: bool) -> None:
    sysctl = "/proc/sys/kernel/numa_balancing"
    before = guest.run(f"cat {sysctl}").stdout.strip()
    with changed(guest, f"echo {value} > {sysctl}", f"echo {before} > {sysctl}"):
        document = doctor(guest)
    assert document["host"]["settings"]["numa_balancing"] is balances
    assert ("numa-balancing" in codes(document)) == balances


def test_the_own_name_on_loopback_is_found_for_a_job_on_two_nodes(guest: Guest) -> None:
    document = doctor(guest, "env PET_NNODES=2 MASTER_ADDR=10.0.0.7 MASTER_PORT=29500")

    assert document["host"]["network"]["hostname_addresses"] == ["127.0.1.1"]
    assert "gloo-loopback" in codes(document)


def test_shared_memory_that_is_full(guest: Guest) -> None:
    fill = 'fallocate --length "$(df --output=avail -B1 /dev/shm | tail -1)" /dev/shm/left'
    with changed(guest, fill, "rm /dev/shm/left"):
        assert "shm-small" in codes(doctor(guest))


def test_the_limit_of_processes(guest: Guest) -> None:
    user = "setpriv --reuid 65534 --clear-groups --bounding-set=-all --inh-caps=-all"
    document = doctor(guest, f"prlimit --nproc=30 env HOME=/tmp {user}")

    assert document["host"]["limits"]["processes"] == 30
    assert "processes-few" in codes(document)


def test_a_busy_neighbour_is_named(guest: Guest) -> None:
    spin = "taskset --cpu-list 6 sh -c 'while :; do :; done'"
    begin = f"{spin} < /dev/null > /dev/null 2>&1 & echo $! > /tmp/busy"
    with changed(guest, begin, "kill $(cat /tmp/busy)"):
        found = host(guest)

    assert "sh" in {process["name"] for process in found["load"]["busy"]}


@pytest.mark.parametrize("format", ["mpirun", "torchrun"])
def test_ranks_of_an_emitted_launch_are_one_on_each_socket(guest: Guest, format: str) -> None:
    seen = launch(guest, format)

    assert [rank["cpus"] for rank in seen] == [[0, 2], [4, 6]]
    assert [rank["OMP_NUM_THREADS"] for rank in seen] == ["2", "2"]
    assert [rank["WORLD_SIZE"] for rank in seen] == ["2", "2"]


def test_ranks_keep_inside_what_is_allowed(guest: Guest) -> None:
    seen = launch(guest, "mpirun", "taskset --cpu-list 1,2,5,7")

    assert [rank["cpus"] for rank in seen] == [[1, 2], [5, 7]]


def test_ranks_keep_off_a_cpu_that_is_offline(guest: Guest) -> None:
    switch = f"{CPU}/cpu2/online"
    with changed(guest, f"echo 0 > {switch}", f"echo 1 > {switch}"):
        seen = launch(guest, "mpirun")
    assert [rank["cpus"] for rank in seen] == [[0, 3], [4, 6]]


@pytest.mark.parametrize("name", recordings.NAMES)
def test_a_recording_replays_as_the_machine_it_was(
    guest: Guest, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before, after, within = STATES[name]
    with changed(guest, before, after):
        lscpu = guest.run(COMMAND).stdout
        live = host(guest, within)
        guest.run(f"{within} python3 -m cputune doctor --record /tmp/recording --fail-on never")
        packed = guest.run("tar -C /tmp/recording -c . | base64; rm -r /tmp/recording").stdout
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
        recordings.unpack(archive, tmp_path)

    replayed = host_document(probe(RecordedHost(tmp_path)))

    assert_as_lscpu(replayed["topology"], lscpu)
    live["network"]["links"] = None  # no recording has addresses
    for part in ("cpu", "settings", "packages", "launchers", "libraries", "network"):
        assert replayed[part] == live[part], part
    for fact in ("cpu_quota", "cpuset", "memory_bytes", "pids", "shm_bytes"):
        assert replayed["limits"][fact] == live["limits"][fact], fact
    if request.config.getoption("--update-golden"):
        recordings.keep(name, tmp_path, lscpu)


def launch(guest: Guest, format: str, within: str = "") -> list[Document]:
    """Emit a launch in the guest, run it there, and return what each rank saw."""
    guest.run(
        f"rm -rf /tmp/out /tmp/seen; {within} python3 -m cputune emit --format {format} "
        "-o /tmp/out -- /project/tests/vm/witness.py /tmp/seen"
    )
    guest.run(f"{within} /tmp/out/{format}.sh", timeout_seconds=1200)
    text = guest.run("cat /tmp/seen/rank-*.json | sed 's/}{/}\\n{/g'").stdout
    ranks = [json.loads(line) for line in text.splitlines()]
    return sorted(ranks, key=lambda rank: int(rank["RANK"]))
