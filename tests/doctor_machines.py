"""Machines of many shapes, for what has to be true on all of them."""

from __future__ import annotations

from typing import Any

from clean_machine import topology
from hosts.builder import Cgroup

from cputune.facts import Launcher

INTEL_MPI = Launcher(name="mpirun", path="/opt/mpirun", dialect="intelmpi", version="2021.18")
OPEN_MPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi5", version="5.0.8")
MACHINES: dict[str, dict[str, Any]] = {
    "two sockets": {},
    "two sockets, SMT side by side": {"topology": topology(together=True)},
    "eight sockets": {"topology": topology(sockets=8, cores=18)},
    "one socket": {"topology": topology(sockets=1, cores=8)},
    "four nodes in a socket": {"topology": topology(nodes_per_socket=4)},
    "sockets of one core": {"topology": topology(sockets=8, cores=1, smt=1)},
    "one core": {"topology": topology(sockets=1, cores=1)},
    "two cores": {"topology": topology(sockets=1, cores=2, smt=1)},
    "a quota of 40": {"limits": {"cpu_quota": 40.0}},
    "a quota of 1.5": {"limits": {"cpu_quota": 1.5}},
    "a few allowed CPUs": {"topology": topology(allowed=(1, 3, 5))},
    "little memory": {"limits": {"memory_bytes": 4 << 30}},
}
RECORDED: tuple[dict[str, Any], ...] = (
    {"sockets": 2, "cores": 28, "smt": 2},
    {"sockets": 2, "cores": 32, "smt": 2, "siblings": "together", "nodes": 8},
    {"sockets": 8, "cores": 18, "smt": 2},
    {"sockets": 4, "cores": [2, 2, 2, 1]},
    {"sockets": 16, "cores": 1, "nodes": 1},
    {"cores": 14, "smt": 2, "e_cores": 8},
    {"sockets": 2, "cores": 28, "offline": "0-5"},
    {"sockets": 2, "cores": 28, "memoryless_nodes": (1,), "memory_only_nodes": 1},
    {"sockets": 2, "cores": 28, "smt": 2, "cgroup": Cgroup(quota=40)},
    {"sockets": 2, "cores": 28, "cgroup": Cgroup(cpuset="28-55", quota=2.5)},
    {"sockets": 2, "cores": 20, "kernel": "old", "like": "broadwell"},
    {"cores": 1},
)
