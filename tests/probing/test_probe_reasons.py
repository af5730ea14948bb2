"""Every null of the document has its reason, on every machine that can be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hosts.builder import Cgroup, machine
from hosts.reasons import without_reason
from rows import every_row

from cputune import probe

GIB = 1 << 30
BUILT: dict[str, dict[str, Any]] = {
    "plain": {},
    "two sockets, some CPUs off": {"sockets": 2, "cores": 4, "smt": 2, "offline": "3,9"},
    "Linux before 5.3": {"kernel": "old"},
    "cpuinfo alone": {"kernel": "bare", "sockets": 2},
    "without NUMA": {"nodes": 0},
    "memory alone": {"memory_only_nodes": 1, "memoryless_nodes": [0]},
    "Arm": {"like": "graviton3"},
    "hybrid": {"cores": 14, "smt": 2, "e_cores": 8, "like": "alder-lake"},
    "container of version 2": {"cgroup": Cgroup(path="/a", quota=2.0, cpuset="0-1")},
    "container of version 1": {"cgroup": Cgroup(version=1, path="/docker/a", memory_bytes=GIB)},
    "cgroup without limits": {"cgroup": Cgroup(path="/user.slice")},
    "garbage": {"files": {"proc/cpuinfo": "x", "proc/meminfo": "y", "proc/loadavg": "z"}},
    "node without list": {"files": {"sys/devices/system/node/node0/cpulist": None}},
    "packages without a place": {"record": {"packages": {"torch": "2.13.0", "numpy": None}}},
    "launchers that do not answer": {
        "record": {"launchers": {"mpirun": {"path": "/usr/bin/mpirun"}, "srun": {"path": "/bin/s"}}}
    },
}


@every_row("name", BUILT)
def test_every_null_of_a_built_machine_has_its_reason(tmp_path: Path, name: str) -> None:
    assert without_reason(machine(tmp_path, **BUILT[name])) == []


def test_a_recording_without_processes_does_not_say_that_nothing_runs(tmp_path: Path) -> None:
    for name, record in (("without", {}), ("nothing", {"processes": []})):
        facts = probe(machine(tmp_path / name, cores=1, record=record))
        assert (facts.why_unknown("load.busy") is None) is (name == "nothing")
