"""``torchrun``: ranks of each machine, one agent on each (torch/distributed/run.py, 2.13)."""

from cputune.launch.option import Launcher, Option

# It passes --local-rank to the script (torch 2.0 and later), torchrun sets LOCAL_RANK alone.
DEPRECATED = "torch.distributed.launch"

TORCHRUN = Launcher(
    name="torchrun",
    programs=("torchrun",),
    modules=("torch.distributed.run", DEPRECATED),
    options=(
        Option(names=("--nproc_per_node", "--nproc-per-node"), means="ranks per node"),
        Option(names=("--nnodes",), means="nodes"),
        Option(names=("--node_rank",), means="node rank"),
        Option(names=("--master_addr",), means="address"),
        Option(names=("--master_port",), means="port"),
        Option(names=("--rdzv_backend",), means="rendezvous backend"),
        Option(names=("--rdzv_endpoint",), means="rendezvous endpoint"),
        Option(names=("--rdzv_id",), means="rendezvous id"),
        Option(names=("--rdzv_conf",), means="rendezvous configuration"),
        Option(names=("--standalone",), takes=0, means="standalone"),
        Option(names=("--max_restarts",), means="restarts"),
        Option(names=("--monitor_interval",), means="monitor interval"),
        Option(names=("--start_method",)),
        Option(names=("--event_log_handler",)),
        Option(names=("--role",), means="role"),
        Option(names=("--module", "-m"), takes=0, means="module"),
        Option(names=("--no_python",), takes=0, means="program"),
        Option(names=("--run_path",), takes=0),
        Option(names=("--log_dir",), means="log folder"),
        Option(names=("--redirects", "-r")),
        Option(names=("--tee", "-t"), means="tee"),
        Option(names=("--local_ranks_filter",)),
        Option(names=("--duplicate_stdout_filters",)),
        Option(names=("--duplicate_stderr_filters",)),
        Option(names=("--local_addr",)),
        Option(names=("--logs_specs",)),
        Option(names=("--numa_binding",), means="bind"),
        Option(names=("--signals_to_handle",)),
        Option(names=("--shutdown_timeout",)),
        Option(names=("--virtual_local_rank",), takes=0),
        # Of torch.distributed.launch alone.
        Option(names=("--use_env",), takes=0, needless="torchrun always sets LOCAL_RANK"),
    ),
)


def on_nodes(*, nodes: int, ranks: int, node_rank: str, address: str, port: str) -> tuple[str, ...]:
    """The options of the agent of one of these machines.

    torchrun binds nothing on a CPU (``--numa-binding`` is for GPUs), and sets OMP_NUM_THREADS to 1
    if it is unset.
    """
    return (
        *("--nnodes", str(nodes), "--node-rank", node_rank, "--nproc-per-node", str(ranks)),
        *("--master-addr", address, "--master-port", port),
    )


def on_this_machine(ranks: int) -> tuple[str, ...]:
    """The options of these ranks on one machine, which meet at a free port."""
    return ("--standalone", "--nproc-per-node", str(ranks))
