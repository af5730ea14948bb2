"""The ``host`` part of the doctor's document, key by key as the contract has it."""

from __future__ import annotations

import json
from pathlib import Path

from hosts.builder import Cgroup, machine

from cputune import probe
from cputune.report.machine_text import host_document

GIB = 1 << 30
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 4096                 files
Max locked memory         65536                65536                bytes
"""


def test_the_keys_of_the_contract(tmp_path: Path) -> None:
    facts = probe(
        machine(
            tmp_path,
            sockets=2,
            cores=[4, 3],
            smt=2,
            offline="13",
            like="cascade-lake",
            files={"proc/self/limits": LIMITS},
            cgroup=Cgroup(path="/a", quota=2.5, memory_bytes=GIB, cpuset="0-5"),
            record={
                "python": "3.11.7",
                "packages": [{"name": "torch", "version": "2.13.0", "requires": ["sympy"]}],
                "launchers": {"srun": {"path": "/usr/bin/srun"}},
                "disk_bytes": {"/dev/shm": GIB},
            },
        )
    )

    document = host_document(facts)

    cpu = document["cpu"]
    named = (cpu["vendor"], cpu["model_name"], cpu["codename"])
    assert named == ("GenuineIntel", "Intel(R) Xeon(R) Gold 6230", "Cascade Lake")
    assert (cpu["family"], cpu["model"], cpu["stepping"]) == (6, 85, 7)
    assert "avx512_vnni" in cpu["isa"]
    topology = document["topology"]
    assert topology == {
        "sockets": 2,
        "physical_cores": 7,
        "threads_per_core": 2,
        "logical_cpus": 13,
        "online": "0-12",
        "offline": "13",
        "allowed": "0-5",
        "cores_per_socket": [4, 3],
        "numa_nodes": topology["numa_nodes"],
        "l3": [{"cpus": cpus, "size_bytes": 105 << 20} for cpus in ("0-3,7-10", "4-6,11-12")],
        "hybrid": False,
    }
    first = {"id": 0, "cpus": "0-2,7-9", "memory_bytes": 64 * GIB, "free_bytes": 32 * GIB}
    assert topology["numa_nodes"][0] == first
    limits = document["limits"]
    assert (limits["cpu_quota"], limits["cpuset"], limits["memory_bytes"]) == (2.5, "0-5", GIB)
    own = (limits["shm_bytes"], limits["open_files"], limits["memlock_bytes"])
    assert own == (GIB, 1024, 65536)
    assert document["packages"] == [{"name": "torch", "version": "2.13.0", "location": None}]
    assert document["launchers"][0]["name"] == "srun"
    assert document["python"] == "3.11.7"
    assert {"memory", "environment", "load", "unknown"} <= set(document)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_what_is_unknown_is_null_and_has_a_reason(tmp_path: Path) -> None:
    blocks = "".join(f"processor : {cpu}\n\n" for cpu in range(4))

    document = host_document(
        probe(machine(tmp_path, cores=4, kernel="bare", nodes=0, files={"proc/cpuinfo": blocks}))
    )

    reasons = {unknown["fact"]: unknown["reason"] for unknown in document["unknown"]}
    assert document["topology"]["online"] == "0-3"
    for fact in ("sockets", "physical_cores", "threads_per_core", "cores_per_socket"):
        assert document["topology"][fact] is None
        assert reasons[f"topology.{fact}"]
    for part in ("cpu", "limits", "memory", "settings", "load"):
        for fact, value in document[part].items():
            explained = fact in ("architecture", "hypervisor", "container", "cgroup_path")
            explained = explained or fact in ("cgroup_version", "throttled_periods", "periods")
            if value is None and not explained and fact != "running_threads":
                assert reasons[f"{part}.{fact}"], fact
