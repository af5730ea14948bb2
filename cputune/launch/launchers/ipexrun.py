"""``ipexrun`` and the launchers of IPEX before it (intel_extension_for_pytorch/cpu/launch, 2.8)."""

from cputune.launch.option import Launcher, Option

_LIBRARY = "preload the library by its path: LD_PRELOAD"
_BINDING = "bind as `cputune emit` does"
_CCL = "gloo has no workers"

IPEXRUN = Launcher(
    name="ipexrun",
    programs=("ipexrun",),
    modules=(
        "intel_extension_for_pytorch.cpu.launch",
        "intel_pytorch_extension.cpu.launch",
        "ipexrun",
    ),
    options=(
        Option(
            names=("--nprocs_per_node", "--nproc_per_node"),
            means="ranks per node",
        ),
        Option(names=("--ninstances",), means="ranks"),
        Option(names=("--nnodes",), means="nodes"),
        Option(names=("--distributed",), takes=0, means="distributed"),
        Option(names=("--hostfile",), means="host file"),
        Option(names=("--master_addr",), means="address"),
        Option(names=("--master_port",), means="port"),
        Option(
            names=("--ncores_per_instance", "--ncore_per_instance", "--ncores_per_node"),
            means="threads",
        ),
        Option(names=("--module", "-m"), takes=0, means="module"),
        Option(names=("--no_python",), takes=0, means="program"),
        Option(names=("--throughput_mode",), takes=0, means="independent"),
        Option(names=("--latency_mode",), takes=0, means="independent"),
        Option(names=("--multi_instance",), takes=0, means="independent"),
        Option(names=("--benchmark",), takes=0, means="independent"),
        Option(names=("--instance_idx",), means="instance"),
        Option(names=("--ccl_worker_count",), needless=_CCL),
        Option(names=("--logical_cores_for_ccl",), takes=0, needless=_CCL),
        Option(names=("--memory_allocator",), needless=_LIBRARY),
        Option(names=("--omp_runtime",), needless=_LIBRARY),
        Option(names=("--enable_tcmalloc",), takes=0, needless=_LIBRARY),
        Option(names=("--enable_jemalloc",), takes=0, needless=_LIBRARY),
        Option(names=("--use_default_allocator",), takes=0, needless="nothing else is preloaded"),
        Option(names=("--disable_iomp",), takes=0, needless="nothing is preloaded"),
        Option(names=("--disable_numactl",), takes=0, needless="nothing is bound"),
        Option(names=("--disable_taskset",), takes=0, needless="nothing is bound"),
        Option(names=("--auto_ipex",), takes=0, needless="IPEX has ended"),
        Option(names=("--dtype",), needless="IPEX has ended"),
        Option(names=("--auto_ipex_verbose",), takes=0, needless="IPEX has ended"),
        Option(names=("--disable_ipex_graph_mode",), takes=0, needless="IPEX has ended"),
        Option(names=("--strategy",), needless=_BINDING),
        Option(names=("--nodes_list",), needless=_BINDING),
        Option(names=("--node_id",), needless=_BINDING),
        Option(names=("--socket_id",), needless=_BINDING),
        Option(names=("--cores_list", "--core_list"), needless=_BINDING),
        Option(names=("--bind_numa_node",), takes=0, needless=_BINDING),
        Option(names=("--use_logical_cores", "--use_logical_core"), takes=0, needless=_BINDING),
        Option(names=("--use_e_cores",), takes=0, needless=_BINDING),
        Option(names=("--skip_cross_node_cores",), takes=0, needless=_BINDING),
        Option(names=("--multi_task_manager",), needless=_BINDING),
        Option(names=("--log_dir", "--log_path"), means="log folder"),
        Option(names=("--log_file_prefix",), needless="--log_dir names files by rank"),
        Option(names=("--extra_mpi_params", "--more_mpi_params"), means="mpi options"),
    ),
)
