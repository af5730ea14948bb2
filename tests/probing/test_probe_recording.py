"""A recording replays as the same document, and names neither person nor machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts.builder import Cgroup, machine
from hypothesis import given, strategies as st
from rows import every_row

from cputune import CannotError, RecordedHost, probe
from cputune.host import Completed, LiveHost
from cputune.host.probing.recording import record
from cputune.host.probing.scrub import Scrubber
from cputune.report.machine_text import host_document

POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7f3a_91c2.slice"
UNTOUCHED = {
    "python": "3.11.7",
    "affinity": "0-27",
    "environment": {"OMP_NUM_THREADS": "8", "LD_PRELOAD": "/usr/lib64/libjemalloc.so.2:/no/x.so"},
    "packages": [
        {
            "name": "torch",
            "version": "2.8.0",
            "location": "/opt/venv/lib/python3.11/site-packages",
            "requires": ["sympy"],
            "installer": "pip",
            "others": ["2.6.0"],
        },
        {"name": "numpy", "version": None},
    ],
    "launchers": {
        "mpirun": {
            "path": "/usr/bin/mpirun",
            "answer": {"returncode": 0, "stdout": "mpirun (Open MPI) 4.1.4\n", "stderr": ""},
        },
        "mpiexec.hydra": {"path": "/opt/x/mpiexec.hydra", "error": 8},
    },
    "disk_bytes": {"/dev/shm": 67108864},
    "cpuid": {"7.1": [0, 0, 0, 0]},
    "unreadable": {"/proc/sys/kernel/numa_balancing": 13},
    "files": {"/opt/venv/lib/python3.11/site-packages/torch/version.py": "cuda = '12.8'\n"},
    "directories": {"/usr/lib64": ["libjemalloc.so.2"]},
    "real_paths": {"/usr/lib64/libjemalloc.so.2": "/usr/lib64/libjemalloc.so.2.1"},
    "paths": {"/usr/lib64/libjemalloc.so.2": True, "/no/x.so": False, "/.dockerenv": True},
}


@pytest.mark.parametrize("kernel", ["new", "old", "bare"])
def test_a_replay_is_the_same_document(tmp_path: Path, kernel: str) -> None:
    original = machine(
        tmp_path / "machine",
        sockets=2,
        cores=14,
        smt=2,
        nodes=4,
        memory_only_nodes=1,
        offline="3,17",
        kernel=kernel,
        cgroup=Cgroup(version=2, path="/system.slice", quota=6.5, cpuset="0-15", throttled=(1, 9)),
        record=UNTOUCHED,
        files={
            "proc/self/status": "CapEff:\t00000000a80425fb\nCpus_allowed_list:\t0-9\n",
            "proc/self/stat": f"7 (a b) S {'1 ' * 15}5 {'2 ' * 21}3 4 5\n",
        },
    )

    replay = record(original, tmp_path / "recording")

    document = host_document(probe(replay))
    assert document == host_document(probe(original))
    assert document["topology"]["allowed"] == "0-2,4-15"
    assert (document["restraints"]["nice"], document["restraints"]["policy"]) == (5, "batch")
    reasons = {unknown["fact"]: unknown["reason"] for unknown in document["unknown"]}
    assert "Permission denied" in reasons["settings.numa_balancing"]


def test_a_recording_of_a_recording_is_itself(tmp_path: Path) -> None:
    first = record(
        machine(tmp_path / "m", cgroup=Cgroup(path=f"/{POD}/cri-containerd-99aa.scope", quota=2)),
        tmp_path / "first",
    )

    second = record(first, tmp_path / "second")

    assert contents(Path(first.root)) == contents(Path(second.root))


@pytest.mark.parametrize("version", [1, 2])
def test_ids_of_containers_go_and_limits_stay(tmp_path: Path, version: int) -> None:
    path = f"/{POD}/cri-containerd-0af3be71.scope"
    above = (Cgroup(version=version, quota=3, memory_bytes=1 << 30),)
    group = Cgroup(version=version, path=path, quota=5, cpuset="0-2", above=above)
    original = machine(tmp_path / "m", cgroup=group)

    replay = record(original, tmp_path / "r")

    assert probe(replay).limits.cpu_quota == probe(original).limits.cpu_quota == 3
    assert probe(replay).limits.memory_bytes == 1 << 30
    assert probe(replay).settings.container == "kubernetes"
    everything = "\n".join((*contents(tmp_path / "r"), *contents(tmp_path / "r").values()))
    assert "7f3a" not in everything
    assert "0af3be71" not in everything


class FakePrivateHost(RecordedHost):
    """A machine whose owner can be read off everywhere."""

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": "/data/people/jane.doe",
            "USER": "jdoe",
            "LD_PRELOAD": "/data/people/jane.doe/lib/libjemalloc.so",
            "VIRTUAL_ENV": "/scratch/jdoe/venv",
            "MASTER_ADDR": "trainer07.corp.example",
            "GLOO_SOCKET_IFNAME": "eth0",
            "CCL_KVS_IP_PORT": "10.20.30.40_3000",
            "I_MPI_ROOT": "/home/someone.else/impi",
            "FI_TCP_IFACE": "enp1s0",
            "KMP_AFFINITY": "granularity=fine,compact,1,0",
            "ACCELERATE_LOG": "http://[fe80::1ff:fe23:4567:890a]/x at 02:42:ac:11:00:02",
        }

    def which(self, program: str) -> str | None:
        return "/data/people/jane.doe/bin/mpirun" if program == "mpirun" else None

    def run(self, command: object) -> Completed:
        return Completed(
            returncode=0,
            stdout="mpirun (Open MPI) 4.1.4\nbuilt by jdoe on trainer07 10.1.2.3\n",
            stderr="",
            seconds=0.0,
        )


def test_nothing_names_the_person_or_the_machine(tmp_path: Path) -> None:
    machine(
        tmp_path / "m",
        files={
            "proc/sys/kernel/hostname": "trainer07.corp.example\n",
            "etc/hosts": "127.0.1.1 trainer07.corp.example trainer07\n10.20.30.40 other\n",
            "proc/version": "Linux version 6.1.0 (jdoe@trainer07) (gcc 12) #1\n",
            "proc/self/status": "Name:\tjdoe-tool\nUid:\t1234\nCapEff:\t0\n",
            "proc/self/mountinfo": "1 0 8:1 / / rw - nfs 10.20.30.40:/jdoe rw,addr=10.20.30.40\n"
            "2 1 8:1 / /home/jdoe rw - nfs 10.20.30.40:/jdoe rw\n",
            "proc/self/cgroup": "0::/user.slice/user-1234.slice/session-c42.scope\n",
            "proc/cpuinfo": "processor : 0\nvendor_id : ARM\n\nSerial : 00000000deadbeef\n",
            "sys/class/net/wlx00c0cab12345/address": "00:c0:ca:b1:23:45\n",
        },
    )
    host = FakePrivateHost(tmp_path / "m")

    replay = record(host, tmp_path / "r")

    kept = contents(tmp_path / "r")
    everything = "\n".join((*kept, *kept.values()))
    for private in (
        *("jane", "jdoe", "someone", "trainer07", "corp", "10.20.30.40", "10.1.2.3", "1234"),
        *("c42", "deadbeef", "b12345", "fe80", "02:42"),
    ):
        assert private not in everything, private
    facts = probe(replay)
    assert facts.environment["MASTER_ADDR"] == "host"
    assert facts.environment["LD_PRELOAD"] == "/home/user/lib/libjemalloc.so"
    assert facts.environment["VIRTUAL_ENV"] == "/scratch/user/venv"
    assert facts.environment["KMP_AFFINITY"] == "granularity=fine,compact,1,0"
    assert facts.network.hostname_addresses == ("127.0.1.1",)
    assert facts.launchers[0].dialect == "openmpi4"


def test_the_machine_we_are_on(tmp_path: Path) -> None:
    replay = record(LiveHost(), tmp_path / "r")

    live, replayed = probe(), probe(replay)

    assert replayed.recorded
    assert replayed.topology.online == live.topology.online
    assert replayed.cpu == live.cpu
    assert replayed.settings == live.settings
    # What changes from one moment to the next, and the name that is scrubbed, are left out.
    unsteady: dict[str, Any] = {
        "cgroup_path": None,
        "shm_free_bytes": None,
        "pids_used": None,
        "periods": None,
        "throttled_periods": None,
    }
    assert replace(replayed.limits, **unsteady) == replace(live.limits, **unsteady)
    assert [(p.name, p.version) for p in replayed.packages] == [
        (p.name, p.version) for p in live.packages
    ]
    assert host_document(replayed) == host_document(probe(record(replay, tmp_path / "s")))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CannotError) as caught:
        record(machine(None), tmp_path / "file" / "r")

    assert caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@given(st.text(max_size=80))
def test_scrubbing_twice_is_scrubbing_once(text: str) -> None:
    scrub = Scrubber(host_name="node1.example", home="/home/x", user="xyz")

    assert scrub.value(scrub.value(text)) == scrub.value(text)


@every_row(
    "text",
    ["127.0.0.1:29500", "::1", "granularity=fine,compact,1,0", "libtcmalloc.so.4.5.16", "12:30:45"],
)
def test_what_names_no_one_stays(text: str) -> None:
    assert Scrubber(host_name="node1", home="/home/x", user="xyz").value(text) == text


def contents(root: Path) -> dict[str, str]:
    found = {}
    for directory, directories, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            found[str(path.relative_to(root))] = path.read_text()
        for name in directories:
            found[str(Path(directory, name).relative_to(root))] = ""
    return found
