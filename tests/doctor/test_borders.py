"""Where a fault begins: the last value that is well, the first that is ill, and what is neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clean_machine import CASCADE_LAKE_ISA, CLEAN, GIB, IPEX_ERA, TCMALLOC, changed, topology

from cputune.doctor.registry import CHECKS
from cputune.facts import BusyProcess, Core, Launcher, Library, Network, NumaNode, Package

BY_CODE = {check.code: check for check in CHECKS}
MIB = 1 << 20

OPENMPI = Launcher(name="mpirun", path="/usr/bin/mpirun", dialect="openmpi4", version="4.1.4")
INTEL_MPI = Launcher(name="mpirun", path="/opt/mpirun", dialect="intelmpi", version="2021.18")
NODES = topology().numa_nodes
ONE_SOCKET = {"topology": topology(sockets=1)}
ONE_CPU = {"topology": topology(sockets=1, cores=1, smt=1)}
TWO_CORES = {"topology": topology(sockets=1, cores=2, smt=1)}
FOUR_CORES = {"topology": topology(sockets=1, cores=4, smt=1)}
HYDRA = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
TWO_BY_OPENMPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
IOMP = {"LD_PRELOAD": f"{TCMALLOC}:/opt/libiomp5.so"}
Changes = dict[str, Any]


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


def fires(code: str, changes: Changes) -> bool:
    return bool(list(BY_CODE[code](changed(**changes))))


BORDERS: tuple[tuple[str, Changes, Changes], ...] = (
    # a check, what is just well, what is just ill
    ("quota-threads", limits(cpu_quota=56.0), limits(cpu_quota=55.9)),
    (
        "quota-threads",  # no quota leaves less than one thread
        {**limits(cpu_quota=0.5), **env(OMP_NUM_THREADS="1")},
        {**limits(cpu_quota=0.5), **env(OMP_NUM_THREADS="2")},
    ),
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
        "ranks-oversubscribed",
        {**limits(cpu_quota=2.5), **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")},
        {**limits(cpu_quota=0.5), **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")},
    ),
    (
        "one-core",
        {"topology": topology(sockets=1, cores=1)},
        {"topology": topology(sockets=1, cores=2, smt=1, allowed=(1,))},
    ),
    (
        "primitive-cache",
        env(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024"),
        env(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1025"),
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
    ("processes-few", limits(pids=408, pids_used=40), limits(pids=407, pids_used=40)),
    (
        "processes-few",
        {**limits(processes=368), "sys_resource": False},
        {**limits(processes=367), "sys_resource": False},
    ),
    ("niced", limits(nice=0), limits(nice=1)),
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
    ("openmpi-one-core", {**TWO_CORES, "launchers": (OPENMPI,)}, {"launchers": (OPENMPI,)}),
    (
        "openmpi-one-core",
        {"topology": topology(sockets=1, cores=3, smt=1), "launchers": (OPENMPI,)},
        {**FOUR_CORES, "launchers": (OPENMPI,)},
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
    ("blocktime-long", env(KMP_BLOCKTIME="999"), env(KMP_BLOCKTIME="1000")),
    ("amx-doubtful", kernel("5.16.0"), kernel("5.15.0")),
    ("amx-doubtful", kernel("6.1.0"), kernel("4.18.0")),
    ("master-port", env(MASTER_PORT="1"), env(MASTER_PORT="0")),
    ("master-port", env(MASTER_PORT="65535"), env(MASTER_PORT="65536")),
    ("master-addr", env(PMI_RANK="0", PMI_SIZE="1"), env(PMI_RANK="0", PMI_SIZE="2")),
    (
        "rank-impossible",
        env(LOCAL_RANK="1", LOCAL_WORLD_SIZE="2"),
        env(LOCAL_RANK="2", LOCAL_WORLD_SIZE="2"),
    ),
    (
        "ranks-alone",
        {"topology": topology(sockets=1, cores=1), **env(ACCELERATE_USE_CPU=None)},
        {**TWO_CORES, **env(ACCELERATE_USE_CPU=None)},
    ),
    (
        "sockets-of-one-core",
        {"topology": topology(sockets=3, cores=1)},
        {"topology": topology(sockets=4, cores=1)},
    ),
    ("numa-full", node(free_bytes=2 * GIB), node(free_bytes=2 * GIB - 1)),
    (
        "siblings-together",
        {"topology": topology(sockets=1, cores=1, together=True)},
        {"topology": topology(sockets=1, cores=2, together=True)},
    ),
    ("machine-busy", load(average_1min=28.0), load(average_1min=28.1)),
    (
        "machine-busy",
        {**TWO_CORES, **load(average_1min=1.0)},
        {**TWO_CORES, **load(average_1min=1.1)},
    ),
    (
        "machine-busy",
        load(average_1min=40.0, running_threads=1),
        load(average_1min=40.0, running_threads=2),
    ),
    ("machine-busy", load(cpu_pressure_percent=10.0), load(cpu_pressure_percent=10.1)),
    ("machine-busy", load(busy=(process(27.9),)), load(busy=(process(28.0),))),
    (
        "machine-busy",
        {**ONE_CPU, **load(busy=(process(0.49),))},
        {**ONE_CPU, **load(busy=(process(0.5),))},
    ),
    ("memory-pressure", load(memory_pressure_percent=5.0), load(memory_pressure_percent=5.1)),
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


@pytest.mark.parametrize(("code", "well", "ill"), BORDERS)
def test_a_fault_begins_here(code: str, well: Changes, ill: Changes) -> None:
    assert (fires(code, well), fires(code, ill)) == (False, True)


ONE_CONDITION_LACKS: tuple[tuple[str, Changes], ...] = (
    ("quota-throttled", limits(cpu_quota=8.0)),
    ("quota-throttled", limits(cpu_quota=8.0, periods=1000)),
    ("ranks-auto", {}),
    ("ranks-oversubscribed", env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS=None)),
    ("ranks-oversubscribed", env(OMP_NUM_THREADS="200")),
    (
        "ranks-oversubscribed",
        {
            "topology": {"online": (), "cores": (), "allowed": ()},
            **env(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="8"),
        },
    ),
    ("one-core", {"topology": topology(allowed=(3,)), **env(PMI_RANK="0")}),
    ("one-core", {"topology": topology(allowed=(3,)), **env(LOCAL_WORLD_SIZE="2")}),
    ("one-core", {"topology": topology(allowed=(3,), cores_known=False)}),
    (
        "primitive-cache",
        {**limits(memory_bytes=4 * GIB), **env(ONEDNN_PRIMITIVE_CACHE_CAPACITY="64")},
    ),
    ("primitive-cache", {**limits(memory_bytes=4 * GIB), **env(LRU_CACHE_CAPACITY="64")}),
    ("primitive-cache", {**limits(memory_bytes=4 * GIB), "packages": {"torch": None}}),
    ("shm-small", limits(shm_bytes=None)),
    ("shm-full", limits(shm_bytes=None, shm_free_bytes=0)),
    ("processes-few", limits(pids=None, pids_used=40)),
    ("processes-few", {**limits(processes=128), "sys_resource": None}),
    ("niced", limits(nice=None)),
    ("memlock-small", limits(memlock_bytes=MIB)),
    ("memlock-small", env(FI_PROVIDER="verbs")),
    ("open-files", limits(open_files=None)),
    (
        "openmpi-one-core",
        {
            "topology": topology(allowed=(3, 4)),
            **env(**TWO_BY_OPENMPI),
            "launchers": (OPENMPI,),
        },
    ),
    (
        "openmpi-one-core",
        {"launchers": (OPENMPI,), **env(PRTE_MCA_hwloc_default_binding_policy="none")},
    ),
    ("bound-twice", env(I_MPI_PIN="1")),
    ("bound-twice", env(I_MPI_PIN_DOMAIN="socket")),
    ("bound-twice", env(KMP_AFFINITY="compact", **IOMP)),
    ("bound-twice", {"topology": {"allowed": ()}, **env(I_MPI_PIN="1")}),
    ("bound-twice", env(KMP_AFFINITY="compact", I_MPI_PIN="1")),
    ("bound-twice", env(KMP_AFFINITY="verbose,none", I_MPI_PIN="1", **IOMP)),
    ("bound-twice", env(OMP_PLACES="cores", I_MPI_PIN="1")),
    ("bound-twice", env(OMP_PROC_BIND="close", I_MPI_PIN="1")),
    ("bound-twice", env(GOMP_CPU_AFFINITY="0-3", I_MPI_PIN="off")),
    ("pin-mask", env(I_MPI_PIN_DOMAIN="socket")),
    ("pin-mask", env(I_MPI_PIN_DOMAIN="[0xzz]")),
    ("pin-mask", {"topology": {"online": ()}, **env(I_MPI_PIN_DOMAIN="[0x3]")}),
    ("pin-off", env(I_MPI_PIN="0")),
    (
        "pin-off",
        {"topology": topology(allowed=(0, 1)), "launchers": (INTEL_MPI,), **env(I_MPI_PIN="0")},
    ),
    ("pin-off", {**ONE_SOCKET, "launchers": (INTEL_MPI,), **env(I_MPI_PIN="0")}),
    ("ccl-affinity", {"topology": {"allowed": ()}, **env(CCL_WORKER_AFFINITY="0")}),
    ("ccl-workers", env(CCL_WORKER_COUNT="0", OMP_NUM_THREADS="112")),
    ("ccl-workers", env(CCL_WORKER_COUNT="1", LOCAL_WORLD_SIZE="100")),
    ("ccl-without-mpi", {"launchers": ()}),
    ("ccl-without-mpi", {"packages": IPEX_ERA, "launchers": (), **env(PMI_RANK="0")}),
    ("ccl-without-mpi", {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="1")}),
    ("ccl-without-mpi", {"packages": IPEX_ERA, **env(**TORCHRUN, CCL_WORKER_COUNT="0")}),
    (
        "ccl-without-mpi",
        {"packages": IPEX_ERA, **env(CCL_WORKER_COUNT="1", CCL_PROCESS_LAUNCHER="none")},
    ),
    (
        "ccl-without-mpi",
        {
            "packages": IPEX_ERA,
            **env(**TORCHRUN, CCL_WORKER_COUNT="1", CCL_PROCESS_LAUNCHER="torchrun"),
        },
    ),
    (
        "ccl-without-mpi",
        {
            "packages": IPEX_ERA,
            **env(
                **TORCHRUN,
                CCL_WORKER_COUNT="1",
                CCL_PROCESS_LAUNCHER="none",
                CCL_LOCAL_RANK="0",
                CCL_LOCAL_SIZE="2",
            ),
        },
    ),
    ("ccl-transport", env(CCL_ATL_TRANSPORT="mpi", I_MPI_ROOT="/opt/mpi")),
    ("ccl-transport", {"launchers": (INTEL_MPI,), **env(CCL_ATL_TRANSPORT="mpi")}),
    ("gloo-slow", {"packages": {**IPEX_ERA, "oneccl_bind_pt": "2.7.0"}}),
    ("gloo-slow", {"packages": {**IPEX_ERA, "oneccl_bind_pt": None}}),
    ("gloo-slow", {"packages": {**IPEX_ERA, "torch": None}}),
    ("gloo-slow", {"packages": {**IPEX_ERA, "accelerate": "1.13.0"}}),
    ("gloo-slow", {"packages": IPEX_ERA, "launchers": ()}),
    (
        "ranks-alone",
        {"accelerators": None, "packages": {"torch": "2.13.0"}, **env(ACCELERATE_USE_CPU=None)},
    ),
    ("ranks-alone", {"packages": {"accelerate": None}, **env(ACCELERATE_USE_CPU=None)}),
    ("mpi-mixed", {"launchers": (INTEL_MPI,), **env(I_MPI_ROOT="/opt")}),
    ("mpi-mixed", {"launchers": (INTEL_MPI, replace(INTEL_MPI, name="mpiexec"))}),
    ("mpi-mixed", {"launchers": (INTEL_MPI, replace(OPENMPI, name="orterun"))}),
    ("mpi-mixed", {"launchers": (INTEL_MPI, replace(OPENMPI, name="mpiexec", dialect=None))}),
    ("mpi-mixed", {"launchers": (replace(INTEL_MPI, dialect=None),), **env(I_MPI_ROOT="/opt")}),
    ("accelerate-one-process", {"launchers": (), "packages": {"accelerate": None}}),
    ("accelerate-one-process", {}),
    ("mpi-missing", {"launchers": (), "recorded": True}),
    ("mpi-missing", {"launchers": (), "packages": {"torch": None}}),
    ("allocator-default", {"preload_missing": ("/x.so",), **env(LD_PRELOAD="/x.so")}),
    ("allocator-default", {"packages": {"torch": None}, **env(LD_PRELOAD=None)}),
    (
        "allocator-default",
        {
            "libraries": (Library(name="jemalloc", path="/lib/libjemalloc.so.2"),),
            **env(LD_PRELOAD=None),
        },
    ),
    ("allocator-missing", {"libraries": (), "packages": {"torch": None}, **env(LD_PRELOAD=None)}),
    ("setting-without-library", env(MALLOC_CONF="x", LD_PRELOAD="/lib/libjemalloc.so.2")),
    ("openmp-two", env(LD_PRELOAD="/lib/libgomp.so.1")),
    ("conda-pip-mixed", {"packages": {"torch": None, "numpy": by("conda", "numpy")}}),
    ("intel-only", {"cpu": {"vendor": "AuthenticAMD"}}),
    ("intel-only", {"packages": IPEX_ERA, "cpu": {"vendor": None}}),
    ("bf16-slow", {"cpu": {"isa": (), "architecture": None}}),
    ("fp16-ignored", env(ACCELERATE_MIXED_PRECISION="bf16")),
    ("amx-doubtful", {"cpu": {"isa": CASCADE_LAKE_ISA}, **kernel("5.4.0")}),
    ("amx-doubtful", kernel("unknown")),
    ("isa-old", {"cpu": {"isa": CASCADE_LAKE_ISA}}),
    ("rank-left-over", env(RANK="1")),
    ("rank-left-over", env(PMI_RANK="1")),
    ("rank-impossible", env(RANK="3")),
    ("rank-impossible", env(WORLD_SIZE="0")),
    ("master-addr", env(WORLD_SIZE="2")),
    ("master-addr", env(RANK="0", WORLD_SIZE="2")),
    ("launch-left-over", env(RANK="1", WORLD_SIZE="2", MASTER_ADDR="10.0.0.7")),
    ("launch-left-over", env(RANK="0", SLURM_PROCID="0")),
    ("launch-left-over", env(**TORCHRUN, RANK="0")),
    ("threads-mkl", env(MKL_NUM_THREADS="28", OMP_NUM_THREADS=None)),
    ("variable-refused", env(ACCELERATE_DYNAMO_BACKEND="INDUCTOR", ACCELERATE_USE_CPU="True")),
    ("variable-refused", env(ACCELERATE_MIXED_PRECISION="bf16", OMP_STACKSIZE="16M")),
    ("master-addr", env(**TORCHRUN, RANK="0")),
    ("master-loopback", env(PET_NNODES="2", MASTER_ADDR="10.0.0.7")),
    (
        "gloo-loopback",
        {
            "network": {"hostname_addresses": ("127.0.1.1",)},
            **env(PET_NNODES="2", GLOO_SOCKET_IFNAME="eth0"),
        },
    ),
    (
        "gloo-loopback",
        {"network": {"hostname_addresses": ("10.0.0.7", "10.1.0.7")}, **env(PET_NNODES="2")},
    ),
    ("gloo-loopback", {"network": {"hostname_addresses": ()}, **env(PET_NNODES="2")}),
    ("interface-missing", {"network": Network(interfaces=None), **env(GLOO_SOCKET_IFNAME="eth9")}),
    ("provider-local", env(FI_PROVIDER="tcp", PET_NNODES="2")),
    ("siblings-together", {"topology": topology(sockets=1, cores=3)}),
    ("hybrid-cores", {"topology": {"hybrid": True, "cores": ()}}),
    ("cpus-offline", {"topology": {"present": tuple(range(113))}, "settings": {"smt": "forceoff"}}),
    ("cpus-offline", {"topology": {"present": None}}),
    (
        "numa-memoryless",
        {"topology": {"numa_nodes": tuple(replace(n, memory_bytes=0) for n in NODES)}},
    ),
    (
        "numa-memoryless",
        {
            "topology": topology(
                allowed=(0, 1), numa_nodes=(NODES[0], replace(NODES[1], memory_bytes=0))
            )
        },
    ),
    (
        "numa-cpuless",
        {"topology": {"numa_nodes": (*NODES, NumaNode(id=2, cpus=(), memory_bytes=None))}},
    ),
    ("numa-cpuless", {"topology": {"numa_nodes": (NODES[0], replace(NODES[1], cpus=None))}}),
    ("numa-full", {"topology": {"numa_nodes": tuple(replace(n, free_bytes=GIB) for n in NODES)}}),
    ("numa-full", {"topology": {"numa_nodes": (replace(NODES[0], free_bytes=GIB),)}}),
    ("numa-full", node(free_bytes=None)),
    ("numa-full", node(free_bytes=0, memory_bytes=0)),
    ("numa-in-socket", {"topology": topology(nodes_per_socket=2, sockets_known=False)}),
    ("sockets-of-one-core", {"topology": topology(sockets=4, cores=1, sockets_known=False)}),
    ("sockets-of-one-core", {"topology": topology(sockets=4, cores=2)}),
    ("sockets-unequal", {"topology": topology(allowed=tuple(range(40)), sockets_known=False)}),
    ("numa-balancing", {**ONE_SOCKET, "settings": {"numa_balancing": True}}),
    ("numa-balancing", {}),
    ("turbo-off", {"settings": {"turbo": None}}),
    ("governor", {"settings": {"frequencies": ()}}),
    ("memory-low", {"memory": {"total_bytes": None, "available_bytes": 0}}),
    ("memory-low", {"memory": {"available_bytes": None}}),
    ("swap-in-use", {"memory": {"swap_free_bytes": None}}),
    ("swap-in-use", {"memory": {"swap_total_bytes": None, "swap_free_bytes": 0}}),
    ("memory-pressure", load(memory_pressure_percent=None)),
    ("cpu-steal", load(steal_share=None)),
    ("machine-busy", load(average_1min=None, cpu_pressure_percent=None)),
    (
        "machine-busy",
        {"topology": {"online": (), "cores": (), "allowed": ()}, **load(average_1min=40.0)},
    ),
    ("facts-missing", {}),
)


@pytest.mark.parametrize(("code", "changes"), ONE_CONDITION_LACKS)
def test_where_one_condition_lacks_there_is_no_fault(code: str, changes: Changes) -> None:
    assert not fires(code, changes)


STILL_A_FAULT: tuple[tuple[str, Changes], ...] = (
    ("openmpi-one-core", {"launchers": (OPENMPI,), **env(**HYDRA)}),
    ("openmpi-one-core", {"launchers": (OPENMPI,), **env(OMPI_COMM_WORLD_SIZE="2")}),
    ("bound-twice", env(GOMP_CPU_AFFINITY="0-3", OMP_PLACES="cores", OMP_PROC_BIND="close")),
    ("bound-twice", env(GOMP_CPU_AFFINITY="0-3", I_MPI_PIN_DOMAIN="socket")),
    ("ccl-without-mpi", {"packages": IPEX_ERA, **env(WORLD_SIZE="2", CCL_WORKER_COUNT="1")}),
    ("ccl-without-mpi", {"packages": IPEX_ERA, **env(PET_NNODES="1", CCL_WORKER_COUNT="1")}),
    (
        "ccl-without-mpi",
        {
            "packages": IPEX_ERA,
            **env(
                **TORCHRUN, CCL_WORKER_COUNT="1", CCL_PROCESS_LAUNCHER="none", CCL_LOCAL_RANK="0"
            ),
        },
    ),
    (
        "ccl-without-mpi",
        {"packages": {**IPEX_ERA, "oneccl_bind_pt": None, "torch_ccl": "1.11"}, "launchers": ()},
    ),
    ("ranks-auto", env(PET_NPROC_PER_NODE="cpu")),
    ("setting-without-library", env(MALLOC_CONF="x", LD_PRELOAD=None)),
    (
        "conda-pip-mixed",
        {
            "packages": {
                "numpy": by("conda", "numpy"),
                "torch": by("uv", "torch"),
            }
        },
    ),
    (
        "gloo-loopback",
        {
            "network": {"hostname_addresses": ("127.0.1.1",), "interfaces": None},
            **env(PET_NNODES="2"),
        },
    ),
    ("bf16-slow", {"cpu": {"isa": ()}}),
    ("isa-old", {"cpu": {"isa": ()}}),
)


@pytest.mark.parametrize(("code", "changes"), STILL_A_FAULT)
def test_either_of_several_conditions_is_enough(code: str, changes: Changes) -> None:
    assert fires(code, changes)


def test_pairs_of_siblings_are_side_by_side_all_or_none() -> None:
    apart = tuple(Core(cpus=(c, c + 2), socket=0, numa_node=0) for c in (4, 5))
    beside = tuple(Core(cpus=(c, c + 1), socket=0, numa_node=0) for c in (0, 2))
    cpus = tuple(range(8))
    shape = {"cores": beside + apart, "online": cpus, "allowed": cpus, "present": cpus}
    assert not fires("siblings-together", {"topology": shape})


def test_a_clean_machine_is_well_by_every_border() -> None:
    assert not any(list(check(CLEAN)) for check in CHECKS)
