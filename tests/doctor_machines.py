"""Machines of many shapes, for what has to be true on all of them."""

from __future__ import annotations

from typing import Any

from clean_machine import TCMALLOC, topology
from hosts.builder import Cgroup

from cputune.host.facts import Launcher

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
COUNTS = ("1", "2", "8", "56", "112", "4096", "abc", "0")
VARIABLES: dict[str, tuple[str, ...]] = {
    "OMP_NUM_THREADS": COUNTS,
    "MKL_NUM_THREADS": COUNTS,
    "OMP_THREAD_LIMIT": COUNTS,
    "CCL_WORKER_COUNT": ("0", "1", "2", "64"),
    "CCL_WORKER_AFFINITY": ("0,1", "900", "auto"),
    "CCL_ATL_TRANSPORT": ("mpi", "ofi"),
    "LOCAL_WORLD_SIZE": ("1", "2", "8"),
    "WORLD_SIZE": ("1", "2", "16"),
    "RANK": ("0", "1", "99"),
    "LOCAL_RANK": ("0", "7"),
    "PMI_RANK": ("0", "1"),
    "PMI_SIZE": ("2",),
    "MASTER_ADDR": ("10.0.0.7", "127.0.0.1"),
    "MASTER_PORT": ("29500", "0", "http"),
    "PET_NPROC_PER_NODE": ("auto", "2", "cpu"),
    "PET_NNODES": ("1", "2"),
    "TORCHELASTIC_RUN_ID": ("none",),
    "KMP_AFFINITY": ("compact", "none", "granularity=fine,compact,1,0"),
    "KMP_BLOCKTIME": ("1", "infinite", "200"),
    "KMP_HW_SUBSET": ("1s,4c,1t",),
    "GOMP_CPU_AFFINITY": ("0-3", "900"),
    "OMP_PROC_BIND": ("close", "false"),
    "OMP_PLACES": ("cores", "{0},{900}"),
    "I_MPI_PIN": ("0", "1"),
    "I_MPI_PIN_DOMAIN": ("[3,c]", "socket"),
    "LD_PRELOAD": (TCMALLOC, "/gone.so", f"/gone.so:{TCMALLOC}", "libtcmalloc.so.4"),
    "ACCELERATE_USE_CPU": ("true", "false"),
    "ACCELERATE_USE_IPEX": ("true", "false"),
    "ACCELERATE_MIXED_PRECISION": ("no", "bf16", "fp16"),
    "ONEDNN_MAX_CPU_ISA": ("AVX2",),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": ("64", "100000"),
    "GLOO_SOCKET_IFNAME": ("eth0", "eth9"),
    "FI_PROVIDER": ("shm", "tcp", "verbs"),
    "KMP_DUPLICATE_LIB_OK": ("1",),
    "KMP_TPAUSE": ("0",),
    "OMP_SCHEDULE": ("dynamic",),
    "MALLOC_CONF": ("background_thread:true",),
    "CCL_PROCESS_LAUNCHER": ("none", "torchrun"),
    "FI_TCP_IFACE": ("eth0", "eth9"),
    "I_MPI_ROOT": ("/opt/intel",),
    "LRU_CACHE_CAPACITY": ("64",),
    "ATEN_CPU_CAPABILITY": ("avx2",),
    "MKL_ENABLE_INSTRUCTIONS": ("AVX2",),
    "OMPI_COMM_WORLD_RANK": ("0",),
    "OMPI_COMM_WORLD_SIZE": ("2",),
}
"""Variables that the doctor judges, with values that are in order and that are not."""
