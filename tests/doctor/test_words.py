"""What a finding says in numbers, how severe it is, and what it lets a person type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clean_machine import CASCADE_LAKE_ISA, CLEAN, GIB, IPEX_ERA, TCMALLOC, changed, topology

from cputune.doctor import Severity
from cputune.doctor.registry import CHECKS
from cputune.facts import BusyProcess, Core, Frequency, Launcher, Library, Unknown

BY_CODE = {check.code: check for check in CHECKS}
ERROR, WARNING, ADVICE = Severity
OPENMPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4", version="4.1.4")
INTEL_MPI = Launcher(name="mpirun", path="/opt/mpirun", dialect="intelmpi", version="2021.18")
TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
ONE_CORE = {"topology": topology(sockets=1, cores=1, smt=1)}
NODES = topology().numa_nodes
FAST_CORE = Core(cpus=(0, 2), socket=0, numa_node=0, max_khz=2000)


def env(**variables: str | None) -> dict[str, Any]:
    return {"environment": variables}


def hybrid(*speeds: int) -> dict[str, Any]:
    """Cores of these speeds in kHz."""
    cores = tuple(
        Core(cpus=(cpu,), socket=0, numa_node=0, max_khz=khz) for cpu, khz in enumerate(speeds)
    )
    cpus = tuple(range(len(speeds)))
    fields = {"cores": cores, "online": cpus, "allowed": cpus, "present": cpus, "hybrid": True}
    return {"topology": fields}


WORDS: tuple[tuple[str, dict[str, Any], str], ...] = (
    (
        "ccl-workers",
        {**ONE_CORE, "packages": IPEX_ERA, **env(CCL_WORKER_COUNT="2", OMP_NUM_THREADS="1")},
        "CCL_WORKER_COUNT=2 and 1 OpenMP thread on 1 usable core",
    ),
    (
        "ccl-workers",
        {
            "topology": topology(sockets=1, cores=2, smt=1),
            **env(CCL_WORKER_COUNT="2", OMP_NUM_THREADS="1"),
        },
        "CCL_WORKER_COUNT=2 and 1 OpenMP thread on 2 usable cores",
    ),
    (
        "openmpi-one-core",
        {"launchers": (OPENMPI, replace(OPENMPI, name="mpiexec", path="/usr/bin/mpiexec"))},
        "/usr/bin/mpirun is Open MPI; mpirun -n 2 gives each rank 1 of 56 cores",
    ),
    (
        "ccl-workers",
        env(CCL_WORKER_COUNT="4", OMP_NUM_THREADS="28", LOCAL_WORLD_SIZE="2"),
        "CCL_WORKER_COUNT=4 and 28 OpenMP threads on 28 usable cores of each of 2 ranks",
    ),
    (
        "ccl-workers",
        env(CCL_WORKER_COUNT="56", OMP_NUM_THREADS=None),
        "CCL_WORKER_COUNT=56 and at least 1 OpenMP threads on 56 usable cores",
    ),
    (
        "ranks-auto",
        {"limits": {"cpu_quota": 1.5}, **env(PET_NPROC_PER_NODE="auto")},
        "PET_NPROC_PER_NODE=auto starts 112 ranks, one per CPU of the host; 1 core may be used",
    ),
    (
        "ranks-auto",
        {"limits": {"cpu_quota": 2.5}, **env(PET_NPROC_PER_NODE="auto")},
        "PET_NPROC_PER_NODE=auto starts 112 ranks, one per CPU of the host; 2 cores may be used",
    ),
    (
        "ranks-oversubscribed",
        {"limits": {"cpu_quota": 8.5}, **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="8")},
        "2 local ranks × OMP_NUM_THREADS=8 are 16 threads on a quota of 8.5 CPUs",
    ),
    (
        "ranks-oversubscribed",
        {"limits": {"cpuset": (0, 1, 2)}, **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="8")},
        "2 local ranks × OMP_NUM_THREADS=8 are 16 threads on 3 CPUs",
    ),
    (
        "primitive-cache",
        {"limits": {"memory_bytes": 4 * GIB}},
        "the memory limit is 4.0 GiB and no capacity is set (oneDNN keeps 1024 kernels)",
    ),
    (
        "shm-small",
        {"limits": {"shm_bytes": 64 << 20}},
        "/dev/shm holds 64 MiB, 1024 MiB are needed",
    ),
    (
        "shm-full",
        {"limits": {"shm_free_bytes": 12 << 20}},
        "12 of 262144 MiB of /dev/shm are free, 1024 MiB are needed",
    ),
    (
        "open-files",
        {"limits": {"open_files": 256, "open_files_hard": 256}},
        "256 open files are allowed, 1024 is the usual least; the hard limit is no higher",
    ),
    (
        "open-files",
        {"limits": {"open_files": 256}},
        "256 open files are allowed, 1024 is the usual least",
    ),
    (
        "processes-few",
        {"limits": {"pids": 100}},
        "pids.max is 100, of which 0 exist; ranks on 112 CPUs start about 368",
    ),
    (
        "machine-busy",
        {"load": {"busy": tuple(BusyProcess(pid=n, name="a", cpu_share=20.0) for n in range(4))}},
        "busy now, in percent of a CPU: a (process 0) 2000 %, a (process 1) 2000 %, "
        "a (process 2) 2000 %",
    ),
    (
        "machine-busy",  # the little that it takes explains the load
        {"load": {"average_1min": 40.0, "busy": (BusyProcess(pid=7, name="a", cpu_share=0.3),)}},
        "load average 40 on 112 CPUs; busy now, in percent of a CPU: a (process 7) 30 %",
    ),
    (
        "swap-in-use",
        {"memory": {"swap_free_bytes": 0}},
        "8.0 of 8.0 GiB of swap are used",
    ),
    (
        "governor",
        {"settings": {"frequencies": (Frequency(cpus=(0, 1), governor="ondemand"),)}},
        "governor ondemand on CPUs 0-1",
    ),
    (
        "turbo-off",
        {"settings": {"turbo": False}, "cpu": {"vendor": "AuthenticAMD"}},
        "cpufreq/boost is 0",
    ),
    ("hybrid-cores", hybrid(1000, 901, 900, 500), "2 of 4 cores are the fast ones"),
    (
        "numa-in-socket",
        {"topology": topology(sockets=1, nodes_per_socket=2)},
        "1 socket, 2 NUMA nodes with usable cores; advised before anything is measured: one rank",
    ),
    (
        "numa-memoryless",
        {"topology": {"numa_nodes": (NODES[0], replace(NODES[1], memory_bytes=0))}},
        "node 1: CPUs 28-55,84-111, 0 bytes",
    ),
    (
        "numa-full",
        {"topology": {"numa_nodes": (NODES[0], replace(NODES[1], free_bytes=GIB // 2))}},
        "node 1: 0.5 of 256 GiB free",
    ),
    (
        "bf16-slow",
        {"cpu": {"isa": ("avx",)}, **env(ACCELERATE_MIXED_PRECISION=None)},
        "the CPU shows none of avx512_bf16, amx_bf16 and Arm's bf16; it has no AVX2 either",
    ),
    (
        "isa-old",
        {"cpu": {"isa": (), "model_name": None}},
        "this CPU has of the flags that matter for training: none",
    ),
    (
        "amx-doubtful",
        {"cpu": {"isa": ("amx_bf16",)}},
        "AMX flags without amx_tile, avx512f",
    ),
    (
        "intel-only",
        {"packages": IPEX_ERA, "cpu": {"vendor": "AuthenticAMD", "architecture": None}},
        "intel_extension_for_pytorch, oneccl_bind_pt on AuthenticAMD (unknown architecture)",
    ),
    (
        "conda-pip-mixed",
        {
            "packages": {
                name: replace(CLEAN.packages[0], name=name, installer="conda")
                for name in ("numpy", "mkl")
            }
        },
        "from conda: numpy, mkl; from pip: torch, transformers",
    ),
    (
        "interface-missing",
        {"network": {"interfaces": ()}, **env(FI_TCP_IFACE="eth9,")},
        "FI_TCP_IFACE=eth9; there are none",
    ),
    (
        "master-addr",
        env(RANK="0", WORLD_SIZE="2", KUBERNETES_SERVICE_HOST="10.96.0.1"),
        "2 ranks by RANK and WORLD_SIZE, MASTER_ADDR is unset",
    ),
    (
        "facts-missing",
        {"topology": {"online": (), "cores": (), "allowed": ()}},
        "no CPU can be seen",
    ),
    (
        "mpi-mixed",
        {"launchers": (INTEL_MPI, replace(OPENMPI, name="mpiexec", path="/usr/bin/mpiexec"))},
        "/opt/mpirun is intelmpi, /usr/bin/mpiexec is openmpi4",
    ),
    (
        "accelerate-one-process",
        {"launchers": (), "packages": {"accelerate": replace(CLEAN.packages[0], name="accelerate",
                                                            version=None)}},
        "accelerate (no version) is installed, mpirun is not; advised are 2 ranks: a rank for each "
        "of 2 sockets",
    ),
    (
        "ccl-without-mpi",
        {"packages": IPEX_ERA, **env(PET_NNODES="1", CCL_WORKER_COUNT="1")},
        "CCL_WORKER_COUNT=1 selects oneCCL, WORLD_SIZE=(unset), and no MPI variables (PMI_RANK) "
        "are there",
    ),
    (
        "openmp-two",
        env(LD_PRELOAD="/a/libiomp5.so /b/libiomp5.so /a/libgomp.so.1 /b/libgomp.so.1"),
        "LD_PRELOAD holds /a/libiomp5.so and /a/libgomp.so.1",
    ),
    (
        "mpi-missing",
        {"launchers": (), "topology": topology(nodes_per_socket=2)},
        "2 ranks are advised, a rank for each of 2 sockets; no mpirun on PATH",
    ),
    (
        "memory-limit",
        {"memory": {"total_bytes": 2 * GIB}},
        "the machine's memory is 2.0 GiB; one rank needs at least bert-base-squad 3.0 GiB, "
        "bert-large-squad 8.2 GiB",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("code", "changes", "words"), WORDS)
def test_what_was_seen_is_said(code: str, changes: dict[str, Any], words: str) -> None:
    assert [found.evidence for found in BY_CODE[code](changed(**changes))] == [words]


COMMANDS: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    (
        "openmpi-one-core",
        {
            "topology": topology(allowed=(3, 59)),
            **env(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2"),
        },
        "mpirun --map-by ppr:1:node:pe=56 python train.py",
    ),
    (
        "openmpi-one-core",
        {
            "topology": topology(allowed=(3, 59)),
            **env(
                OMPI_COMM_WORLD_RANK="0",
                OMPI_COMM_WORLD_SIZE="4",
                OMPI_COMM_WORLD_LOCAL_SIZE="4",
            ),
        },
        "mpirun --map-by ppr:4:node:pe=14 python train.py",
    ),
    (
        "openmpi-one-core",
        {"launchers": (OPENMPI,)},
        "OMP_NUM_THREADS=28 ACCELERATE_USE_CPU=true MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "
        "mpirun -n 2 --map-by ppr:2:node:pe=28 python train.py",
    ),
    (
        "ccl-workers",
        {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="4", LOCAL_WORLD_SIZE="1")},
        "export OMP_NUM_THREADS=52",
    ),
    (
        "ccl-workers",
        {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="64", LOCAL_WORLD_SIZE="1")},
        "export CCL_WORKER_COUNT=1 OMP_NUM_THREADS=55",
    ),
    (
        "ccl-workers",
        {"packages": IPEX_ERA, **env(**TORCHRUN, CCL_WORKER_COUNT="4", OMP_NUM_THREADS="28")},
        "unset CCL_WORKER_COUNT",
    ),
    ("ccl-workers", env(CCL_WORKER_COUNT="4"), "unset CCL_WORKER_COUNT"),
    (
        "gloo-slow",
        {"packages": IPEX_ERA},
        "OMP_NUM_THREADS=27 CCL_WORKER_COUNT=1 ACCELERATE_USE_CPU=true MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=29500 mpirun -n 2 python train.py --ddp_backend ccl",
    ),
    (
        "fp16-ignored",
        env(ACCELERATE_MIXED_PRECISION="fp16"),
        "export ACCELERATE_MIXED_PRECISION=bf16",
    ),
    (
        "fp16-ignored",
        {"cpu": {"isa": CASCADE_LAKE_ISA}, **env(ACCELERATE_MIXED_PRECISION="fp16")},
        "export ACCELERATE_MIXED_PRECISION=no",
    ),
    (
        "siblings-together",
        {"topology": topology(sockets=1, cores=4, together=True)},
        "OMP_NUM_THREADS=4 taskset -c 0,2,4,6 python train.py",
    ),
    (
        "hybrid-cores",
        hybrid(1000, 1000, 500),
        "OMP_NUM_THREADS=2 taskset -c 0-1 python train.py",
    ),
    (
        "turbo-off",
        {"settings": {"turbo": False}, "cpu": {"vendor": "AuthenticAMD"}},
        "echo 1 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
    ),
    (
        "turbo-off",
        {"settings": {"turbo": False}},
        "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo",
    ),
    ("threads-malformed", env(OMP_NUM_THREADS="many"), "export OMP_NUM_THREADS=28"),
    ("threads-malformed", env(MKL_NUM_THREADS="many"), "unset MKL_NUM_THREADS"),
    (
        "hybrid-cores",  # one thread of a fast core, not both
        {
            "topology": {
                "cores": (FAST_CORE, Core(cpus=(1,), socket=0, numa_node=0, max_khz=1000)),
                "allowed": (0, 1, 2),
                "hybrid": True,
            }
        },
        "OMP_NUM_THREADS=1 taskset -c 0 python train.py",
    ),
    ("numa-in-socket", {"topology": topology(nodes_per_socket=2)}, None),
    (
        "governor",
        {"settings": {"frequencies": (Frequency(cpus=(0, 1), governor="schedutil"),)}},
        "sudo cpupower -c 0-1 frequency-set --governor performance",
    ),
    (
        "ranks-oversubscribed",
        {"limits": {"cpu_quota": 1.0}, **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")},
        None,
    ),
    (
        "ranks-oversubscribed",
        {"limits": {"cpu_quota": 3.0}, **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="2")},
        "export OMP_NUM_THREADS=1",
    ),
    ("master-addr", env(RANK="0", WORLD_SIZE="2", SLURM_NNODES="2"), None),
    (
        "master-addr",
        env(RANK="0", WORLD_SIZE="2", KUBERNETES_SERVICE_HOST="10.96.0.1"),
        "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500",
    ),
    (
        "interface-missing",
        {"network": {"interfaces": ("lo", "ens 1")}, **env(FI_TCP_IFACE="eth9")},
        "export FI_TCP_IFACE='ens 1'",
    ),
    (
        "interface-missing",
        {"network": {"interfaces": ("lo",)}, **env(FI_TCP_IFACE="eth9")},
        "export FI_TCP_IFACE=lo",
    ),
    (
        "gloo-loopback",
        {"network": {"hostname_addresses": ("127.0.1.1",), "interfaces": ("lo", "ib0")},
         **env(PET_NNODES="2")},
        "export GLOO_SOCKET_IFNAME=ib0",
    ),
    (
        "gloo-loopback",
        {"network": {"hostname_addresses": ("127.0.1.1",), "interfaces": None},
         **env(PET_NNODES="2")},
        None,
    ),
    (
        "preload-dead",
        {"preload_missing": ("/gone.so",), "libraries": (), **env(LD_PRELOAD="/gone.so")},
        "unset LD_PRELOAD",
    ),
    (
        "preload-dead",
        {"preload_missing": ("/gone/libjemalloc.so",), **env(LD_PRELOAD="/gone/libjemalloc.so"),
         "libraries": (Library(name="jemalloc", path="/lib/libjemalloc.so.2"),)},
        "export LD_PRELOAD=/lib/libjemalloc.so.2",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("code", "changes", "command"), COMMANDS)
def test_what_cures_can_be_typed(code: str, changes: dict[str, Any], command: str | None) -> None:
    assert [found.command for found in BY_CODE[code](changed(**changes))] == [command]


def test_of_many_cpus_that_are_off_eight_are_switched_on() -> None:
    (found,) = BY_CODE["cpus-offline"](changed(topology={"present": tuple(range(130))}))
    assert (found.command or "").count("\n") == 7


SEVERITIES: tuple[tuple[str, dict[str, Any], Severity], ...] = (
    ("ranks-auto", {"topology": topology(smt=1), **env(PET_NPROC_PER_NODE="auto")}, WARNING),
    ("ranks-auto", env(PET_NPROC_PER_NODE="auto"), ERROR),
    ("niced", {"limits": {"nice": 5}}, ADVICE),
    (
        "niced",
        {"limits": {"nice": 5}, "load": {"busy": (BusyProcess(pid=1, name="a", cpu_share=1.0),)}},
        WARNING,
    ),
    ("ranks-alone", env(PET_NPROC_PER_NODE="1", ACCELERATE_USE_CPU=None), ADVICE),
    ("ranks-alone", env(PET_NPROC_PER_NODE="2", ACCELERATE_USE_CPU=None), ERROR),
    ("ranks-alone", env(WORLD_SIZE="2", ACCELERATE_USE_CPU=None), ERROR),
    ("isa-capped", env(MKL_DEBUG_CPU_TYPE="5"), WARNING),
    ("isa-capped", {"cpu": {"isa": ("avx2",)}, **env(MKL_DEBUG_CPU_TYPE="5")}, ADVICE),
    ("amx-doubtful", {"settings": {"kernel": "5.11.0"}}, ADVICE),
    ("amx-doubtful", {"settings": {"kernel": "5.10.0"}}, WARNING),
    (
        "amx-doubtful",
        {"settings": {"kernel": "5.15.0"}, "cpu": {"isa": ("amx_bf16", "amx_tile")}},
        WARNING,
    ),
    ("swap-in-use", {"memory": {"swap_free_bytes": 0}}, ADVICE),
    (
        "swap-in-use",
        {"memory": {"swap_free_bytes": 0}, "load": {"memory_pressure_percent": 5.0}},
        ADVICE,
    ),
    (
        "facts-missing",
        {
            "topology": {"cores_known": False},
            "unknown": (Unknown(fact="topology.physical_cores", reason="no topology"),),
        },
        ADVICE,
    ),
)


@pytest.mark.parametrize(("code", "changes", "severity"), SEVERITIES)
def test_how_severe_it_is(code: str, changes: dict[str, Any], severity: Severity) -> None:
    assert [found.severity for found in BY_CODE[code](changed(**changes))] == [severity]


@pytest.mark.parametrize(("threads", "remedy"), [("1", "Start fewer"), ("2", "Divide the cores")])
def test_ranks_of_one_thread_are_cured_by_fewer_ranks(threads: str, remedy: str) -> None:
    few = {"limits": {"cpu_quota": 1.0}, **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS=threads)}
    (found,) = BY_CODE["ranks-oversubscribed"](changed(**few))
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("hard", "remedy"), [(256, "Raise the hard limit"), (4096, "Raise the soft limit")]
)
def test_the_limit_is_raised_that_stands_in_the_way(hard: int, remedy: str) -> None:
    few = {"limits": {"open_files": 256, "open_files_hard": hard}}
    (found,) = BY_CODE["open-files"](changed(**few))
    assert found.remedy.startswith(remedy)


def test_a_preload_that_has_an_heir_names_it() -> None:
    dead = {"preload_missing": ("/gone/libtcmalloc.so",), **env(LD_PRELOAD="/gone/libtcmalloc.so")}
    (found,) = BY_CODE["preload-dead"](changed(**dead))
    assert found.evidence.endswith(f"may read; tcmalloc lies at {TCMALLOC}")
    (found,) = BY_CODE["preload-dead"](changed(**dead, libraries=()))
    assert found.evidence.endswith("may read")
