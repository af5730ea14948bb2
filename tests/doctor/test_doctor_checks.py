"""Each check: what it says of machines that have its fault, and silence where one nearly has it.

What is said of FAULTS was reviewed, and lies in tests/golden/findings/ by code, in the order of the
rows; ``--update-golden`` writes it anew.
"""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import CASCADE_LAKE_ISA, CLEAN, GIB, IPEX_ERA, TCMALLOC, changed, topology, words
from golden_texts import Golden
from rows import every_row
from scripts import shellcheck

from cputune import diagnose
from cputune.doctor.checks import CHECKS, versions
from cputune.host import Place, Stray, Surroundings
from cputune.host.facts import (
    BusyProcess,
    Core,
    Frequency,
    FrequencyCap,
    Launcher,
    Library,
    Link,
    Network,
    NumaNode,
    Package,
    Unknown,
)

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
SECOND = tuple(range(28, 56))
"""The CPUs of the second socket."""
UNVERSIONED = "/usr/lib/libtcmalloc.so"
IOMP = {"LD_PRELOAD": f"{TCMALLOC}:/opt/libiomp5.so"}
ONE_CORE = {"packages": IPEX_ERA, "topology": topology(sockets=1, cores=1, smt=1)}
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
IPEX = "intel_extension_for_pytorch"
LEADS_OUT = Network(
    interfaces=("ctnodes1", "eth1", "lo"),
    links=(
        Link(name="ctnodes1", up=True, addresses=("172.18.0.1/16",)),
        Link(name="eth1", up=True, addresses=("10.0.0.7/24",)),
    ),
    default_link="eth1",
)
MASTER = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
TWO_PODS = {"PET_NNODES": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
NO_NICE = {"container": "docker", "sys_nice": False}


PARTS = (
    *("cpu", "limits", "load", "memory", "network", "restraints", "settings", "surroundings"),
    "topology",
)
PART_OF = {field.name: part for part in PARTS for field in fields(getattr(CLEAN, part))}


def on(**changes: Any) -> Changes:
    """What is otherwise, by name: a variable, a field of a part of the machine, or a whole part."""
    by_part: Changes = {}
    for name, value in changes.items():
        part = "environment" if name[0].isupper() else PART_OF.get(name)
        if part is None:
            by_part[name] = value
        else:
            by_part.setdefault(part, {})[name] = value
    return by_part


def at(code: str, **changes: Any) -> tuple[str, Changes]:
    """A row of a table: the check, and what is otherwise than on a clean machine."""
    return code, on(**changes)


def border(
    code: str, name: str, well: object, ill: object, **both: Any
) -> tuple[str, Changes, Changes]:
    """A row of BORDERS: a value that is just well and one that is just ill, beside the same."""
    return code, on(**{name: well}, **both), on(**{name: ill}, **both)


def node(**fields: Any) -> Changes:
    """The second NUMA node is changed."""
    return on(numa_nodes=(NODES[0], replace(NODES[1], **fields)))


def process(cpu_share: float) -> BusyProcess:
    return BusyProcess(pid=77, name="train", cpu_share=cpu_share)


def by(installer: str, name: str) -> Package:
    return Package(name=name, version="2.13.0", location="/venv", installer=installer)


def throttled(periods: int, stopped: int) -> Changes:
    return on(cpu_quota=8.0, periods=periods, throttled_periods=stopped)


def place(variable: str, path: str, **more: Any) -> Place:
    usual = {"exists": True, "writable": True, "free_bytes": 64 * GIB}
    return Place(variable=variable, path=path, **{**usual, **more})


FOUR_PAIRS = tuple(Core(cpus=(c, c + 1 + c // 4), socket=0, numa_node=0) for c in (0, 2, 4, 5))
EIGHT = dict.fromkeys(("online", "allowed", "present"), range(8))

TOKENIZERS = Package(
    name="transformers", version="5.23.0", location="/v", requires=("tokenizers<0.24,>=0.23.1",)
)
CPU_BUILD = {"torch": "2.13.0+cpu"}
VISION = Package(name="torchvision", version="0.28.0", location="/v", installer="conda")

CAP = FrequencyCap(cpus=(0, 1), allowed_khz=1_200_000, most_khz=3_800_000)
GRADIENTS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"

FAULTS: tuple[tuple[str, Changes], ...] = (
    at("cpu-emulated", model_name="QEMU TCG CPU version 2.5+"),
    at("cpu-emulated", model_name="VirtualApple @ 2.50GHz processor"),
    at("isa-hidden", family=6, model=143, isa=("avx2", "fma")),
    at(
        "isa-hidden",
        family=15,
        model=107,
        model_name="QEMU Virtual CPU version 2.5+",
        isa=("sse4_2",),
    ),
    at("memory-high", memory_high_bytes=4 * GIB),
    at("cpu-weight", cpu_weight=1),
    at("cpu-weight", cpu_idle=True, cpu_weight=0),
    at("priority-low", nice=10),
    at("priority-low", nice=5),
    at("priority-low", policy="idle", nice=0),
    at("memory-remote", topology=topology(allowed=tuple(range(28))), memory_nodes=(1,)),
    at("overcommit-never", commit_left_bytes=3 * GIB),
    at("frequency-capped", frequency_caps=(CAP,)),
    at("frequency-capped", max_perf_percent=50),
    at("thermal-throttled", throttled_share=0.123),
    at("threads-serial", OMP_MAX_ACTIVE_LEVELS="0"),
    at("training-changed", **{GRADIENTS: "8"}, ACCELERATE_DYNAMO_BACKEND="INDUCTOR"),
    at(
        "training-changed", PARALLELISM_CONFIG_TP_SIZE="2", ACCELERATE_USE_PARALLELISM_CONFIG="true"
    ),
    at("training-changed", ONEDNN_DEFAULT_FPMATH_MODE="BF16"),
    at("training-changed", DNNL_DEFAULT_FPMATH_MODE="ANY"),
    at("training-changed", ACCELERATE_MIXED_PRECISION="fp9"),
    at("variable-mistyped", OMP_NUM_THREAD="4", MASTER_PROT="29500"),
    at("variable-mistyped", HF_HUB_OFLINE="1", KMP_BLOCKTIMEE="0", MKL_NUM_THREADZ="2"),
    at("file-named-absent", files_missing=("SSL_CERT_FILE",), SSL_CERT_FILE="/gone.pem"),
    at("master-addr-malformed", MASTER_ADDR="node1:29500"),
    at("master-addr-malformed", MASTER_ADDR="tcp://10.0.0.7:29500"),
    at("master-addr-malformed", MASTER_ADDR="node01,node02"),
    at("master-addr-malformed", MASTER_ADDR="10.0.0.7 172.17.0.1"),
    at("master-addr-malformed", MASTER_ADDR="node[01-04]"),
    at("master-addr-malformed", MASTER_ADDR="$(hostname -I)"),
    at("pin-processor-list", I_MPI_PIN_PROCESSOR_LIST="0,28", OMP_NUM_THREADS="28"),
    at("variable-refused", PET_NPROC_PER_NODE="gpu", HF_ENDPOINT="hf.example.com"),
    at("gloo-loopback", **TWO_PODS, GLOO_SOCKET_IFNAME="lo"),
    at("interface-missing", GLOO_SOCKET_IFNAME="eth0", network=LEADS_OUT),
    at("requirement-unmet", packages={"transformers": TOKENIZERS, "tokenizers": "0.19.1"}),
    at("torch-build-mixed", packages={**CPU_BUILD, "torchvision": "0.28.0"}),
    at("torch-build-mixed", packages={**CPU_BUILD, "torchaudio": "2.10.0"}),
    at("torch-build-mixed", architecture="i686", packages={**CPU_BUILD, "torchvision": "0.28.0"}),
    at("debug-left-on", MKL_DEBUG_CPU_TYPE="5"),
    at("isa-old", isa=("sse4_2",), hypervisor=True),
    at("torch-load-refused", packages={"torch": "2.5.1", "transformers": "4.57.6"}),
    at("torch-load-refused", packages={"torch": "2.5.1", IPEX: "2.5.0", "transformers": "4.52.4"}),
    at("stack-newer", packages={"torch": "3.0.0"}),
    at("master-addr", **HYDRA),
    at("master-addr", RANK="0", WORLD_SIZE="2", SLURM_NNODES="2"),
    at("master-loopback", **{**TWO_PODS, "MASTER_ADDR": "127.0.0.1"}),
    at("gloo-loopback", hostname_addresses=("10.0.0.7", "127.0.1.1"), **TWO_PODS),
    at(
        "gloo-loopback", hostname_addresses=("127.0.1.1",), interfaces=("lo", "ib0"), PET_NNODES="2"
    ),
    at("gloo-loopback", hostname_addresses=("127.0.0.1",), container="kubernetes"),
    at("interface-missing", GLOO_SOCKET_IFNAME="ens3"),
    at("interface-missing", GLOO_SOCKET_IFNAME="^lo,docker"),
    at("interface-missing", interfaces=("lo", "ens 1"), FI_TCP_IFACE="eth9"),
    at("ranks-alone", **TORCHRUN, **MASTER, OMP_NUM_THREADS="28", ACCELERATE_USE_CPU=None),
    at("ranks-alone", ACCELERATE_USE_CPU=None),
    at("mpi-mixed", I_MPI_ROOT="/opt/intel/oneapi/mpi/latest"),
    at("accelerate-one-process", launchers=()),
    at(
        "ccl-affinity",
        packages=IPEX_ERA,
        topology=topology(allowed=tuple(range(28))),
        CCL_WORKER_AFFINITY="0,1,28,29",
        OMP_NUM_THREADS="26",
    ),
    at("ccl-affinity", CCL_WORKER_AFFINITY="112"),
    at("ccl-workers", packages=IPEX_ERA, CCL_WORKER_COUNT="4"),
    at("ccl-workers", **ONE_CORE, CCL_WORKER_COUNT="2"),
    at("ccl-workers", **ONE_CORE, CCL_WORKER_COUNT="2", CCL_WORKER_AFFINITY="0,0"),
    at("ccl-workers", CCL_WORKER_COUNT="4"),
    at("ccl-workers", packages=IPEX_ERA, **TORCHRUN, CCL_WORKER_COUNT="4", OMP_NUM_THREADS="28"),
    at(
        "ccl-without-mpi",
        packages=IPEX_ERA,
        **TORCHRUN,
        **MASTER,
        OMP_NUM_THREADS="27",
        CCL_WORKER_COUNT="1",
    ),
    at("gloo-slow", packages=IPEX_ERA),
    at("launch-left-over", LOCAL_RANK="0", WORLD_SIZE="2"),
    at("launch-left-over", surroundings=Surroundings(mpi_left_over=True), **HYDRA),
    at(
        "launch-left-over",
        surroundings=Surroundings(mpi_left_over=True),
        OMPI_COMM_WORLD_RANK="0",
        OMPI_COMM_WORLD_SIZE="4",
    ),
    at(
        "master-addr-unknown",
        surroundings=Surroundings(address_unknown=True),
        MASTER_ADDR="node1",
    ),
    at(
        "master-unreachable",
        surroundings=Surroundings(unreachable="10.0.0.7: No route to host"),
        MASTER_ADDR="10.0.0.7",
    ),
    at("loopback-down", surroundings=Surroundings(loopback_fails="Network is unreachable")),
    at(
        "module-shadowed",
        strays=(Stray(name="torch", path="/repo/torch.py", how="the folder of the script"),),
    ),
    at(
        "module-shadowed",
        strays=(Stray(name="numpy", path="/mine/numpy/__init__.py", how="PYTHONPATH"),),
        PYTHONPATH="/mine:/other",
    ),
    at(
        "environment-foreign",
        surroundings=Surroundings(prefix="/venv", places=(place("VIRTUAL_ENV", "/other"),)),
    ),
    at(
        "environment-foreign",
        surroundings=Surroundings(prefix="/venv", places=(place("CONDA_PREFIX", "/conda"),)),
    ),
    at("master-port-taken", ports_taken=(29500,), **MASTER),
    at("master-port-taken", ports_taken=(65000,)),
    at("folder-unusable", places=(place("HF_HOME", "/ro", writable=False),)),
    at(
        "folder-unusable",
        places=(place("HF_HOME", "/ro", writable=False), place("TMPDIR", "/scratch")),
    ),
    at(
        "folder-unusable",
        places=(
            place("HF_HOME", "/ro", writable=False),
            place("TMPDIR", "/tmp", writable=False),
        ),
    ),
    at("folder-unusable", places=(place("--output_dir", "/ro", writable=False),)),
    at("folder-unusable", places=(place("TMPDIR", "/not yet", exists=False),)),
    at("folder-full", places=(place("TMPDIR", "/t", free_bytes=4 * MIB - 1),)),
    at("folder-full", places=(place("HF_HOME", "/full", free_bytes=GIB // 2),)),
    at(
        "folder-full",
        places=(place("--output_dir", "/out", free_bytes=GIB),),
        model_bytes=440 * MIB,
    ),
    at("folder-full", places=(place("--output_dir", "/out", free_files=3),)),
    at("virtual-memory", address_space_bytes=4 * GIB),
    at("virtual-memory", address_space_bytes=GIB),
    at("data-segment", data_bytes=GIB),
    at("data-segment", data_bytes=256 * MIB),
    at("data-segment", data_bytes=4 * GIB, model_bytes=GIB),
    at("stack-small", stack_bytes=512 << 10),
    at("cpu-seconds", cpu_seconds=3600),
    at("cpu-seconds", cpu_seconds=3600, fixed=("cpu_seconds",), sys_resource=False),
    at("file-size", file_bytes=256 * MIB),
    at("file-size", file_bytes=2 * GIB, model_bytes=2 * GIB),
    at("variable-refused", ACCELERATE_USE_DEEPSPEED="true"),
    at("variable-refused", packages=IPEX_ERA, CCL_ATL_TRANSPORT="mpi"),
    at("variable-refused", ACCELERATE_DYNAMO_BACKEND="IPEX"),
    at("debug-left-on", TORCH_DISTRIBUTED_DEBUG="DETAIL"),
    at("debug-left-on", TORCH_LOGS="+dynamo", TORCH_COMPILE_DEBUG="1", MALLOC_CHECK_="3"),
    at("ranks-auto", cpu_quota=8.0, PET_NPROC_PER_NODE="auto"),
    at("ranks-auto", PET_NPROC_PER_NODE="auto"),
    at("quota-threads", cpu_quota=8.5, OMP_NUM_THREADS=None),
    at("nproc-host", cpu_quota=8.0),
    at("quota-throttled", cpu_quota=8.0, periods=1000, throttled_periods=950),
    at("ranks-oversubscribed", **TORCHRUN, OMP_NUM_THREADS="112"),
    at("ranks-oversubscribed", cpu_quota=8.0, **TORCHRUN, OMP_NUM_THREADS="8"),
    at("ranks-oversubscribed", cpu_quota=1.0, LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1"),
    at("ranks-oversubscribed", cpu_quota=1.0, **TORCHRUN),
    at("one-core", topology=topology(allowed=(3, 59)), cpuset=(3, 59), OMP_NUM_THREADS="1"),
    at("memory-limit", memory_bytes=4 * GIB),
    at("memory-limit", total_bytes=2 * GIB),
    at("primitive-cache", memory_bytes=4 * GIB),
    at("shm-small", shm_bytes=64 << 20),
    at("shm-small", shm_free_bytes=12 << 20),
    at("processes-few", pids=256, pids_used=40),
    at("processes-few", processes=128, sys_resource=False),
    at("memlock-small", memlock_bytes=8 << 20, FI_PROVIDER="verbs"),
    at("open-files", open_files=256, open_files_hard=256),
    at("open-files", open_files=256, open_files_hard=4096),
    at("threads-affinity", topology=topology(allowed=(0, 1, 2, 3))),
    at("threads-affinity", MKL_NUM_THREADS="200"),
    at("threads-one", OMP_NUM_THREADS="1"),
    at("threads-one", OMP_NUM_THREADS=None),
    at("threads-one", **TORCHRUN, OMP_NUM_THREADS=None),
    at("threads-malformed", OMP_NUM_THREADS="$(nproc)"),
    at("threads-malformed", OMP_NUM_THREADS="8", MKL_NUM_THREADS="all"),
    at("threads-mkl", MKL_NUM_THREADS="4"),
    at("threads-limit", OMP_THREAD_LIMIT="8"),
    at("threads-limit", OMP_THREAD_LIMIT="8", OMP_NUM_THREADS=None),
    at("threads-siblings", OMP_NUM_THREADS="112"),
    at("threads-siblings", **{**TORCHRUN, "LOCAL_WORLD_SIZE": "29"}, OMP_NUM_THREADS="2"),
    at("affinity-shrinks", KMP_AFFINITY="granularity=fine,compact,1,0", **IOMP),
    at("affinity-shrinks", OMP_PROC_BIND="close"),
    at("affinity-gomp", topology=topology(allowed=(0, 1, 2, 3)), GOMP_CPU_AFFINITY="0-7:2"),
    at("numa-not-zero", topology=topology(allowed=SECOND), cpuset=SECOND),
    at("mempolicy", container="docker", sys_nice=False),
    at("shell-bound", topology=topology(allowed=(0, 1)), OMP_NUM_THREADS="2"),
    at("openmpi-one-core", launchers=(OPENMPI,)),
    at("bound-twice", I_MPI_PIN_DOMAIN="[0x3,0xc]", KMP_AFFINITY="compact", **IOMP),
    at("bound-twice", topology=topology(allowed=(0, 1)), I_MPI_PIN="1"),
    at("bound-twice", GOMP_CPU_AFFINITY="0-3", OMP_PLACES="cores", OMP_PROC_BIND="close"),
    at("pin-mask", I_MPI_PIN_DOMAIN="[ffff,ffff0000]"),
    at("pin-mask", I_MPI_PIN_DOMAIN=f"[{1 << 200:#x}]"),
    at("fp16-ignored", ACCELERATE_MIXED_PRECISION="fp16"),
    at("fp16-ignored", isa=CASCADE_LAKE_ISA, ACCELERATE_MIXED_PRECISION="fp16"),
    at("isa-capped", ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16"),
    at("isa-capped", ATEN_CPU_CAPABILITY="avx2"),
    at("isa-capped", MKL_ENABLE_INSTRUCTIONS="AVX2"),
    at("isa-beyond", isa=("avx2",), ATEN_CPU_CAPABILITY="avx512"),
    at("amx-doubtful", kernel="5.15.0-91-generic"),
    at("amx-doubtful", isa=("amx_bf16",)),
    at("isa-old", isa=("avx", "sse4_2"), ACCELERATE_MIXED_PRECISION="no"),
    at("isa-old", isa=()),
    at("bf16-slow", isa=CASCADE_LAKE_ISA),
    at("bf16-slow", isa=CASCADE_LAKE_ISA, ACCELERATE_MIXED_PRECISION=None),
    at("bf16-native", ACCELERATE_MIXED_PRECISION=None),
    at("preload-dead", preload_missing=(UNVERSIONED,), LD_PRELOAD=UNVERSIONED),
    at("preload-dead", preload_missing=("/gone.so",), libraries=(), LD_PRELOAD="/gone.so"),
    at(
        "preload-dead",
        preload_missing=("/gone/libtcmalloc.so", "/gone/libx.so"),
        LD_PRELOAD="/gone/libtcmalloc.so:/gone/libx.so:/there.so",
    ),
    at("openmp-two", LD_PRELOAD=f"{TCMALLOC}:/opt/libiomp5.so:/usr/lib/libgomp.so.1"),
    at("openmp-two", KMP_DUPLICATE_LIB_OK="TRUE"),
    at("setting-without-library", KMP_BLOCKTIME="1"),
    at("setting-without-library", MALLOC_CONF="background_thread:true"),
    at("conda-pip-mixed", packages={"numpy": CONDA_NUMPY}),
    at("allocator-default", LD_PRELOAD=None),
    at("allocator-missing", libraries=(), LD_PRELOAD=None),
    at(
        "facts-missing",
        cores=(),
        online=(),
        allowed=(),
        present=None,
        unknown=(Unknown(fact="topology.online", reason="/sys is not mounted"),),
    ),
    at("facts-missing", cores_known=False),
    at("facts-missing", unknown=(Unknown(fact="cpu.isa", reason="no flags"),)),
    # what ran has ended
    at("machine-busy", average_1min=40.0, cpu_pressure_percent=35.0),
    at("machine-busy", busy=(TRAIN,)),
    at("cpu-steal", steal_share=0.12),
    at("memory-low", available_bytes=GIB),
    at("swap-in-use", swap_free_bytes=6 * GIB),
    at("swap-in-use", swap_free_bytes=0, memory_pressure_percent=9.0),
    at("governor", frequencies=(FULL_SPEED, ACTIVE_AT_FULL_SPEED, SAVING)),
    at("governor", frequencies=(Frequency(cpus=(0, 1), governor="ondemand"),)),
    at("turbo-off", turbo=False),
    at("turbo-off", turbo=False, vendor="AuthenticAMD"),
    at("huge-pages", transparent_huge_pages="never"),
    at("numa-balancing", numa_balancing=True),
    at("siblings-together", topology=topology(together=True)),
    at("numa-in-socket", topology=topology(nodes_per_socket=2)),
    at("numa-cpuless", numa_nodes=(*SPLIT.numa_nodes, HBM)),
    at("numa-full", numa_nodes=(SPLIT.numa_nodes[0], FULL)),
    at("cpus-offline", present=tuple(range(130))),
)

NEARLY: tuple[tuple[str, Changes], ...] = (
    at("cpu-emulated", model_name="QEMU Virtual CPU version 2.5+"),
    at("isa-hidden"),
    at("isa-hidden", family=6, model=79, isa=("avx2", "fma")),
    at("isa-hidden", family=6, model=143, isa=()),
    at("memory-high", memory_high_bytes=2000 * GIB),
    at("cpu-weight", cpu_weight=3),
    at("priority-low", nice=0, policy="other"),
    at("priority-low", nice=-5),
    at("memory-remote", topology=topology(allowed=tuple(range(28))), memory_nodes=(0, 1)),
    at("memory-remote", memory_nodes=(1,)),
    at("overcommit-never", commit_left_bytes=None),
    at("frequency-capped", frequency_caps=(replace(CAP, allowed_khz=3_420_000),)),
    at("frequency-capped", max_perf_percent=90),
    at("thermal-throttled", throttled_share=0.01),
    at("threads-serial", OMP_MAX_ACTIVE_LEVELS="1"),
    at("training-changed", **{GRADIENTS: "1"}, ACCELERATE_DYNAMO_BACKEND="no"),
    at("training-changed", ACCELERATE_MIXED_PRECISION="bf16"),
    at("training-changed", PARALLELISM_CONFIG_TP_SIZE="1", ONEDNN_DEFAULT_FPMATH_MODE="STRICT"),
    at("variable-mistyped", OMP_NUM_TEAMS="2", MKL_NUM_THREADS="2", TORCH_FOO="1"),
    at("file-named-absent", SSL_CERT_FILE="/etc/ssl/cert.pem"),
    at("master-addr-malformed", MASTER_ADDR="::1"),
    at("master-addr-malformed", MASTER_ADDR="$(hostname -I | awk '{print $1}')"),
    at("master-addr-malformed", MASTER_ADDR="2001:db8::7"),
    at("pin-processor-list", I_MPI_PIN_PROCESSOR_LIST="0,28", OMP_NUM_THREADS="1"),
    at("pin-processor-list", I_MPI_PIN_PROCESSOR_LIST="0,28", I_MPI_PIN_DOMAIN="socket"),
    at("variable-refused", PET_NPROC_PER_NODE="auto", HF_ENDPOINT="https://hf.example.com"),
    at("gloo-loopback", GLOO_SOCKET_IFNAME="lo"),
    at("requirement-unmet", packages={"transformers": TOKENIZERS, "tokenizers": "0.23.1"}),
    at("torch-build-mixed", packages={**CPU_BUILD, "torchvision": "0.28.0+cpu"}),
    at("torch-build-mixed", packages={**CPU_BUILD, "torchvision": VISION}),
    at("torch-build-mixed", packages={"torch": "2.13.0", "torchvision": "0.28.0"}),
    at("torch-build-mixed", architecture="aarch64", packages={**CPU_BUILD, "torchvision": "0.28"}),
    at("torch-load-refused", packages={"torch": "2.6.0", "transformers": "4.57.6"}),
    at("torch-load-refused", packages={"torch": "2.5.1", "transformers": "4.51.3"}),
    at("stack-newer", packages={"torch": "2.15.9", "numpy": "9.0"}),
    at("master-addr", **HYDRA, **MASTER),
    at("master-addr", RANK="0", WORLD_SIZE="2"),
    at("master-addr", **TORCHRUN, RANK="0"),
    at("master-loopback", **{**TWO_PODS, "PET_NNODES": "1", "MASTER_ADDR": "127.0.0.1"}),
    at("master-loopback", PET_NNODES="2", MASTER_ADDR="10.0.0.7"),
    at("gloo-loopback", hostname_addresses=("127.0.1.1",)),
    at("gloo-loopback", hostname_addresses=("10.0.0.7",), container="kubernetes"),
    at("gloo-loopback", hostname_addresses=("127.0.1.1",), **TWO_PODS, GLOO_SOCKET_IFNAME="eth0"),
    at("interface-missing", GLOO_SOCKET_IFNAME="eth0"),
    at("interface-missing", network=Network(interfaces=None), GLOO_SOCKET_IFNAME="eth9"),
    at(
        "ranks-alone",
        packages={"accelerate": "1.12.0"},
        **TORCHRUN,
        **MASTER,
        OMP_NUM_THREADS="28",
        ACCELERATE_USE_CPU=None,
    ),
    at("ranks-alone", accelerators=None, packages={"torch": "2.13.0"}, ACCELERATE_USE_CPU=None),
    at("mpi-mixed", launchers=(INTEL_MPI,), I_MPI_ROOT="/opt"),
    at("accelerate-one-process", launchers=(), topology=topology(sockets=1), OMP_NUM_THREADS="28"),
    at("accelerate-one-process", launchers=(replace(INTEL_MPI, dialect=None),)),
    at("ccl-affinity", CCL_WORKER_AFFINITY="0,1,28,29"),
    at("ccl-affinity", allowed=(), CCL_WORKER_AFFINITY="0"),
    at("ccl-workers", CCL_WORKER_COUNT="4", OMP_NUM_THREADS="52"),
    at("ccl-workers", CCL_WORKER_COUNT="0", OMP_NUM_THREADS="112"),
    at("ccl-without-mpi", packages=IPEX_ERA, **HYDRA, **MASTER, CCL_WORKER_COUNT="1"),
    at("ccl-without-mpi", packages=IPEX_ERA, CCL_WORKER_COUNT="1"),
    at(
        "ccl-without-mpi",
        packages=IPEX_ERA,
        **TORCHRUN,
        CCL_WORKER_COUNT="1",
        CCL_PROCESS_LAUNCHER="torchrun",
    ),
    at("gloo-slow", packages=IPEX_ERA, CCL_WORKER_COUNT="4", OMP_NUM_THREADS="52"),
    at("gloo-slow", packages={**IPEX_ERA, "oneccl_bind_pt": "2.7.0"}),
    at("gloo-slow", packages={**IPEX_ERA, "accelerate": "1.13.0"}),
    at("gloo-slow", packages=IPEX_ERA, launchers=()),
    at("launch-left-over", WORLD_SIZE="2"),
    at("launch-left-over", **HYDRA),
    at("master-addr-unknown", MASTER_ADDR="node1"),
    at(
        "master-unreachable",
        surroundings=Surroundings(unreachable="10.0.0.7: No route to host"),
        RANK="1",
        LOCAL_RANK="1",
        MASTER_ADDR="127.0.0.1",
    ),
    at("loopback-down", MASTER_ADDR="127.0.0.1"),
    at("launch-left-over", RANK="1", WORLD_SIZE="2", MASTER_ADDR="10.0.0.7"),
    at("launch-left-over", RANK="0", SLURM_PROCID="0"),
    at("launch-left-over", **TORCHRUN, RANK="0"),
    at(
        "environment-foreign",
        surroundings=Surroundings(
            prefix="/venv", places=(place("VIRTUAL_ENV", "/venv"), place("CONDA_PREFIX", "/conda"))
        ),
    ),
    at("master-port-taken", **MASTER),
    at("master-port-taken", ports_taken=(29500,), RANK="0", WORLD_SIZE="2", MASTER_PORT="29500"),
    at("folder-unusable", places=(place("HF_HOME", "/rw", exists=False),)),
    at("folder-full", places=(place("HF_HOME", "/ro", writable=False, free_bytes=0),)),
    at("folder-full", places=(place("--output_dir", "/out", free_bytes=GIB),), model_bytes=MIB),
    at("data-segment", data_bytes=4 * GIB, model_bytes=GIB // 2),
    at("file-size", file_bytes=GIB, model_bytes=GIB // 2),
    at("variable-refused", packages={"deepspeed": "0.19.3"}, ACCELERATE_USE_DEEPSPEED="true"),
    at("variable-refused", ACCELERATE_DYNAMO_BACKEND="INDUCTOR", ACCELERATE_USE_CPU="True"),
    at("variable-refused", ACCELERATE_DYNAMO_BACKEND="ipex", packages=IPEX_ERA),
    at("variable-refused", ACCELERATE_MIXED_PRECISION="bf16", OMP_STACKSIZE="16M"),
    at("variable-refused", CCL_ATL_TRANSPORT="mpi"),
    at("variable-refused", packages=IPEX_ERA, CCL_ATL_TRANSPORT="ofi"),
    at("variable-refused", packages=IPEX_ERA, CCL_ATL_TRANSPORT="mpi", I_MPI_ROOT="/opt/intel"),
    at("debug-left-on", TORCH_DISTRIBUTED_DEBUG="INFO"),
    at("debug-left-on", TORCH_LOGS="recompiles,graph_breaks", TORCH_COMPILE_DEBUG="0"),
    at("ranks-auto", PET_NPROC_PER_NODE="2", OMP_NUM_THREADS="28"),
    at("ranks-auto"),
    at("quota-throttled", periods=1000, throttled_periods=950),
    at("one-core", topology=topology(allowed=(3, 4)), cpuset=(3, 4), OMP_NUM_THREADS="2"),
    at("one-core", topology=topology(allowed=(3,)), PMI_RANK="0"),
    at("one-core", topology=topology(allowed=(3,)), LOCAL_WORLD_SIZE="2"),
    at("memory-limit", memory_bytes=16 * GIB),
    at("primitive-cache", memory_bytes=7 * GIB, ONEDNN_PRIMITIVE_CACHE_CAPACITY="64"),
    at("primitive-cache", memory_bytes=4 * GIB, LRU_CACHE_CAPACITY="64"),
    at("processes-few", processes=128, sys_resource=True),
    at("memlock-small", memlock_bytes=8 << 20, FI_PROVIDER="tcp"),
    at("threads-affinity", topology=topology(allowed=(0, 1, 2, 3)), OMP_NUM_THREADS="4"),
    at("threads-one", topology=topology(sockets=1, cores=1, smt=1), OMP_NUM_THREADS="1"),
    at("threads-one", topology=topology(sockets=1, cores=1), OMP_NUM_THREADS=None),
    at("threads-malformed", OMP_NUM_THREADS="56,1"),
    at("threads-mkl", MKL_NUM_THREADS="56"),
    at("threads-mkl", MKL_NUM_THREADS="28", OMP_NUM_THREADS=None),
    at("threads-limit", OMP_THREAD_LIMIT="112"),
    at("threads-limit", OMP_THREAD_LIMIT="0", OMP_NUM_THREADS="2"),
    at("threads-siblings", OMP_NUM_THREADS="56"),
    at("affinity-shrinks", KMP_AFFINITY="none", OMP_PROC_BIND="false"),
    at("numa-not-zero", topology=topology(allowed=SECOND)),
    at("numa-not-zero", cpuset=(0, 2, 3)),
    at("mempolicy", container="docker", sys_nice=True),
    at("mempolicy", numa_nodes=(SPLIT.numa_nodes[0], MEMORYLESS), **NO_NICE),
    at("shell-bound", topology=topology(allowed=(0, 1)), cpuset=(0, 1), OMP_NUM_THREADS="2"),
    at("openmpi-one-core", launchers=(OPENMPI,), OMPI_MCA_hwloc_base_binding_policy="none"),
    at("openmpi-one-core", launchers=(OPENMPI,), OMPI_COMM_WORLD_RANK="0"),
    at("openmpi-one-core", launchers=(OPENMPI,), PRTE_MCA_hwloc_default_binding_policy="none"),
    at("bound-twice", I_MPI_PIN="0", I_MPI_PIN_DOMAIN="[0x3]", KMP_AFFINITY="compact", **IOMP),
    at("bound-twice", I_MPI_PIN="1"),
    at("bound-twice", KMP_AFFINITY="verbose,none", I_MPI_PIN="1", **IOMP),
    at("bound-twice", OMP_PROC_BIND="close", I_MPI_PIN="1"),
    at("pin-mask", I_MPI_PIN_DOMAIN="[0xffff,0xffff0000]"),
    at("pin-mask", I_MPI_PIN_DOMAIN="socket"),
    at(
        "fp16-ignored",
        accelerators=("nvidia",),
        packages={"torch": "2.13.0+cu130"},
        ACCELERATE_MIXED_PRECISION="fp16",
    ),
    at("fp16-ignored", ACCELERATE_MIXED_PRECISION="bf16"),
    at("isa-capped", ONEDNN_MAX_CPU_ISA="AVX512_CORE_AMX"),
    at("isa-beyond", ATEN_CPU_CAPABILITY="avx512"),
    at("isa-beyond", isa=("avx2",), ATEN_CPU_CAPABILITY="AVX512"),  # torch ignores it
    at("amx-doubtful", kernel="5.14.0-427.el9.x86_64", hypervisor=True),
    at("amx-doubtful", isa=CASCADE_LAKE_ISA, kernel="5.4.0"),
    at("isa-old", isa=("asimd", "bf16"), architecture="aarch64", vendor="ARM"),
    at("bf16-slow", isa=(*CASCADE_LAKE_ISA, "avx512_bf16")),
    at("bf16-native", isa=CASCADE_LAKE_ISA, ACCELERATE_MIXED_PRECISION=None),
    at("bf16-native", packages={"torch": None}, ACCELERATE_MIXED_PRECISION=None),
    at("openmp-two", **IOMP),
    at("openmp-two", LD_PRELOAD="/lib/libgomp.so.1"),
    at("setting-without-library", KMP_BLOCKTIME="1", **IOMP),
    at("setting-without-library", MALLOC_CONF="x", LD_PRELOAD="/lib/libjemalloc.so.2"),
    at("conda-pip-mixed", packages={"torch": None, "numpy": by("conda", "numpy")}),
    at(
        "allocator-default",
        libraries=(Library(name="libgomp", path="/usr/lib/libgomp.so.1"),),
        LD_PRELOAD=None,
    ),
    at("allocator-default", preload_missing=("/x.so",), LD_PRELOAD="/x.so"),
    at("allocator-missing", libraries=(), LD_PRELOAD="/opt/libjemalloc.so.2"),
    at("facts-missing"),
    at("governor", frequencies=(FULL_SPEED, ACTIVE_AT_FULL_SPEED)),
    at("turbo-off", turbo=None),
    at("huge-pages", transparent_huge_pages="always"),
    at("numa-balancing", **ONE_SOCKET, numa_balancing=True),
    at("siblings-together", topology=topology(sockets=1, cores=3)),
    at("siblings-together", cores=FOUR_PAIRS, **EIGHT),
    at("numa-in-socket", topology=topology(nodes_per_socket=2, sockets_known=False)),
    at("numa-cpuless", numa_nodes=(*NODES, NumaNode(id=2, cpus=(), memory_bytes=None))),
    at("numa-full", numa_nodes=tuple(replace(n, free_bytes=GIB) for n in NODES)),
    at("cpus-offline", present=tuple(range(224)), smt="off"),
)

BORDERS: tuple[tuple[str, Changes, Changes], ...] = (
    # a check, what is just well, what is just ill
    border("quota-threads", "cpu_quota", 56.0, 55.9),
    border("nproc-host", "cpu_quota", 111.5, 111.0),
    ("quota-throttled", throttled(99, 99), throttled(100, 99)),
    ("quota-throttled", throttled(100, 10), throttled(100, 11)),
    border("ranks-oversubscribed", "OMP_NUM_THREADS", "56", "57", LOCAL_WORLD_SIZE="2"),
    # one rank is threads-affinity's
    (
        "ranks-oversubscribed",
        on(LOCAL_WORLD_SIZE="1", OMP_NUM_THREADS="200"),
        on(LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="100"),
    ),
    border(
        "one-core",
        "topology",
        topology(sockets=1, cores=1),
        topology(sockets=1, cores=2, smt=1, allowed=(1,)),
    ),
    border("primitive-cache", "memory_bytes", 8 * GIB + 1, 8 * GIB),
    border("shm-small", "shm_bytes", 256 * MIB, 256 * MIB - 1),
    border("shm-small", "shm_free_bytes", 256 * MIB, 256 * MIB - 1),
    border("open-files", "open_files", 1024, 1023),
    border(
        "folder-full",
        "places",
        (place("TMPDIR", "/t", free_bytes=64 * MIB),),
        (place("TMPDIR", "/t", free_bytes=64 * MIB - 1),),
    ),
    border(
        "folder-full",
        "places",
        (place("TMPDIR", "/t", free_files=100),),
        (place("TMPDIR", "/t", free_files=99),),
    ),
    border(
        "virtual-memory", "address_space_bytes", (2048 + 72 * 56) * MIB, (2048 + 72 * 56) * MIB - 1
    ),
    border("file-size", "file_bytes", GIB, GIB - 1),
    border("stack-small", "stack_bytes", MIB, MIB - 1),
    border("cpu-seconds", "cpu_seconds", 86400 * 56, 86400 * 56 - 1),
    border("processes-few", "pids", 368, 367),
    border("processes-few", "processes", 368, 367, sys_resource=False),
    border("memlock-small", "memlock_bytes", GIB, GIB - 1, FI_PROVIDER="verbs"),
    border("ccl-workers", "CCL_WORKER_COUNT", "55", "56", OMP_NUM_THREADS=None),
    border("amx-doubtful", "kernel", "5.16.0", "5.15.0"),
    border("master-addr", "PMI_SIZE", "1", "2", PMI_RANK="0"),
    ("numa-full", node(free_bytes=2 * GIB), node(free_bytes=2 * GIB - 1)),
    border("machine-busy", "average_1min", 28.0, 28.1),
    border("machine-busy", "running_threads", 1, 2, average_1min=40.0),
    border("machine-busy", "cpu_pressure_percent", 10.0, 10.1),
    border("machine-busy", "busy", (process(27.9),), (process(28.0),)),
    border("cpu-steal", "steal_share", 0.02, 0.021),
    # a twentieth of much memory
    border("memory-low", "available_bytes", 10 * GIB, 10 * GIB - 1, total_bytes=200 * GIB),
    # two GiB of less
    border("memory-low", "available_bytes", 2 * GIB, 2 * GIB - 1, total_bytes=16 * GIB),
    # half of little
    border("memory-low", "available_bytes", GIB, GIB - 1, total_bytes=2 * GIB),
    border(
        "swap-in-use", "swap_free_bytes", GIB - 256 * MIB, GIB - 256 * MIB - 1, swap_total_bytes=GIB
    ),
    border("swap-in-use", "swap_free_bytes", 19 * GIB, 19 * GIB - 1, swap_total_bytes=20 * GIB),
)


def told(code: str) -> str:
    """What is found on each machine that has this fault, as it is reviewed."""
    machines = [changes for other, changes in FAULTS if other == code]
    check = BY_CODE[code]
    found = (check(changed(**changes)) for changes in machines)
    return "\n".join("".join(words(finding, check) for finding in those) for those in found)


@every_row("code", dict(FAULTS))
def test_a_fault_is_reported_as_it_was_reviewed(code: str, request: pytest.FixtureRequest) -> None:
    said = told(code)
    assert "" not in said.split("\n\n"), "one of the machines has no such fault"
    path = GOLDEN / f"{code}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")


@every_row(("code", "changes"), NEARLY)
def test_what_comes_close_is_no_fault(code: str, changes: Changes) -> None:
    assert not BY_CODE[code](changed(**changes))


@every_row(("code", "well", "ill"), BORDERS)
def test_a_fault_begins_here(code: str, well: Changes, ill: Changes) -> None:
    assert (fires(code, well), fires(code, ill)) == (False, True)


def fires(code: str, changes: Changes) -> bool:
    return bool(BY_CODE[code](changed(**changes)))


def test_every_check_is_in_the_table() -> None:
    reviewed = {path.stem for path in GOLDEN.iterdir()}
    assert dict(FAULTS).keys() == BY_CODE.keys() - {c.code for c in versions.CHECKS} == reviewed
    assert len(BY_CODE) == len(CHECKS)


def test_what_pythonpath_hides_is_not_fixed_by_pip(golden: Golden) -> None:
    needs = Package(name="transformers", version="5.12.0", requires=("accelerate>=1.1.0",))
    old = Package(name="accelerate", version="0.20.0", location="/old/")
    facts = changed(environment={"PYTHONPATH": "/mine:/old"})
    found = diagnose(replace(facts, packages=(needs, old))).findings
    commands = {one.code: one.command for one in found}
    golden(commands["transformers-accelerate"])
    assert (commands["torch-missing"] or "").startswith("pip install torch ")


def test_root_types_no_sudo() -> None:
    facts = changed(**dict(on(transparent_huge_pages="never")))
    (finding,) = (one for one in diagnose(facts).findings if one.code == "huge-pages")
    (for_root,) = (one for one in diagnose(facts).for_root().findings if one.code == "huge-pages")
    assert "| sudo tee" in (finding.command or "")
    assert for_root.command == (finding.command or "").replace("sudo ", "")


def test_a_clean_machine_has_no_findings() -> None:
    assert diagnose(CLEAN).findings == ()


def test_bash_and_shellcheck_take_the_fixes_of_all_faults(
    tmp_path: Path,
) -> None:
    findings = tuple(f for code, changes in FAULTS for f in BY_CODE[code](changed(**changes)))
    path = tmp_path / "fix.sh"
    commands = dict.fromkeys(one.command for one in findings if one.command)
    head = "#!/usr/bin/env bash\n# shellcheck disable=SC2012\n"  # sizes in /dev/shm, for people
    path.write_text(head + "\n".join(commands))
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    assert shellcheck(path) == ""
