"""``python -m torch.backends.xeon.run_cpu`` (torch/backends/xeon/run_cpu.py, 2.13)."""

from cputune.launch.option import Launcher, Option

_LIBRARY = "preload the library by its path: LD_PRELOAD"
_BINDING = "bind as `cputune emit` does"

RUN_CPU = Launcher(
    name="run_cpu",
    modules=("torch.backends.xeon.run_cpu",),
    options=(
        Option(names=("--ninstances",), means="ranks"),
        Option(names=("--ncores_per_instance",), means="threads"),
        Option(names=("--module", "-m"), takes=0, means="module"),
        Option(names=("--no_python",), takes=0, means="program"),
        Option(names=("--multi_instance",), takes=0, means="independent"),
        Option(names=("--throughput_mode",), takes=0, means="independent"),
        Option(names=("--latency_mode",), takes=0, means="independent"),
        Option(names=("--rank",), means="instance"),
        Option(names=("--enable_tcmalloc",), takes=0, needless=_LIBRARY),
        Option(names=("--enable_jemalloc",), takes=0, needless=_LIBRARY),
        Option(names=("--use_default_allocator",), takes=0, needless="nothing else is preloaded"),
        Option(names=("--disable_iomp",), takes=0, needless="nothing is preloaded"),
        Option(names=("--disable_numactl",), takes=0, needless="nothing is bound"),
        Option(names=("--disable_taskset",), takes=0, needless="nothing is bound"),
        Option(names=("--skip_cross_node_cores",), takes=0, needless=_BINDING),
        Option(names=("--node_id",), needless=_BINDING),
        Option(names=("--core_list",), needless=_BINDING),
        Option(names=("--use_logical_core",), takes=0, needless=_BINDING),
        Option(names=("--log_path",), means="log folder"),
        Option(names=("--log_file_prefix",), needless="--log_dir names files by rank"),
    ),
)
