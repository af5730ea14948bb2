"""Each check: what it says of machines that have its fault, and silence where one nearly has it.

What is said of FAULTS was reviewed, and lies in tests/golden/findings/ by code, in the order of the
rows; ``--update-golden`` writes it anew.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import (
    CASCADE_LAKE_ISA,
    CLEAN,
    GIB,
    IPEX_ERA,
    TCMALLOC,
    changed,
    topology,
    words,
)
from scripts import shellcheck

from cputune.doctor import diagnose
from cputune.doctor.checks import versions
from cputune.doctor.registry import CHECKS
from cputune.facts import (
    BusyProcess,
    Core,
    Frequency,
    Launcher,
    Library,
    Network,
    NumaNode,
    Package,
    Unknown,
)
from cputune.host import Place, Stray, Surroundings

BY_CODE = {check.code: check for check in CHECKS}
GOLDEN = Path(__file__).parent.parent / "golden" / "findings"
Changes = dict[str, Any]
MIB = 1 << 20

INTEL_MPI = Launcher(
    name="mpirun", path="/opt/intel/bin/mpirun", dialect="intelmpi", version="2021.18"
)
OPENMPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4", version="4.1.4")
SPLIT = topology()
MEMORYLESS = replace(SPLIT.numa_nodes[1], memory_bytes=0)
FULL = replace(SPLIT.numa_nodes[1], free_bytes=GIB)
HBM = NumaNode(id=2, cpus=(), memory_bytes=64 * GIB)
CONDA_NUMPY = Package(name="numpy", version="1.26.4", location="/conda", installer="conda")
NODES = topology().numa_nodes
ONE_SOCKET = {"topology": topology(sockets=1)}
TWO_BY_OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
IOMP = {"LD_PRELOAD": f"{TCMALLOC}:/opt/libiomp5.so"}
ONE_CORE = {"packages": IPEX_ERA, "topology": topology(sockets=1, cores=1, smt=1)}
FAST_CORE = Core(cpus=(0, 2), socket=0, numa_node=0, max_khz=2000)
FULL_SPEED = Frequency(cpus=(0, 1, 2, 3), governor="performance")
SAVING = Frequency(
    cpus=(4, 5, 6, 7),
    governor="powersave",
    driver="intel_pstate",
    energy_preference="balance_performance",
)
ACTIVE_AT_FULL_SPEED = replace(SAVING, energy_preference="performance")
TRAIN = BusyProcess(pid=77, name="train", cpu_share=30.0)
TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "OMP_NUM_THREADS": "28"}
MASTER = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
TWO_PODS = {"PET_NNODES": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
STRAY = "/a b/bin/mpirun --version ended with 127"
NO_NICE = {"settings": {"container": "docker"}, "sys_nice": False}


def env(**variables: str | None) -> Changes:
    return {"environment": variables}


def limits(**fields: Any) -> Changes:
    return {"limits": fields}


def load(**fields: Any) -> Changes:
    return {"load": fields}


def node(**fields: Any) -> Changes:
    """The second NUMA node is changed."""
    return {"topology": {"numa_nodes": (NODES[0], replace(NODES[1], **fields))}}


def process(cpu_share: float) -> BusyProcess:
    return BusyProcess(pid=77, name="train", cpu_share=cpu_share)


def by(installer: str, name: str) -> Package:
    return Package(name=name, version="2.13.0", location="/venv", installer=installer)


def throttled(periods: int, stopped: int) -> Changes:
    return limits(cpu_quota=8.0, periods=periods, throttled_periods=stopped)


def kernel(release: str) -> Changes:
    return {"settings": {"kernel": release}}


def hybrid(*, on: bool) -> dict[str, Any]:
    fast = tuple(Core(cpus=(i, i + 6), socket=0, numa_node=0, max_khz=5_200_000) for i in range(6))
    slow = tuple(Core(cpus=(12 + i,), socket=0, numa_node=0, max_khz=3_900_000) for i in range(8))
    online = tuple(range(20))
    return {
        "cores": fast + slow,
        "online": online,
        "present": online,
        "allowed": online,
        "numa_nodes": (NumaNode(id=0, cpus=online, memory_bytes=32 * GIB),),
        "hybrid": on,
    }


def strays(*found: Stray) -> dict[str, Any]:
    return {"surroundings": Surroundings(strays=found)}


def places(*found: Place) -> Changes:
    return {"surroundings": Surroundings(places=found)}


def place(
    variable: str,
    path: str,
    *,
    exists: bool = True,
    writable: bool = True,
    free_bytes: int = 64 * GIB,
) -> Place:
    return Place(
        variable=variable, path=path, exists=exists, writable=writable, free_bytes=free_bytes
    )


FOUR_PAIRS = tuple(Core(cpus=(c, c + 1 + c // 4), socket=0, numa_node=0) for c in (0, 2, 4, 5))
BESIDE_AND_APART: Changes = {
    "topology": {"cores": FOUR_PAIRS, **dict.fromkeys(("online", "allowed", "present"), range(8))}
}

FAULTS: tuple[tuple[str, Changes], ...] = (
    ("rank-left-over", env(**{**HYDRA, **MASTER, "PMI_RANK": "1"}, RANK="0")),
    ("master-addr", env(**HYDRA)),
    ("master-addr", env(RANK="0", WORLD_SIZE="2", SLURM_NNODES="2")),
    ("master-loopback", env(**{**TWO_PODS, "MASTER_ADDR": "127.0.0.1"})),
    (
        "gloo-loopback",
        {"network": {"hostname_addresses": ("10.0.0.7", "127.0.1.1")}, **env(**TWO_PODS)},
    ),
    (
        "gloo-loopback",
        {
            "network": {"hostname_addresses": ("127.0.1.1",), "interfaces": ("lo", "ib0")},
            **env(PET_NNODES="2"),
        },
    ),
    ("interface-missing", env(GLOO_SOCKET_IFNAME="ens3")),
    ("interface-missing", {"network": {"interfaces": ("lo", "ens 1")}, **env(FI_TCP_IFACE="eth9")}),
    ("ranks-alone", env(**TORCHRUN, **MASTER, OMP_NUM_THREADS="28", ACCELERATE_USE_CPU=None)),
    ("ranks-alone", env(ACCELERATE_USE_CPU=None)),
    ("mpi-mixed", env(I_MPI_ROOT="/opt/intel/oneapi/mpi/latest")),
    (
        "mpi-mixed",
        {"launchers": (*CLEAN.launchers, replace(OPENMPI, name="mpiexec", path="/opt/mpiexec"))},
    ),
    ("accelerate-one-process", {"launchers": ()}),
    (
        "ccl-affinity",
        {
            "packages": IPEX_ERA,
            "topology": topology(allowed=tuple(range(28))),
            **env(CCL_WORKER_AFFINITY="0,1,28,29", OMP_NUM_THREADS="26"),
        },
    ),
    ("ccl-affinity", env(CCL_WORKER_AFFINITY="112")),
    ("ccl-workers", {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="4")}),
    ("ccl-workers", {**ONE_CORE, **env(CCL_WORKER_COUNT="2")}),
    ("ccl-workers", {**ONE_CORE, **env(CCL_WORKER_COUNT="2", CCL_WORKER_AFFINITY="0,0")}),
    ("ccl-workers", env(CCL_WORKER_COUNT="4")),
    (
        "ccl-workers",
        {"packages": IPEX_ERA, **env(**TORCHRUN, CCL_WORKER_COUNT="4", OMP_NUM_THREADS="28")},
    ),
    (
        "ccl-without-mpi",
        {
            "packages": IPEX_ERA,
            **env(**TORCHRUN, **MASTER, OMP_NUM_THREADS="27", CCL_WORKER_COUNT="1"),
        },
    ),
    ("ccl-without-mpi", {"packages": IPEX_ERA, "launchers": ()}),
    (
        "ccl-without-mpi",
        {"packages": {**IPEX_ERA, "oneccl_bind_pt": None, "torch_ccl": "1.11"}, "launchers": ()},
    ),
    ("gloo-slow", {"packages": IPEX_ERA}),
    ("launch-left-over", env(LOCAL_RANK="0", WORLD_SIZE="2")),
    (
        "module-shadowed",
        strays(Stray(name="torch", path="/repo/torch.py", how="the working folder")),
    ),
    (
        "environment-foreign",
        {"surroundings": Surroundings(prefix="/venv", places=(place("VIRTUAL_ENV", "/other"),))},
    ),
    ("variable-refused", env(ACCELERATE_USE_DEEPSPEED="true")),
    (
        "master-port-taken",
        {"surroundings": Surroundings(ports_taken=("MASTER_PORT",)), **env(**MASTER)},
    ),
    ("folder-unusable", places(place("HF_HOME", "/ro", writable=False))),
    ("folder-full", places(place("TMPDIR", "/t", free_bytes=4 * MIB))),
    ("folder-full", places(place("HF_HOME", "/full", free_bytes=GIB // 2))),
    ("cache-not-read", env(TRANSFORMERS_CACHE="/models")),
    ("debug-left-on", env(TORCH_DISTRIBUTED_DEBUG="DETAIL")),
    ("ranks-auto", {"limits": {"cpu_quota": 8.0}, **env(PET_NPROC_PER_NODE="auto")}),
    ("ranks-auto", env(PET_NPROC_PER_NODE="auto")),
    ("quota-threads", {"limits": {"cpu_quota": 8.5}, **env(OMP_NUM_THREADS=None)}),
    ("quota-throttled", {"limits": {"cpu_quota": 8.0, "periods": 1000, "throttled_periods": 950}}),
    ("ranks-oversubscribed", env(**TORCHRUN, OMP_NUM_THREADS="112")),
    (
        "ranks-oversubscribed",
        {"limits": {"cpu_quota": 8.0}, **env(**TORCHRUN, OMP_NUM_THREADS="8")},
    ),
    (
        "ranks-oversubscribed",
        {"limits": {"cpu_quota": 1.0}, **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")},
    ),
    (
        "one-core",
        {
            "topology": topology(allowed=(3, 59)),
            "limits": {"cpuset": (3, 59)},
            **env(OMP_NUM_THREADS="1"),
        },
    ),
    ("memory-limit", {"limits": {"memory_bytes": 4 * GIB}}),
    ("memory-limit", {"memory": {"total_bytes": 2 * GIB}}),
    ("primitive-cache", {"limits": {"memory_bytes": 4 * GIB}}),
    ("shm-small", {"limits": {"shm_bytes": 64 << 20}}),
    ("shm-full", {"limits": {"shm_free_bytes": 12 << 20}}),
    ("processes-few", {"limits": {"pids": 256, "pids_used": 40}}),
    ("processes-few", {"limits": {"processes": 128}, "sys_resource": False}),
    ("memlock-small", {"limits": {"memlock_bytes": 8 << 20}, **env(FI_PROVIDER="verbs")}),
    ("open-files", {"limits": {"open_files": 256, "open_files_hard": 256}}),
    ("open-files", {"limits": {"open_files": 256, "open_files_hard": 4096}}),
    ("threads-affinity", {"topology": topology(allowed=(0, 1, 2, 3))}),
    ("threads-affinity", env(MKL_NUM_THREADS="200")),
    ("threads-one", env(OMP_NUM_THREADS="1")),
    ("threads-one", env(OMP_NUM_THREADS=None)),
    ("threads-one", env(**TORCHRUN, OMP_NUM_THREADS=None)),
    ("threads-malformed", env(OMP_NUM_THREADS="$(nproc)")),
    ("threads-malformed", env(OMP_NUM_THREADS="8", MKL_NUM_THREADS="all")),
    ("threads-mkl", env(MKL_NUM_THREADS="4")),
    ("threads-limit", env(OMP_THREAD_LIMIT="8")),
    ("threads-limit", env(OMP_THREAD_LIMIT="8", OMP_NUM_THREADS=None)),
    ("threads-siblings", env(OMP_NUM_THREADS="112")),
    ("threads-siblings", env(**{**TORCHRUN, "LOCAL_WORLD_SIZE": "29"}, OMP_NUM_THREADS="2")),
    (
        "affinity-shrinks",
        env(KMP_AFFINITY="granularity=fine,compact,1,0", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so"),
    ),
    ("affinity-shrinks", env(OMP_PROC_BIND="close")),
    (
        "affinity-gomp",
        {"topology": topology(allowed=(0, 1, 2, 3)), **env(GOMP_CPU_AFFINITY="0-7:2")},
    ),
    (
        "numa-not-zero",
        {
            "topology": topology(allowed=tuple(range(28, 56))),
            "limits": {"cpuset": tuple(range(28, 56))},
        },
    ),
    ("mempolicy", {"settings": {"container": "docker"}, "sys_nice": False}),
    ("shell-bound", {"topology": topology(allowed=(0, 1)), **env(OMP_NUM_THREADS="2")}),
    ("openmpi-one-core", {"launchers": (OPENMPI,)}),
    (
        "openmpi-one-core",
        {
            "topology": topology(allowed=(3, 59)),
            **env(
                OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="2"
            ),
        },
    ),
    (
        "bound-twice",
        env(
            I_MPI_PIN_DOMAIN="[0x3,0xc]",
            KMP_AFFINITY="compact",
            LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so",
        ),
    ),
    ("bound-twice", {"topology": topology(allowed=(0, 1)), **env(I_MPI_PIN="1")}),
    ("bound-twice", env(GOMP_CPU_AFFINITY="0-3", OMP_PLACES="cores", OMP_PROC_BIND="close")),
    ("pin-mask", env(I_MPI_PIN_DOMAIN="[ffff,ffff0000]")),
    ("pin-mask", env(I_MPI_PIN_DOMAIN=f"[{1 << 200:#x}]")),
    ("fp16-ignored", env(ACCELERATE_MIXED_PRECISION="fp16")),
    ("fp16-ignored", {"cpu": {"isa": CASCADE_LAKE_ISA}, **env(ACCELERATE_MIXED_PRECISION="fp16")}),
    ("isa-capped", env(ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")),
    ("isa-capped", env(ATEN_CPU_CAPABILITY="avx2")),
    ("isa-capped", env(MKL_ENABLE_INSTRUCTIONS="AVX2")),
    ("amx-doubtful", {"settings": {"kernel": "5.15.0-91-generic"}}),
    ("amx-doubtful", {"cpu": {"isa": ("amx_bf16",)}}),
    ("isa-old", {"cpu": {"isa": ("avx", "sse4_2")}, **env(ACCELERATE_MIXED_PRECISION="no")}),
    ("isa-old", {"cpu": {"isa": ()}}),
    ("bf16-slow", {"cpu": {"isa": CASCADE_LAKE_ISA}}),
    ("bf16-slow", {"cpu": {"isa": CASCADE_LAKE_ISA}, **env(ACCELERATE_MIXED_PRECISION=None)}),
    ("bf16-native", env(ACCELERATE_MIXED_PRECISION=None)),
    ("intel-only", {"packages": IPEX_ERA, "cpu": {"vendor": "AuthenticAMD"}}),
    ("intel-only", {"packages": IPEX_ERA, "cpu": {"vendor": "ARM", "architecture": "aarch64"}}),
    (
        "preload-dead",
        {
            "preload_missing": ("/usr/lib/libtcmalloc.so",),
            **env(LD_PRELOAD="/usr/lib/libtcmalloc.so"),
        },
    ),
    (
        "preload-dead",
        {"preload_missing": ("/gone.so",), "libraries": (), **env(LD_PRELOAD="/gone.so")},
    ),
    (
        "preload-dead",
        {
            "preload_missing": ("/gone/libtcmalloc.so", "/gone/libx.so"),
            **env(LD_PRELOAD="/gone/libtcmalloc.so:/gone/libx.so:/there.so"),
        },
    ),
    ("openmp-two", env(LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so:/usr/lib/libgomp.so.1")),
    ("openmp-two", env(KMP_DUPLICATE_LIB_OK="TRUE")),
    ("setting-without-library", env(KMP_BLOCKTIME="1")),
    ("setting-without-library", env(MALLOC_CONF="background_thread:true")),
    ("conda-pip-mixed", {"packages": {"numpy": CONDA_NUMPY}}),
    ("allocator-default", env(LD_PRELOAD=None)),
    ("allocator-missing", {"libraries": (), **env(LD_PRELOAD=None)}),
    (
        "facts-missing",
        {
            "topology": {"cores": (), "online": (), "allowed": (), "present": None},
            "unknown": (Unknown(fact="topology.online", reason="/sys is not mounted"),),
        },
    ),
    ("facts-missing", {"topology": {"cores_known": False}}),
    ("facts-missing", {"unknown": (Unknown(fact="cpu.isa", reason="no flags"),)}),
    # what ran has ended
    ("machine-busy", {"load": {"average_1min": 40.0, "cpu_pressure_percent": 35.0}}),
    ("machine-busy", {"load": {"busy": (TRAIN,)}}),
    ("cpu-steal", {"load": {"steal_share": 0.12}}),
    ("memory-low", {"memory": {"available_bytes": GIB}}),
    ("swap-in-use", {"memory": {"swap_free_bytes": 6 * GIB}}),
    ("swap-in-use", {"memory": {"swap_free_bytes": 0}, "load": {"memory_pressure_percent": 9.0}}),
    ("governor", {"settings": {"frequencies": (FULL_SPEED, SAVING)}}),
    ("governor", {"settings": {"frequencies": (Frequency(cpus=(0, 1), governor="ondemand"),)}}),
    ("turbo-off", {"settings": {"turbo": False}}),
    ("turbo-off", {"settings": {"turbo": False}, "cpu": {"vendor": "AuthenticAMD"}}),
    ("huge-pages", {"settings": {"transparent_huge_pages": "never"}}),
    ("numa-balancing", {"settings": {"numa_balancing": True}}),
    ("siblings-together", {"topology": topology(together=True)}),
    # one thread of a fast core, not both
    (
        "sockets-of-one-core",
        {"topology": topology(sockets=24, cores=1, smt=1), **env(OMP_NUM_THREADS="24")},
    ),
    ("numa-in-socket", {"topology": topology(nodes_per_socket=2)}),
    ("numa-cpuless", {"topology": {"numa_nodes": (*SPLIT.numa_nodes, HBM)}}),
    ("numa-full", {"topology": {"numa_nodes": (SPLIT.numa_nodes[0], FULL)}}),
    ("cpus-offline", {"topology": {"present": tuple(range(130))}}),
)

NEARLY: tuple[tuple[str, Changes], ...] = (
    ("rank-left-over", env(**HYDRA, **MASTER, RANK="0")),
    ("master-addr", env(**HYDRA, **MASTER)),
    ("master-addr", env(RANK="0", WORLD_SIZE="2")),
    ("master-addr", env(**TORCHRUN, RANK="0")),
    ("master-loopback", env(**{**TWO_PODS, "PET_NNODES": "1", "MASTER_ADDR": "127.0.0.1"})),
    ("master-loopback", env(PET_NNODES="2", MASTER_ADDR="10.0.0.7")),
    ("gloo-loopback", {"network": {"hostname_addresses": ("127.0.1.1",)}}),
    (
        "gloo-loopback",
        {
            "network": {"hostname_addresses": ("127.0.1.1",)},
            **env(PET_NNODES="2", GLOO_SOCKET_IFNAME="eth0"),
        },
    ),
    ("interface-missing", env(GLOO_SOCKET_IFNAME="eth0")),
    ("interface-missing", {"network": Network(interfaces=None), **env(GLOO_SOCKET_IFNAME="eth9")}),
    (
        "ranks-alone",
        {
            "packages": {"accelerate": "1.12.0"},
            **env(**TORCHRUN, **MASTER, OMP_NUM_THREADS="28", ACCELERATE_USE_CPU=None),
        },
    ),
    (
        "ranks-alone",
        {"accelerators": None, "packages": {"torch": "2.13.0"}, **env(ACCELERATE_USE_CPU=None)},
    ),
    ("mpi-mixed", {"launchers": (INTEL_MPI,), **env(I_MPI_ROOT="/opt")}),
    ("mpi-mixed", {"launchers": (INTEL_MPI, replace(INTEL_MPI, name="mpiexec"))}),
    (
        "accelerate-one-process",
        {"launchers": (), "topology": topology(sockets=1), **env(OMP_NUM_THREADS="28")},
    ),
    ("accelerate-one-process", {"launchers": (replace(INTEL_MPI, dialect=None),)}),
    ("ccl-affinity", env(CCL_WORKER_AFFINITY="0,1,28,29")),
    ("ccl-affinity", {"topology": {"allowed": ()}, **env(CCL_WORKER_AFFINITY="0")}),
    ("ccl-workers", env(CCL_WORKER_COUNT="4", OMP_NUM_THREADS="52")),
    ("ccl-workers", env(CCL_WORKER_COUNT="0", OMP_NUM_THREADS="112")),
    ("ccl-without-mpi", {"packages": IPEX_ERA, **env(**HYDRA, **MASTER, CCL_WORKER_COUNT="1")}),
    ("ccl-without-mpi", {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="1")}),
    (
        "ccl-without-mpi",
        {
            "packages": IPEX_ERA,
            **env(**TORCHRUN, CCL_WORKER_COUNT="1", CCL_PROCESS_LAUNCHER="torchrun"),
        },
    ),
    ("gloo-slow", {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="4", OMP_NUM_THREADS="52")}),
    ("gloo-slow", {"packages": {**IPEX_ERA, "oneccl_bind_pt": "2.7.0"}}),
    ("gloo-slow", {"packages": {**IPEX_ERA, "accelerate": "1.13.0"}}),
    ("gloo-slow", {"packages": IPEX_ERA, "launchers": ()}),
    ("launch-left-over", env(WORLD_SIZE="2")),
    ("launch-left-over", env(RANK="1", WORLD_SIZE="2", MASTER_ADDR="10.0.0.7")),
    ("launch-left-over", env(RANK="0", SLURM_PROCID="0")),
    ("launch-left-over", env(**TORCHRUN, RANK="0")),
    (
        "environment-foreign",
        {"surroundings": Surroundings(prefix="/venv", places=(place("VIRTUAL_ENV", "/venv"),))},
    ),
    (
        "variable-refused",
        {"packages": {"deepspeed": "0.19.3"}, **env(ACCELERATE_USE_DEEPSPEED="true")},
    ),
    ("variable-refused", env(ACCELERATE_DYNAMO_BACKEND="INDUCTOR", ACCELERATE_USE_CPU="True")),
    ("variable-refused", env(ACCELERATE_MIXED_PRECISION="bf16", OMP_STACKSIZE="16M")),
    ("master-port-taken", env(**MASTER)),
    ("folder-unusable", places(place("HF_HOME", "/rw", exists=False))),
    ("folder-full", places(place("TMPDIR", "/t", free_bytes=GIB // 2))),
    ("cache-not-read", env(TRANSFORMERS_CACHE="/models", HF_HUB_CACHE="/models")),
    ("debug-left-on", env(TORCH_DISTRIBUTED_DEBUG="INFO")),
    ("ranks-auto", env(PET_NPROC_PER_NODE="2", OMP_NUM_THREADS="28")),
    ("ranks-auto", {}),
    ("quota-threads", {"limits": {"cpu_quota": 8.5}, **env(OMP_NUM_THREADS="8")}),
    ("quota-throttled", {"limits": {"periods": 1000, "throttled_periods": 950}}),
    ("ranks-oversubscribed", env(**TORCHRUN, OMP_NUM_THREADS="28")),
    (
        "one-core",
        {
            "topology": topology(allowed=(3, 4)),
            "limits": {"cpuset": (3, 4)},
            **env(OMP_NUM_THREADS="2"),
        },
    ),
    ("one-core", {"topology": topology(allowed=(3,)), **env(PMI_RANK="0")}),
    ("one-core", {"topology": topology(allowed=(3,)), **env(LOCAL_WORLD_SIZE="2")}),
    ("memory-limit", {"limits": {"memory_bytes": 16 * GIB}}),
    (
        "primitive-cache",
        {"limits": {"memory_bytes": 7 * GIB}, **env(ONEDNN_PRIMITIVE_CACHE_CAPACITY="64")},
    ),
    ("primitive-cache", {**limits(memory_bytes=4 * GIB), **env(LRU_CACHE_CAPACITY="64")}),
    ("shm-small", {"limits": {"shm_bytes": GIB}}),
    ("shm-full", {"limits": {"shm_free_bytes": 200 * GIB}}),
    ("processes-few", {"limits": {"pids": 4096, "pids_used": 40}}),
    ("processes-few", {"limits": {"processes": 128}, "sys_resource": True}),
    ("memlock-small", {"limits": {"memlock_bytes": 8 << 20}, **env(FI_PROVIDER="tcp")}),
    ("threads-affinity", {"topology": topology(allowed=(0, 1, 2, 3)), **env(OMP_NUM_THREADS="4")}),
    ("threads-one", {"topology": topology(sockets=1, cores=1, smt=1), **env(OMP_NUM_THREADS="1")}),
    ("threads-one", {"topology": topology(sockets=1, cores=1), **env(OMP_NUM_THREADS=None)}),
    ("threads-malformed", env(OMP_NUM_THREADS="56,1")),
    ("threads-mkl", env(MKL_NUM_THREADS="56")),
    ("threads-mkl", env(MKL_NUM_THREADS="28", OMP_NUM_THREADS=None)),
    ("threads-limit", env(OMP_THREAD_LIMIT="112")),
    ("threads-limit", env(OMP_THREAD_LIMIT="0", OMP_NUM_THREADS="2")),
    ("threads-siblings", env(OMP_NUM_THREADS="56")),
    ("affinity-shrinks", env(KMP_AFFINITY="none", OMP_PROC_BIND="false")),
    ("numa-not-zero", {"topology": topology(allowed=tuple(range(28, 56)))}),
    ("numa-not-zero", {"limits": {"cpuset": (0, 2, 3)}}),
    ("mempolicy", {"settings": {"container": "docker"}, "sys_nice": True}),
    ("mempolicy", {"topology": {"numa_nodes": (SPLIT.numa_nodes[0], MEMORYLESS)}, **NO_NICE}),
    (
        "shell-bound",
        {
            "topology": topology(allowed=(0, 1)),
            "limits": {"cpuset": (0, 1)},
            **env(OMP_NUM_THREADS="2"),
        },
    ),
    (
        "openmpi-one-core",
        {"launchers": (OPENMPI,), **env(OMPI_MCA_hwloc_base_binding_policy="none")},
    ),
    (
        "openmpi-one-core",
        {"topology": topology(allowed=(3, 4)), **env(**TWO_BY_OPENMPI), "launchers": (OPENMPI,)},
    ),
    (
        "openmpi-one-core",
        {"launchers": (OPENMPI,), **env(PRTE_MCA_hwloc_default_binding_policy="none")},
    ),
    (
        "bound-twice",
        env(
            I_MPI_PIN="0",
            I_MPI_PIN_DOMAIN="[0x3,0xc]",
            KMP_AFFINITY="compact",
            LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so",
        ),
    ),
    ("bound-twice", env(I_MPI_PIN="1")),
    ("bound-twice", env(KMP_AFFINITY="verbose,none", I_MPI_PIN="1", **IOMP)),
    ("bound-twice", env(OMP_PROC_BIND="close", I_MPI_PIN="1")),
    ("pin-mask", env(I_MPI_PIN_DOMAIN="[0xffff,0xffff0000]")),
    ("pin-mask", env(I_MPI_PIN_DOMAIN="socket")),
    (
        "fp16-ignored",
        {
            "accelerators": ("nvidia",),
            "packages": {"torch": "2.13.0+cu130"},
            **env(ACCELERATE_MIXED_PRECISION="fp16"),
        },
    ),
    ("fp16-ignored", env(ACCELERATE_MIXED_PRECISION="bf16")),
    ("isa-capped", env(ONEDNN_MAX_CPU_ISA="AVX512_CORE_AMX")),
    (
        "amx-doubtful",
        {"settings": {"kernel": "5.14.0-427.el9.x86_64"}, "cpu": {"hypervisor": True}},
    ),
    ("amx-doubtful", {"cpu": {"isa": CASCADE_LAKE_ISA}, **kernel("5.4.0")}),
    ("isa-old", {"cpu": {"isa": ("asimd", "bf16"), "architecture": "aarch64", "vendor": "ARM"}}),
    ("bf16-slow", {"cpu": {"isa": (*CASCADE_LAKE_ISA, "avx512_bf16")}}),
    ("bf16-native", {"cpu": {"isa": CASCADE_LAKE_ISA}, **env(ACCELERATE_MIXED_PRECISION=None)}),
    ("bf16-native", {"packages": {"torch": None}, **env(ACCELERATE_MIXED_PRECISION=None)}),
    ("intel-only", {"packages": IPEX_ERA}),
    ("intel-only", {"cpu": {"vendor": "AuthenticAMD"}}),
    ("openmp-two", env(LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so")),
    ("openmp-two", env(LD_PRELOAD="/lib/libgomp.so.1")),
    ("setting-without-library", env(KMP_BLOCKTIME="1", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so")),
    ("setting-without-library", env(MALLOC_CONF="x", LD_PRELOAD="/lib/libjemalloc.so.2")),
    ("conda-pip-mixed", {"packages": {"torch": None, "numpy": by("conda", "numpy")}}),
    (
        "allocator-default",
        {
            "libraries": (Library(name="libgomp", path="/usr/lib/libgomp.so.1"),),
            **env(LD_PRELOAD=None),
        },
    ),
    ("allocator-default", {"preload_missing": ("/x.so",), **env(LD_PRELOAD="/x.so")}),
    ("allocator-missing", {"libraries": (), **env(LD_PRELOAD="/opt/libjemalloc.so.2")}),
    ("facts-missing", {}),
    ("machine-busy", {"load": {"average_1min": 40.0, "running_threads": 1}}),
    ("machine-busy", {"load": {"busy": (replace(TRAIN, cpu_share=0.4),)}}),
    ("memory-low", {"memory": {"available_bytes": 100 * GIB}}),
    ("swap-in-use", {"memory": {"swap_free_bytes": 8 * GIB - (100 << 20)}}),
    ("governor", {"settings": {"frequencies": (FULL_SPEED, ACTIVE_AT_FULL_SPEED)}}),
    ("turbo-off", {"settings": {"turbo": None}}),
    ("huge-pages", {"settings": {"transparent_huge_pages": "always"}}),
    ("numa-balancing", {**ONE_SOCKET, "settings": {"numa_balancing": True}}),
    ("siblings-together", {"topology": topology(sockets=1, cores=3)}),
    ("siblings-together", BESIDE_AND_APART),
    ("sockets-of-one-core", {"topology": topology(sockets=4, cores=1, sockets_known=False)}),
    ("sockets-of-one-core", {"topology": topology(sockets=4, cores=2)}),
    ("numa-in-socket", {"topology": topology(nodes_per_socket=2, sockets_known=False)}),
    (
        "numa-cpuless",
        {"topology": {"numa_nodes": (*NODES, NumaNode(id=2, cpus=(), memory_bytes=None))}},
    ),
    ("numa-full", {"topology": {"numa_nodes": tuple(replace(n, free_bytes=GIB) for n in NODES)}}),
    ("cpus-offline", {"topology": {"present": tuple(range(224))}, "settings": {"smt": "off"}}),
)

BORDERS: tuple[tuple[str, Changes, Changes], ...] = (
    # a check, what is just well, what is just ill
    ("quota-threads", limits(cpu_quota=56.0), limits(cpu_quota=55.9)),
    ("quota-throttled", throttled(99, 99), throttled(100, 99)),
    ("quota-throttled", throttled(100, 10), throttled(100, 11)),
    (
        "ranks-oversubscribed",
        env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="56"),
        env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="57"),
    ),
    (
        "ranks-oversubscribed",  # one rank is threads-affinity's
        env(LOCAL_WORLD_SIZE="1", OMP_NUM_THREADS="200"),
        env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="100"),
    ),
    (
        "one-core",
        {"topology": topology(sockets=1, cores=1)},
        {"topology": topology(sockets=1, cores=2, smt=1, allowed=(1,))},
    ),
    ("primitive-cache", limits(memory_bytes=8 * GIB + 1), limits(memory_bytes=8 * GIB)),
    ("shm-small", limits(shm_bytes=256 * MIB), limits(shm_bytes=256 * MIB - 1)),
    ("shm-full", limits(shm_free_bytes=256 * MIB), limits(shm_free_bytes=256 * MIB - 1)),
    (
        "shm-full",  # what is small is shm-small's
        limits(shm_bytes=256 * MIB - 1, shm_free_bytes=0),
        limits(shm_bytes=256 * MIB, shm_free_bytes=0),
    ),
    ("open-files", limits(open_files=1024), limits(open_files=1023)),
    ("processes-few", limits(pids=368), limits(pids=367)),
    (
        "processes-few",
        {**limits(processes=368), "sys_resource": False},
        {**limits(processes=367), "sys_resource": False},
    ),
    (
        "memlock-small",
        {**limits(memlock_bytes=GIB), **env(FI_PROVIDER="verbs")},
        {**limits(memlock_bytes=GIB - 1), **env(FI_PROVIDER="verbs")},
    ),
    (
        "ccl-workers",
        env(CCL_WORKER_COUNT="55", OMP_NUM_THREADS=None),
        env(CCL_WORKER_COUNT="56", OMP_NUM_THREADS=None),
    ),
    (
        "openmpi-one-core",  # each of two ranks has its core
        {
            "topology": topology(sockets=1, cores=2, smt=1, allowed=(1,)),
            **env(**TWO_BY_OPENMPI, OMPI_COMM_WORLD_LOCAL_SIZE="2"),
        },
        {
            "topology": topology(sockets=1, cores=4, smt=1, allowed=(1,)),
            **env(**TWO_BY_OPENMPI, OMPI_COMM_WORLD_LOCAL_SIZE="2"),
        },
    ),
    ("amx-doubtful", kernel("5.16.0"), kernel("5.15.0")),
    ("master-addr", env(PMI_RANK="0", PMI_SIZE="1"), env(PMI_RANK="0", PMI_SIZE="2")),
    (
        "sockets-of-one-core",
        {"topology": topology(sockets=3, cores=1)},
        {"topology": topology(sockets=4, cores=1)},
    ),
    ("numa-full", node(free_bytes=2 * GIB), node(free_bytes=2 * GIB - 1)),
    ("machine-busy", load(average_1min=28.0), load(average_1min=28.1)),
    (
        "machine-busy",
        load(average_1min=40.0, running_threads=1),
        load(average_1min=40.0, running_threads=2),
    ),
    ("machine-busy", load(cpu_pressure_percent=10.0), load(cpu_pressure_percent=10.1)),
    ("machine-busy", load(busy=(process(27.9),)), load(busy=(process(28.0),))),
    ("cpu-steal", load(steal_share=0.02), load(steal_share=0.021)),
    (
        "memory-low",  # a twentieth of much memory
        {"memory": {"total_bytes": 200 * GIB, "available_bytes": 10 * GIB}},
        {"memory": {"total_bytes": 200 * GIB, "available_bytes": 10 * GIB - 1}},
    ),
    (
        "memory-low",  # two GiB of less
        {"memory": {"total_bytes": 16 * GIB, "available_bytes": 2 * GIB}},
        {"memory": {"total_bytes": 16 * GIB, "available_bytes": 2 * GIB - 1}},
    ),
    (
        "memory-low",  # half of little
        {"memory": {"total_bytes": 2 * GIB, "available_bytes": GIB}},
        {"memory": {"total_bytes": 2 * GIB, "available_bytes": GIB - 1}},
    ),
    (
        "swap-in-use",
        {"memory": {"swap_total_bytes": GIB, "swap_free_bytes": GIB - 256 * MIB}},
        {"memory": {"swap_total_bytes": GIB, "swap_free_bytes": GIB - 256 * MIB - 1}},
    ),
    (
        "swap-in-use",
        {"memory": {"swap_total_bytes": 20 * GIB, "swap_free_bytes": 19 * GIB}},
        {"memory": {"swap_total_bytes": 20 * GIB, "swap_free_bytes": 19 * GIB - 1}},
    ),
)


def told(code: str) -> str:
    """What is found on each machine that has this fault, as it is reviewed."""
    machines = [changes for other, changes in FAULTS if other == code]
    check = BY_CODE[code]
    found = (check(changed(**changes)) for changes in machines)
    return "\n".join("".join(words(finding, check) for finding in those) for those in found)


@pytest.mark.parametrize("code", dict(FAULTS))
def test_a_fault_is_told_as_it_was_reviewed(code: str, request: pytest.FixtureRequest) -> None:
    said = told(code)
    assert "" not in said.split("\n\n"), "one of the machines has no such fault"
    path = GOLDEN / f"{code}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("code", "changes"), NEARLY)
def test_what_comes_close_is_no_fault(code: str, changes: Changes) -> None:
    assert not BY_CODE[code](changed(**changes))


@pytest.mark.parametrize(("code", "well", "ill"), BORDERS)
def test_a_fault_begins_here(code: str, well: Changes, ill: Changes) -> None:
    assert (fires(code, well), fires(code, ill)) == (False, True)


def fires(code: str, changes: Changes) -> bool:
    return bool(BY_CODE[code](changed(**changes)))


def test_every_check_is_in_the_table() -> None:
    reviewed = {path.stem for path in GOLDEN.iterdir()}
    assert dict(FAULTS).keys() == BY_CODE.keys() - {c.code for c in versions.CHECKS} == reviewed


def test_codes_are_distinct() -> None:
    assert len(BY_CODE) == len(CHECKS)


def test_a_clean_machine_has_no_findings() -> None:
    assert diagnose(CLEAN).findings == ()


def test_bash_and_shellcheck_take_the_cures_of_all_faults(
    tmp_path: Path,
) -> None:
    findings = tuple(f for code, changes in FAULTS for f in BY_CODE[code](changed(**changes)))
    path = tmp_path / "fix.sh"
    commands = dict.fromkeys(one.command for one in findings if one.command)
    head = "#!/usr/bin/env bash\n# shellcheck disable=SC2012\n"  # sizes in /dev/shm, for people
    path.write_text(head + "\n".join(commands))
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    assert shellcheck(path) == ""
