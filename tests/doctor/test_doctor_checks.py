"""Each check fires on a machine that has its fault, and not on one that nearly has it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clean_machine import (
    CASCADE_LAKE_ISA,
    CLEAN,
    GIB,
    IPEX_ERA,
    TCMALLOC,
    changed,
    topology,
)
from scripts import shellcheck

from cputune.doctor import Diagnosis, Severity, diagnose
from cputune.doctor.checks import versions
from cputune.doctor.registry import CHECKS
from cputune.facts import (
    BusyProcess,
    Core,
    Frequency,
    HostFacts,
    Launcher,
    Library,
    Network,
    NumaNode,
    Package,
    Topology,
    Unknown,
)
from cputune.host import Place, Stray, Surroundings
from cputune.report.fixes import fix_script

BY_CODE = {check.code: check for check in CHECKS}
ERROR, WARNING, ADVICE = Severity

INTEL_MPI = Launcher(
    name="mpirun", path="/opt/intel/bin/mpirun", dialect="intelmpi", version="2021.18"
)
OPENMPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4", version="4.1.4")
SPLIT = topology()
MEMORYLESS = replace(SPLIT.numa_nodes[1], memory_bytes=0)
FULL = replace(SPLIT.numa_nodes[1], free_bytes=GIB)
HBM = NumaNode(id=2, cpus=(), memory_bytes=64 * GIB)
CONDA_NUMPY = Package(name="numpy", version="1.26.4", location="/conda", installer="conda")


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


FULL_SPEED = Frequency(cpus=(0, 1, 2, 3), governor="performance")
SAVING = Frequency(
    cpus=(4, 5, 6, 7),
    governor="powersave",
    driver="intel_pstate",
    energy_preference="balance_performance",
)
ACTIVE_AT_FULL_SPEED = replace(SAVING, energy_preference="performance")
TRAIN = BusyProcess(pid=77, name="train", cpu_share=30.0)


class Case(NamedTuple):
    """A fault: what it takes, what the finding says, and what comes close without being it."""

    code: str
    fault: dict[str, Any]
    said: tuple[str, ...]
    severity: Severity = ADVICE
    near: dict[str, Any] | None = None


def env(**variables: str | None) -> dict[str, Any]:
    return {"environment": variables}


def strays(*found: Stray) -> dict[str, Any]:
    return {"surroundings": Surroundings(strays=found)}


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


TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "OMP_NUM_THREADS": "28"}
MASTER = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
TWO_PODS = {"PET_NNODES": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}

STRAY = "/a b/bin/mpirun --version ended with 127"

CASES = (
    Case(
        "facts-missing",
        {
            "topology": {"cores": (), "online": (), "allowed": (), "present": None},
            "unknown": (Unknown(fact="topology.online", reason="/sys is not mounted"),),
        },
        ("no CPU can be seen", "/sys is not mounted"),
        WARNING,
    ),
    Case(
        "quota-threads",
        {"limits": {"cpu_quota": 8.5}, **env(OMP_NUM_THREADS=None)},
        ("8.5 CPUs", "56 threads", "one per allowed core"),
        WARNING,
        near={"limits": {"cpu_quota": 8.5}, **env(OMP_NUM_THREADS="8")},
    ),
    Case(
        "quota-throttled",
        {"limits": {"cpu_quota": 8.0, "periods": 1000, "throttled_periods": 950}},
        ("950 of 1000", "95 %", "8 CPUs"),
        WARNING,
        near={"limits": {"periods": 1000, "throttled_periods": 950}},
    ),
    Case(
        "ranks-auto",
        {"limits": {"cpu_quota": 8.0}, **env(PET_NPROC_PER_NODE="auto")},
        ("auto", "112 ranks", "8 cores"),
        ERROR,
        near=env(PET_NPROC_PER_NODE="2", OMP_NUM_THREADS="28"),
    ),
    Case(
        "ranks-oversubscribed",
        env(**TORCHRUN, OMP_NUM_THREADS="112"),
        ("2 local ranks", "224 threads", "112 CPUs"),
        WARNING,
        near=env(**TORCHRUN, OMP_NUM_THREADS="28"),
    ),
    Case(
        "memory-limit",
        {"limits": {"memory_bytes": 4 * GIB}},
        ("cgroup limit is 4.0 GiB", "bert-large-squad 8.2 GiB"),
        near={"limits": {"memory_bytes": 16 * GIB}},
    ),
    Case(
        "shm-small",
        {"limits": {"shm_bytes": 64 << 20}},
        ("64 MiB", "1024 MiB"),
        WARNING,
        near={"limits": {"shm_bytes": GIB}},
    ),
    Case(
        "shm-full",
        {"limits": {"shm_free_bytes": 12 << 20}},
        ("12 of 262144 MiB", "1024 MiB"),
        WARNING,
        near={"limits": {"shm_free_bytes": 200 * GIB}},
    ),
    Case(
        "shm-read-only",
        {"limits": {"shm_read_only": True}},
        ("read-only",),
        WARNING,
        near={"limits": {"shm_read_only": False}},
    ),
    Case(
        "processes-few",
        {"limits": {"pids": 256, "pids_used": 40}},
        ("pids.max is 256, of which 40", "112 CPUs", "368"),
        WARNING,
        near={"limits": {"pids": 4096, "pids_used": 40}},
    ),
    Case(
        "processes-few",
        {"limits": {"processes": 128}, "sys_resource": False},
        ("ulimit -u is 128", "368"),
        WARNING,
        near={"limits": {"processes": 128}, "sys_resource": True},
    ),
    Case(
        "niced",
        {"limits": {"nice": 19}},
        ("nice 19",),
        near={"limits": {"nice": 0}},
    ),
    Case(
        "one-core",
        {
            "topology": topology(allowed=(3, 59)),
            "limits": {"cpuset": (3, 59)},
            **env(OMP_NUM_THREADS="1"),
        },
        ("CPU 3,59 is allowed", "56 cores"),
        WARNING,
        near={
            "topology": topology(allowed=(3, 4)),
            "limits": {"cpuset": (3, 4)},
            **env(OMP_NUM_THREADS="2"),
        },
    ),
    Case(
        "open-files",
        {"limits": {"open_files": 256}},
        ("256", "1024"),
        near={"limits": {"open_files": 1024}},
    ),
    Case(
        "memlock-small",
        {"limits": {"memlock_bytes": 8 << 20}, **env(FI_PROVIDER="verbs")},
        ("verbs", "8 MiB"),
        WARNING,
        near={"limits": {"memlock_bytes": 8 << 20}, **env(FI_PROVIDER="tcp")},
    ),
    Case(
        "primitive-cache",
        env(ONEDNN_PRIMITIVE_CACHE_CAPACITY="100000"),
        ("100000", "1024"),
        near={"limits": {"memory_bytes": 7 * GIB}, **env(ONEDNN_PRIMITIVE_CACHE_CAPACITY="64")},
    ),
    Case(
        "threads-one",
        env(OMP_NUM_THREADS="1"),
        ("OMP_NUM_THREADS=1", "56 cores"),
        WARNING,
        near={"topology": topology(sockets=1, cores=1, smt=1), **env(OMP_NUM_THREADS="1")},
    ),
    Case(
        "threads-malformed",
        env(OMP_NUM_THREADS="$(nproc)"),
        ("$(nproc)",),
        WARNING,
        near=env(OMP_NUM_THREADS="56,1"),
    ),
    Case(
        "threads-affinity",
        {"topology": topology(allowed=(0, 1, 2, 3))},
        ("OMP_NUM_THREADS=56", "allowed CPUs: 4 (0-3)"),
        WARNING,
        near={"topology": topology(allowed=(0, 1, 2, 3)), **env(OMP_NUM_THREADS="4")},
    ),
    Case(
        "threads-siblings",
        env(OMP_NUM_THREADS="112"),
        ("112 threads", "56 allowed physical cores"),
        near=env(OMP_NUM_THREADS="56"),
    ),
    Case(
        "threads-mkl",
        env(MKL_NUM_THREADS="4"),
        ("MKL_NUM_THREADS=4", "OMP_NUM_THREADS=56"),
        WARNING,
        near=env(MKL_NUM_THREADS="56"),
    ),
    Case(
        "threads-subset",
        env(KMP_HW_SUBSET="1s,8c,1t", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so"),
        ("8 places", "OMP_NUM_THREADS=56"),
        WARNING,
        near=env(KMP_HW_SUBSET="2s,28c,1t", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so"),
    ),
    Case(
        "threads-limit",
        env(OMP_THREAD_LIMIT="8"),
        ("OMP_THREAD_LIMIT=8", "56 threads"),
        WARNING,
        near=env(OMP_THREAD_LIMIT="112"),
    ),
    Case(
        "affinity-shrinks",
        env(KMP_AFFINITY="granularity=fine,compact,1,0", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so"),
        ("KMP_AFFINITY=granularity=fine,compact,1,0",),
        WARNING,
        near=env(KMP_AFFINITY="none", OMP_PROC_BIND="false"),
    ),
    Case(
        "affinity-gomp",
        {"topology": topology(allowed=(0, 1, 2, 3)), **env(GOMP_CPU_AFFINITY="0-7:2")},
        ("GOMP_CPU_AFFINITY=0-7:2", "CPUs 4,6", "0-3"),
        WARNING,
    ),
    Case(
        "bound-twice",
        env(
            I_MPI_PIN_DOMAIN="[0x3,0xc]",
            KMP_AFFINITY="compact",
            LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so",
        ),
        ("I_MPI_PIN_DOMAIN=[0x3,0xc]", "KMP_AFFINITY=compact"),
        WARNING,
        near=env(
            I_MPI_PIN="0",
            I_MPI_PIN_DOMAIN="[0x3,0xc]",
            KMP_AFFINITY="compact",
            LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so",
        ),
    ),
    Case(
        "ccl-affinity",
        {
            "packages": IPEX_ERA,
            "topology": topology(allowed=tuple(range(28))),
            **env(CCL_WORKER_AFFINITY="0,1,28,29", OMP_NUM_THREADS="26"),
        },
        ("28-29", "0-27"),
        ERROR,
        near=env(CCL_WORKER_AFFINITY="0,1,28,29"),
    ),
    Case(
        "ccl-workers",
        {
            "packages": IPEX_ERA,
            "topology": topology(sockets=1, cores=1, smt=1),
            **env(CCL_WORKER_COUNT="2", OMP_NUM_THREADS="1"),
        },
        ("CCL_WORKER_COUNT=2", "1 usable core"),
        ERROR,
        near=env(CCL_WORKER_COUNT="4", OMP_NUM_THREADS="52"),
    ),
    Case(
        "places-outside",
        {"topology": topology(allowed=(0, 1)), **env(OMP_PLACES="{0},{1},{64:2}")},
        ("64-65", "0-1"),
        WARNING,
        near=env(OMP_PLACES="cores"),
    ),
    Case(
        "pin-mask",
        env(I_MPI_PIN_DOMAIN="[ffff,ffff0000]"),
        ("no 0x", "ffff0000"),
        WARNING,
        near=env(I_MPI_PIN_DOMAIN="[0xffff,0xffff0000]"),
    ),
    Case(
        "pin-off",
        {"launchers": (INTEL_MPI,), **env(I_MPI_PIN="0")},
        ("I_MPI_PIN=0", "2 NUMA nodes"),
        near={"launchers": (INTEL_MPI,), **env(I_MPI_PIN="1")},
    ),
    Case(
        "openmpi-one-core",
        {"launchers": (OPENMPI,)},
        ("/usr/bin/mpirun", "1 of 56 cores"),
        near={"launchers": (OPENMPI,), **env(OMPI_MCA_hwloc_base_binding_policy="none")},
    ),
    Case(
        "numa-not-zero",
        {
            "topology": topology(allowed=tuple(range(28, 56))),
            "limits": {"cpuset": tuple(range(28, 56))},
        },
        ("the cpuset holds CPUs 28-55", "node 1"),
        near={"topology": topology(allowed=tuple(range(28, 56)))},
    ),
    Case(
        "mempolicy",
        {"settings": {"container": "docker"}, "sys_nice": False},
        ("docker", "CAP_SYS_NICE", "2 NUMA nodes"),
        near={"settings": {"container": "docker"}, "sys_nice": True},
    ),
    Case(
        "shell-bound",
        {"topology": topology(allowed=(0, 1)), **env(OMP_NUM_THREADS="2")},
        ("0-1", "0-111"),
        near={
            "topology": topology(allowed=(0, 1)),
            "limits": {"cpuset": (0, 1)},
            **env(OMP_NUM_THREADS="2"),
        },
    ),
    Case(
        "isa-capped",
        env(ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16"),
        ("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16", "amx_bf16"),
        WARNING,
        near=env(ONEDNN_MAX_CPU_ISA="AVX512_CORE_AMX"),
    ),
    Case(
        "bf16-slow",
        {"cpu": {"isa": CASCADE_LAKE_ISA}},
        ("ACCELERATE_MIXED_PRECISION=bf16", "none of avx512_bf16", "avx512f"),
        WARNING,
        near={"cpu": {"isa": (*CASCADE_LAKE_ISA, "avx512_bf16")}},
    ),
    Case(
        "bf16-native",
        env(ACCELERATE_MIXED_PRECISION=None),
        ("amx_bf16", "avx512_bf16"),
        near={"cpu": {"isa": CASCADE_LAKE_ISA}, **env(ACCELERATE_MIXED_PRECISION=None)},
    ),
    Case(
        "fp16-ignored",
        env(ACCELERATE_MIXED_PRECISION="fp16"),
        ("fp16",),
        WARNING,
        near={
            "accelerators": ("nvidia",),
            "packages": {"torch": "2.13.0+cu130"},
            **env(ACCELERATE_MIXED_PRECISION="fp16"),
        },
    ),
    Case(
        "amx-doubtful",
        {"settings": {"kernel": "5.4.0-99-generic"}, "cpu": {"hypervisor": True}},
        ("5.4.0-99-generic", "5.16"),
        WARNING,
        near={"settings": {"kernel": "5.14.0-427.el9.x86_64"}, "cpu": {"hypervisor": True}},
    ),
    Case(
        "launch-left-over",
        env(LOCAL_RANK="0", WORLD_SIZE="2"),
        ("WORLD_SIZE=2, LOCAL_RANK=0", "no launcher"),
        ERROR,
        near=env(WORLD_SIZE="2"),
    ),
    Case(
        "module-shadowed",
        strays(Stray(name="torch", path="/repo/torch.py", how="the working folder")),
        ("import torch takes /repo/torch.py",),
        ERROR,
    ),
    Case(
        "library-first",
        {
            **strays(Stray(name="libc10.so", path="/old/libc10.so", how="LD_LIBRARY_PATH")),
            **env(LD_LIBRARY_PATH="/old:/opt/lib"),
        },
        ("/old/libc10.so is of another torch",),
        ERROR,
    ),
    Case(
        "package-hollow",
        strays(Stray(name="accelerate", path="/venv/accelerate", how="no __init__.py")),
        ("/venv/accelerate has no __init__.py",),
        ERROR,
    ),
    Case(
        "package-hollow",
        strays(Stray(name="accelerate", path="/src/accelerate", how="no metadata 1.15.0")),
        ("/src/accelerate 1.15.0 has no metadata", "is not judged"),
        WARNING,
    ),
    Case(
        "package-hollow",
        strays(Stray(name="tokenizers", path="/venv/tokenizers", how="built for aarch64")),
        ("/venv/tokenizers is built for aarch64",),
        ERROR,
    ),
    Case(
        "environment-moved",
        {"surroundings": Surroundings(names_nothing=("/venv/bin/torchrun",))},
        ("the first line of /venv/bin/torchrun",),
        ERROR,
    ),
    Case(
        "environment-foreign",
        {"surroundings": Surroundings(prefix="/venv", places=(place("VIRTUAL_ENV", "/other"),))},
        ("VIRTUAL_ENV=/other", "Python of /venv"),
        WARNING,
        near={
            "surroundings": Surroundings(prefix="/venv", places=(place("VIRTUAL_ENV", "/venv"),))
        },
    ),
    Case(
        "variable-refused",
        env(ACCELERATE_USE_DEEPSPEED="true"),
        ("DeepSpeed, which is not installed",),
        ERROR,
        near={"packages": {"deepspeed": "0.19.3"}, **env(ACCELERATE_USE_DEEPSPEED="true")},
    ),
    Case(
        "master-unknown",
        {"surroundings": Surroundings(names_nothing=("MASTER_ADDR",)), **env(**MASTER)},
        ("no address was found",),
        ERROR,
        near=env(**MASTER),
    ),
    Case(
        "master-port-taken",
        {"surroundings": Surroundings(ports_taken=("MASTER_PORT",)), **env(**MASTER)},
        ("MASTER_PORT=29500",),
        WARNING,
        near=env(**MASTER),
    ),
    Case(
        "address-space",
        {"limits": {"address_space_bytes": 4 * GIB}},
        ("ulimit -v is 4.0 GiB",),
        WARNING,
        near={"limits": {"address_space_bytes": 64 * GIB}},
    ),
    Case(
        "file-size",
        {"limits": {"file_bytes": GIB}},
        ("ulimit -f is 1024.0 MiB",),
        ERROR,
        near={"limits": {"file_bytes": 2 * GIB}},
    ),
    Case(
        "cpu-seconds",
        {"limits": {"cpu_seconds": 3599}},
        ("ulimit -t is 3599 seconds",),
        ERROR,
        near={"limits": {"cpu_seconds": 3600}},
    ),
    Case(
        "folder-unusable",
        {"surroundings": Surroundings(places=(place("HF_HOME", "/ro", writable=False),))},
        ("HF_HOME: /ro", "HOME cannot be written"),
        WARNING,
        near={"surroundings": Surroundings(places=(place("HF_HOME", "/rw", exists=False),))},
    ),
    Case(
        "folder-full",
        {"surroundings": Surroundings(places=(place("HF_HOME", "/full", free_bytes=GIB // 2),))},
        ("512 MiB are free at /full",),
        WARNING,
        near={"surroundings": Surroundings(places=(place("TMPDIR", "/t", free_bytes=GIB // 2),))},
    ),
    Case(
        "cache-not-read",
        env(TRANSFORMERS_CACHE="/models"),
        ("TRANSFORMERS_CACHE=/models",),
        WARNING,
        near=env(TRANSFORMERS_CACHE="/models", HF_HUB_CACHE="/models"),
    ),
    Case(
        "debug-left-on",
        env(TORCH_DISTRIBUTED_DEBUG="DETAIL"),
        ("each collective is checked",),
        WARNING,
        near=env(TORCH_DISTRIBUTED_DEBUG="INFO"),
    ),
    Case(
        "proxy-dead",
        {"surroundings": Surroundings(names_nothing=("https_proxy",))},
        ("the address in https_proxy",),
        WARNING,
    ),
    Case(
        "locale-missing",
        {"surroundings": Surroundings(names_nothing=("LC_ALL",)), **env(LC_ALL="de_DE.UTF-8")},
        ("LC_ALL=de_DE.UTF-8",),
        near=env(LC_ALL="C.UTF-8"),
    ),
    Case(
        "isa-old",
        {"cpu": {"isa": ("avx", "sse4_2")}, **env(ACCELERATE_MIXED_PRECISION="no")},
        ("avx, sse4_2",),
        WARNING,
        near={"cpu": {"isa": ("asimd", "bf16"), "architecture": "aarch64", "vendor": "ARM"}},
    ),
    Case(
        "ranks-alone",
        env(**TORCHRUN, **MASTER, OMP_NUM_THREADS="28", ACCELERATE_USE_CPU=None),
        ("2 ranks", "accelerate 1.15.0", "(unset)"),
        ERROR,
        near={
            "packages": {"accelerate": "1.12.0"},
            **env(**TORCHRUN, **MASTER, OMP_NUM_THREADS="28", ACCELERATE_USE_CPU=None),
        },
    ),
    Case(
        "rank-left-over",
        env(**{**HYDRA, **MASTER, "PMI_RANK": "1"}, RANK="0"),
        ("RANK=0", "PMI_RANK=1"),
        ERROR,
        near=env(**HYDRA, **MASTER, RANK="0"),
    ),
    Case(
        "rank-impossible",
        env(RANK="2", WORLD_SIZE="2"),
        ("RANK=2", "WORLD_SIZE=2"),
        ERROR,
        near=env(RANK="1", WORLD_SIZE="2"),
    ),
    Case(
        "master-port",
        env(MASTER_PORT="tcp://10.0.0.1:29500"),
        ("tcp://10.0.0.1:29500",),
        ERROR,
        near=env(MASTER_PORT="29500"),
    ),
    Case(
        "provider-local",
        env(**TWO_PODS, FI_PROVIDER="shm"),
        ("shm", "2 machines"),
        ERROR,
        near=env(FI_PROVIDER="shm"),
    ),
    Case(
        "master-addr",
        env(**HYDRA),
        ("2 ranks", "MASTER_ADDR is unset"),
        ERROR,
        near=env(**HYDRA, **MASTER),
    ),
    Case(
        "master-loopback",
        env(**{**TWO_PODS, "MASTER_ADDR": "127.0.0.1"}),
        ("127.0.0.1", "2 machines"),
        ERROR,
        near=env(**{**TWO_PODS, "PET_NNODES": "1", "MASTER_ADDR": "127.0.0.1"}),
    ),
    Case(
        "gloo-loopback",
        {"network": {"hostname_addresses": ("10.0.0.7", "127.0.1.1")}, **env(**TWO_PODS)},
        ("127.0.1.1", "2 machines"),
        ERROR,
        near={"network": {"hostname_addresses": ("127.0.1.1",)}},
    ),
    Case(
        "interface-missing",
        env(GLOO_SOCKET_IFNAME="ens3"),
        ("GLOO_SOCKET_IFNAME=ens3", "eth0"),
        ERROR,
        near=env(GLOO_SOCKET_IFNAME="eth0"),
    ),
    Case(
        "ccl-without-mpi",
        {
            "packages": IPEX_ERA,
            **env(**TORCHRUN, **MASTER, OMP_NUM_THREADS="27", CCL_WORKER_COUNT="1"),
        },
        ("CCL_WORKER_COUNT=1", "WORLD_SIZE=2", "PMI_RANK"),
        ERROR,
        near={
            "packages": IPEX_ERA,
            **env(**HYDRA, **MASTER, CCL_WORKER_COUNT="1"),
        },
    ),
    Case(
        "ccl-transport",
        env(CCL_ATL_TRANSPORT="mpi"),
        ("CCL_ATL_TRANSPORT=mpi", "I_MPI_ROOT is unset"),
        WARNING,
        near=env(CCL_ATL_TRANSPORT="ofi"),
    ),
    Case(
        "mpi-mixed",
        env(I_MPI_ROOT="/opt/intel/oneapi/mpi/latest"),
        ("/opt/intel/oneapi/mpi/latest", "/usr/bin/mpirun is mpich"),
        WARNING,
    ),
    Case(
        "mpi-outside",
        {
            "launchers": (replace(INTEL_MPI, path="/a b/bin/mpirun", dialect=None),),
            "unknown": (Unknown(fact="launchers.mpirun.dialect", reason=STRAY),),
        },
        ("ended with 127",),
        WARNING,
        near={"launchers": (replace(INTEL_MPI, dialect=None),)},
    ),
    Case(
        "accelerate-one-process",
        {"launchers": ()},
        ("accelerate 1.15.0", "mpirun is not"),
        near={"launchers": (), "topology": topology(sockets=1), **env(OMP_NUM_THREADS="28")},
    ),
    Case(
        "gloo-slow",
        {"packages": IPEX_ERA},
        ("2.8.0", "CCL_WORKER_COUNT is unset"),
        near={"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="4", OMP_NUM_THREADS="52")},
    ),
    Case(
        "mpi-missing",
        {"launchers": ()},
        ("2 sockets", "no mpirun"),
        near={"launchers": (), "topology": topology(sockets=1), **env(OMP_NUM_THREADS="28")},
    ),
    Case(
        "intel-only",
        {"packages": IPEX_ERA, "cpu": {"vendor": "AuthenticAMD"}},
        ("intel_extension_for_pytorch, oneccl_bind_pt", "AuthenticAMD"),
        near={"packages": IPEX_ERA},
    ),
    Case(
        "preload-dead",
        {
            "preload_missing": ("/usr/lib/libtcmalloc.so",),
            **env(LD_PRELOAD="/usr/lib/libtcmalloc.so"),
        },
        ("/usr/lib/libtcmalloc.so is no file", TCMALLOC),
        WARNING,
    ),
    Case(
        "openmp-two",
        env(LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so:/usr/lib/libgomp.so.1"),
        ("/opt/libiomp5.so", "/usr/lib/libgomp.so.1"),
        WARNING,
        near=env(LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so"),
    ),
    Case(
        "allocator-default",
        env(LD_PRELOAD=None),
        (TCMALLOC, "unset"),
        near={
            "libraries": (Library(name="libgomp", path="/usr/lib/libgomp.so.1"),),
            **env(LD_PRELOAD=None),
        },
    ),
    Case(
        "allocator-missing",
        {"libraries": (), **env(LD_PRELOAD=None)},
        ("no libtcmalloc",),
        near={"libraries": (), **env(LD_PRELOAD="/opt/libjemalloc.so.2")},
    ),
    Case(
        "setting-without-library",
        env(KMP_BLOCKTIME="1"),
        ("KMP_BLOCKTIME=1", "no libiomp5"),
        near=env(KMP_BLOCKTIME="1", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so"),
    ),
    Case(
        "blocktime-long",
        env(KMP_BLOCKTIME="infinite"),
        ("KMP_BLOCKTIME=infinite",),
        near=env(KMP_BLOCKTIME="200"),
    ),
    Case(
        "schedule-dynamic",
        env(OMP_SCHEDULE="DYNAMIC,1"),
        ("OMP_SCHEDULE=DYNAMIC,1",),
        near=env(OMP_SCHEDULE="STATIC"),
    ),
    Case(
        "conda-pip-mixed",
        {"packages": {"numpy": CONDA_NUMPY}},
        ("from conda: numpy", "from pip: torch"),
    ),
    Case(
        "governor",
        {"settings": {"frequencies": (FULL_SPEED, SAVING)}},
        ("powersave (intel_pstate, balance_performance) on CPUs 4-7",),
        near={"settings": {"frequencies": (FULL_SPEED, ACTIVE_AT_FULL_SPEED)}},
    ),
    Case("turbo-off", {"settings": {"turbo": False}}, ("no_turbo",)),
    Case(
        "huge-pages",
        {"settings": {"transparent_huge_pages": "never"}},
        ("never",),
        near={"settings": {"transparent_huge_pages": "always"}},
    ),
    Case(
        "numa-balancing",
        {"settings": {"numa_balancing": True}},
        ("2 NUMA nodes",),
        near={
            "settings": {"numa_balancing": True},
            "topology": topology(sockets=1),
            **env(OMP_NUM_THREADS="28"),
        },
    ),
    Case(
        "swap-in-use",
        {"memory": {"swap_free_bytes": 6 * GIB}},
        ("2.0 of 8.0 GiB",),
        near={"memory": {"swap_free_bytes": 8 * GIB - (100 << 20)}},
    ),
    Case(
        "machine-busy",
        {"load": {"average_1min": 40.0, "cpu_pressure_percent": 35.0}},
        ("40 on 112 CPUs", "35 %"),
        WARNING,
        near={"load": {"average_1min": 40.0, "running_threads": 1}},  # what ran has ended
    ),
    Case(
        "machine-busy",
        {"load": {"busy": (TRAIN,)}},
        ("train (process 77) 3000 %",),
        WARNING,
        near={"load": {"busy": (replace(TRAIN, cpu_share=0.4),)}},
    ),
    Case(
        "memory-low",
        {"memory": {"available_bytes": GIB}},
        ("1.0 of 512.0 GiB",),
        WARNING,
        near={"memory": {"available_bytes": 100 * GIB}},
    ),
    Case("memory-pressure", {"load": {"memory_pressure_percent": 30.0}}, ("30 %",), WARNING),
    Case("cpu-steal", {"load": {"steal_share": 0.12}}, ("12.0 %",), WARNING),
    Case(
        "siblings-together",
        {"topology": topology(together=True)},
        ("0-1 are one core", "0-111 are 56 cores"),
    ),
    Case(
        "hybrid-cores",
        {"topology": hybrid(on=True), **env(OMP_NUM_THREADS="6")},
        ("6 of 14 cores",),
        near={"topology": hybrid(on=False), **env(OMP_NUM_THREADS="6")},
    ),
    Case(
        "cpus-offline",
        {"topology": {"present": tuple(range(116))}},
        ("0-115", "0-111"),
        near={"topology": {"present": tuple(range(224))}, "settings": {"smt": "off"}},
    ),
    Case(
        "numa-memoryless",
        {"topology": {"numa_nodes": (SPLIT.numa_nodes[0], MEMORYLESS)}},
        ("node 1", "0 bytes"),
        WARNING,
    ),
    Case(
        "numa-cpuless",
        {"topology": {"numa_nodes": (*SPLIT.numa_nodes, HBM)}},
        ("node 2: 64 GiB",),
    ),
    Case(
        "numa-full",
        {"topology": {"numa_nodes": (SPLIT.numa_nodes[0], FULL)}},
        ("node 1: 1.0 of 256 GiB",),
    ),
    Case(
        "numa-in-socket",
        {"topology": topology(nodes_per_socket=2)},
        ("2 sockets", "4 NUMA nodes"),
    ),
    Case(
        "sockets-of-one-core",
        {"topology": topology(sockets=24, cores=1, smt=1), **env(OMP_NUM_THREADS="24")},
        ("24 sockets",),
        near={
            "topology": topology(sockets=2, cores=1, smt=1),
            **env(OMP_NUM_THREADS="2"),
        },
    ),
    Case(
        "sockets-unequal",
        {"topology": topology(allowed=tuple(range(40)))},
        ("socket 0: 28", "socket 1: 12"),
        near={"topology": topology(allowed=(*range(14), *range(28, 42)))},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_fires_on_the_fault(case: Case) -> None:
    findings = [f for f in diagnose(changed(**case.fault)).findings if f.code == case.code]
    assert findings, f"{case.code} was not found"
    evidence = "\n".join(finding.evidence for finding in findings)
    for text in case.said:
        assert text in evidence
    assert findings[0].severity is case.severity


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_silent_where_there_is_no_such_fault(case: Case) -> None:
    near = CLEAN if case.near is None else changed(**case.near)
    assert not BY_CODE[case.code](near)


def test_every_check_is_in_the_table() -> None:
    assert {case.code for case in CASES} == set(BY_CODE) - {c.code for c in versions.CHECKS}


def test_codes_are_distinct() -> None:
    assert len(BY_CODE) == len(CHECKS)


def test_a_clean_machine_has_no_findings() -> None:
    assert diagnose(CLEAN).findings == ()


ONE_CORE = {"packages": IPEX_ERA, "topology": topology(sockets=1, cores=1, smt=1)}

SECOND_FAULTS: tuple[tuple[str, HostFacts, Severity], ...] = (
    # a check that looks at more than one thing
    ("facts-missing", changed(topology={"cores_known": False}), ADVICE),
    (
        "facts-missing",
        changed(unknown=(Unknown(fact="cpu.isa", reason="no flags"),)),
        ADVICE,
    ),
    (
        "numa-not-zero",
        changed(topology=topology(nodes_per_socket=2), limits={"cpuset": tuple(range(28, 56))}),
        ADVICE,
    ),
    ("threads-one", changed(**env(OMP_NUM_THREADS=None)), ADVICE),
    (
        "threads-one",
        changed(**env(PET_NPROC_PER_NODE="2", OMP_NUM_THREADS=None)),
        WARNING,
    ),
    ("affinity-shrinks", changed(**env(OMP_PROC_BIND="close")), WARNING),
    ("master-addr", changed(**env(**POD, RANK="0", WORLD_SIZE="2")), ERROR),
    ("affinity-shrinks", changed(**env(KMP_AFFINITY="compact")), ADVICE),
    ("amx-doubtful", changed(settings={"kernel": "5.15.0-91-generic"}), ADVICE),
    (
        "ranks-oversubscribed",
        changed(limits={"cpu_quota": 8.0}, **env(**TORCHRUN, OMP_NUM_THREADS="8")),
        WARNING,
    ),
    ("ranks-alone", changed(**env(ACCELERATE_USE_CPU=None)), ADVICE),
    ("ccl-without-mpi", changed(packages=IPEX_ERA, launchers=()), ADVICE),
    (
        "ccl-without-mpi",
        changed(
            packages=IPEX_ERA,
            **env(**TORCHRUN, CCL_WORKER_COUNT="1", CCL_PROCESS_LAUNCHER="none"),
        ),
        ERROR,
    ),
    ("ccl-workers", changed(packages=IPEX_ERA, **env(CCL_WORKER_COUNT="4")), WARNING),
    # One worker is switched off on one core, two are refused; where they are sent, both run.
    ("ccl-workers", changed(**ONE_CORE, **env(CCL_WORKER_COUNT="1")), WARNING),
    ("ccl-workers", changed(**ONE_CORE, **env(CCL_WORKER_COUNT="2")), ERROR),
    (
        "ccl-workers",
        changed(**ONE_CORE, **env(CCL_WORKER_COUNT="2", CCL_WORKER_AFFINITY="0,0")),
        WARNING,
    ),
    ("ccl-workers", changed(**env(CCL_WORKER_COUNT="4")), ADVICE),
    ("ccl-affinity", changed(**env(CCL_WORKER_AFFINITY="112")), ADVICE),
    ("isa-capped", changed(**env(ATEN_CPU_CAPABILITY="avx2")), WARNING),
    ("isa-capped", changed(**env(MKL_ENABLE_INSTRUCTIONS="AVX2")), WARNING),
    ("isa-capped", changed(**env(DNNL_MAX_CPU_ISA="AVX2")), WARNING),
    ("isa-capped", changed(**env(MKL_DEBUG_CPU_TYPE="5")), WARNING),
    (
        "bf16-slow",
        changed(cpu={"isa": CASCADE_LAKE_ISA}, **env(ACCELERATE_MIXED_PRECISION=None)),
        ADVICE,
    ),
    ("amx-doubtful", changed(cpu={"isa": ("amx_bf16", "avx2", "avx512f")}), WARNING),
    (
        "intel-only",
        changed(packages=IPEX_ERA, cpu={"vendor": "ARM", "architecture": "aarch64"}),
        ERROR,
    ),
    ("openmp-two", changed(**env(KMP_DUPLICATE_LIB_OK="TRUE")), WARNING),
    ("pin-mask", changed(**env(I_MPI_PIN_DOMAIN=f"[{1 << 200:#x}]")), WARNING),
    ("bound-twice", changed(topology=topology(allowed=(0, 1)), **env(I_MPI_PIN="1")), WARNING),
    (
        "openmpi-one-core",
        changed(
            topology=topology(allowed=(3, 59)),
            **env(
                OMPI_COMM_WORLD_RANK="0",
                OMPI_COMM_WORLD_SIZE="2",
                OMPI_COMM_WORLD_LOCAL_SIZE="2",
            ),
        ),
        WARNING,
    ),
    (
        "interface-missing",
        changed(network=Network(interfaces=("lo",)), **env(FI_TCP_IFACE="eth0")),
        ERROR,
    ),
    (
        "mpi-mixed",
        changed(
            launchers=(*CLEAN.launchers, replace(OPENMPI, name="mpiexec", path="/opt/mpiexec"))
        ),
        WARNING,
    ),
    ("primitive-cache", changed(limits={"memory_bytes": 8 * GIB}), ADVICE),
    ("setting-without-library", changed(**env(MALLOC_CONF="background_thread:true")), ADVICE),
    (
        "swap-in-use",
        changed(memory={"swap_free_bytes": 0}, load={"memory_pressure_percent": 9.0}),
        WARNING,
    ),
)


@pytest.mark.parametrize(("code", "facts", "severity"), SECOND_FAULTS)
def test_other_ways_to_the_same_fault(code: str, facts: HostFacts, severity: Severity) -> None:
    found = [finding for finding in diagnose(facts).findings if finding.code == code]
    assert [finding.severity for finding in found] == [severity]


OTHER_SOCKET = tuple(range(28, 56))
NO_NICE = {"settings": {"container": "docker"}, "sys_nice": False}

NEARLY: tuple[tuple[str, HostFacts], ...] = (
    ("numa-not-zero", changed(limits={"cpuset": (0, 2, 3)})),
    ("numa-not-zero", changed(topology=topology(sockets=1), limits={"cpuset": (2, 3)})),
    (
        "numa-not-zero",  # nodes of memory alone
        changed(
            topology={"numa_nodes": (HBM, replace(HBM, id=3))}, limits={"cpuset": OTHER_SOCKET}
        ),
    ),
    ("mempolicy", changed(topology={"numa_nodes": (SPLIT.numa_nodes[0], MEMORYLESS)}, **NO_NICE)),
)


@pytest.mark.parametrize(("code", "facts"), NEARLY)
def test_what_comes_close_in_other_ways_is_no_fault(code: str, facts: HostFacts) -> None:
    assert not BY_CODE[code](facts)


@pytest.mark.parametrize("allowed", [(), SPLIT.allowed])
def test_cpus_of_gomp_are_outside_of_known_ones_alone(allowed: tuple[int, ...]) -> None:
    facts = changed(topology={"allowed": allowed}, **env(GOMP_CPU_AFFINITY="0-3"))
    assert evidence("affinity-gomp", facts) == "GOMP_CPU_AFFINITY=0-3"


def test_the_cures_of_all_faults_are_one_script_that_bash_and_shellcheck_take(
    tmp_path: Path,
) -> None:
    findings = tuple(f for case in CASES for f in BY_CODE[case.code](changed(**case.fault)))
    path = tmp_path / "fix.sh"
    path.write_text(fix_script(Diagnosis(facts=CLEAN, findings=findings)))
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    assert shellcheck(path) == ""


def test_the_cure_of_dead_preloads_leaves_no_dead_one() -> None:
    dead = ("/gone/libtcmalloc.so", "/gone/libx.so")
    preload = ":".join((*dead, "/there.so"))
    findings = BY_CODE["preload-dead"](changed(preload_missing=dead, **env(LD_PRELOAD=preload)))
    wanted = f"export LD_PRELOAD=/there.so:{TCMALLOC}"
    assert [finding.command for finding in findings] == [wanted, wanted]


def evidence(code: str, facts: HostFacts) -> str:
    return "; ".join(finding.evidence for finding in BY_CODE[code](facts))


IOMP = {"LD_PRELOAD": f"{TCMALLOC}:/opt/libiomp5.so"}


@pytest.mark.parametrize(
    ("subset", "threads", "said"),
    [
        ("1s,8c,2t", "16", None),
        ("1s,8c,2t", "17", "leaves 16 places"),
        ("1s,8c", "9", "leaves 8 places"),
        ("1s,1c", "2", "leaves 1 places"),
        ("8c", "17", "leaves 16 places"),  # of both sockets
        ("1s", "56", None),  # cores are not named
    ],
)
def test_places_of_a_hardware_subset(subset: str, threads: str, said: str | None) -> None:
    facts = changed(**env(KMP_HW_SUBSET=subset, OMP_NUM_THREADS=threads, **IOMP))
    found = list(BY_CODE["threads-subset"](facts))
    assert bool(found) == (said is not None)
    assert all(f"{said}, " in finding.evidence for finding in found)


@pytest.mark.parametrize(
    ("limit", "threads", "said"),
    [("0", "2", None), ("1", "2", "2 threads"), ("2", "2", None), ("8", None, "56 threads")],
)
def test_a_thread_limit_is_below_what_is_wanted(
    limit: str, threads: str | None, said: str | None
) -> None:
    found = list(
        BY_CODE["threads-limit"](changed(**env(OMP_THREAD_LIMIT=limit, OMP_NUM_THREADS=threads)))
    )
    assert bool(found) == (said is not None)
    assert all(f"{said} are wanted" in finding.evidence for finding in found)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OMP_NUM_THREADS": "1"}, "56 cores may be used by each of 1 local rank."),
        (
            {**TORCHRUN, "OMP_NUM_THREADS": "1"},
            "28 cores may be used by each of 2 local ranks.",
        ),
        ({**TORCHRUN, "OMP_NUM_THREADS": None}, "28 cores are there for each"),
        ({"OMP_NUM_THREADS": None}, "28 threads fit each of 2 ranks"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": None}, "every allowed core"),
    ],
)
def test_one_thread_is_told_with_the_cores_there_are(
    variables: dict[str, str | None], said: str
) -> None:
    assert said in evidence("threads-one", changed(**env(**variables))) + "."


def test_every_variable_of_threads_is_looked_at() -> None:
    facts = changed(**env(OMP_NUM_THREADS="8", MKL_NUM_THREADS="all"))
    assert evidence("threads-malformed", facts) == "MKL_NUM_THREADS='all'"


@pytest.mark.parametrize(
    ("code", "variables", "command"),
    [
        ("threads-affinity", {"OMP_NUM_THREADS": "200"}, "export OMP_NUM_THREADS=28"),
        ("threads-affinity", {"MKL_NUM_THREADS": "200"}, "unset MKL_NUM_THREADS"),
        ("threads-siblings", {"OMP_NUM_THREADS": "57"}, "export OMP_NUM_THREADS=28"),
        (
            "threads-siblings",
            {**TORCHRUN, "LOCAL_WORLD_SIZE": "29", "OMP_NUM_THREADS": "2"},
            "export OMP_NUM_THREADS=1",
        ),
        ("threads-siblings", {**TORCHRUN, "LOCAL_WORLD_SIZE": "57", "OMP_NUM_THREADS": "1"}, None),
    ],
)
def test_too_many_threads_have_a_cure_where_there_is_one(
    code: str, variables: dict[str, str], command: str | None
) -> None:
    assert [found.command for found in BY_CODE[code](changed(**env(**variables)))] == [command]


@pytest.mark.parametrize(("cores", "said"), [(1, False), (2, True)])
def test_one_thread_is_right_for_one_core(cores: int, said: bool) -> None:
    shape = topology(sockets=1, cores=cores)
    facts = changed(topology=shape, **env(OMP_NUM_THREADS=None))
    assert bool(list(BY_CODE["threads-one"](facts))) == said
    assert not said or "2 threads fit one rank" in evidence("threads-one", facts)


def test_an_mpirun_of_an_unknown_maker_is_an_mpirun() -> None:
    facts = changed(launchers=(replace(INTEL_MPI, dialect=None),))
    for code in ("accelerate-one-process", "mpi-missing"):
        assert not BY_CODE[code](facts)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (topology(), "advised are 2 ranks: a rank for each of 2 sockets"),
        (topology(sockets=1), ""),
    ],
)
def test_one_socket_asks_for_no_ranks(shape: Topology, said: str) -> None:
    found = evidence("accelerate-one-process", changed(topology=shape, launchers=()))
    assert said in found
    assert bool(said) is bool(found)


def test_a_count_of_no_workers_is_not_called_unset() -> None:
    era = changed(packages=IPEX_ERA, launchers=(INTEL_MPI,))
    none = changed(era, **env(CCL_WORKER_COUNT="0"))
    assert "CCL_WORKER_COUNT is unset" in evidence("gloo-slow", era)
    assert "CCL_WORKER_COUNT is 0" in evidence("gloo-slow", none)


def test_a_limit_that_is_as_high_as_it_may_be_is_not_raised() -> None:
    few = {"open_files": 256, "open_files_hard": 256}
    (finding,) = BY_CODE["open-files"](changed(limits=few))
    assert finding.command is None
    (finding,) = BY_CODE["open-files"](changed(limits={**few, "open_files_hard": 4096}))
    assert finding.command == 'ulimit -Sn "$(ulimit -Hn)"'


def test_without_torch_no_precision_is_advised() -> None:
    plain = env(ACCELERATE_MIXED_PRECISION=None)
    assert BY_CODE["bf16-native"](changed(**plain))
    assert not BY_CODE["bf16-native"](changed(packages={"torch": None}, **plain))


def test_an_mpirun_outside_its_environment_is_put_on_the_path() -> None:
    case = next(case for case in CASES if case.code == "mpi-outside")
    (finding,) = BY_CODE["mpi-outside"](changed(**case.fault))
    assert finding.command == """export PATH='/a b/bin':"$PATH\""""
