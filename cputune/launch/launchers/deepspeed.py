"""``deepspeed`` (deepspeed/launcher/runner.py, 0.15 to 0.18)."""

from cputune.launch.option import Launcher, Option

_SSH = "torchrun is started on each machine and uses no ssh"

DEEPSPEED = Launcher(
    name="deepspeed",
    programs=("deepspeed",),
    modules=("deepspeed.launcher.runner", "deepspeed"),
    options=(
        Option(names=("--num_gpus", "--num_accelerators"), means="ranks per node"),
        Option(names=("--num_nodes",), means="nodes"),
        Option(names=("--node_rank",), means="node rank"),
        Option(names=("--master_addr",), means="address"),
        Option(names=("--master_port",), means="port"),
        Option(names=("--hostfile", "-H"), means="host file"),
        Option(names=("--include", "-i"), means="include"),
        Option(names=("--exclude", "-e"), means="exclude"),
        Option(names=("--module",), takes=0, means="module"),
        Option(names=("--no_python",), takes=0, means="program"),
        Option(
            names=("--bind_cores_to_rank",),
            takes=0,
            needless="it binds by numactl; bind as `cputune emit` does",
        ),
        Option(
            names=("--bind_core_list",), needless="it binds by numactl; bind as `cputune emit` does"
        ),
        Option(names=("--no_local_rank",), takes=0, needless="torchrun passes no --local_rank"),
        Option(names=("--no_ssh",), takes=0, needless=_SSH),
        Option(names=("--no_ssh_check",), takes=0, needless=_SSH),
        Option(names=("--ssh_port",), needless=_SSH),
        Option(names=("--save_pid",), takes=0),
        Option(names=("--force_multi",), takes=0),
        Option(names=("--elastic_training",), takes=0),
        Option(names=("--min_elastic_nodes",)),
        Option(names=("--max_elastic_nodes",)),
        Option(names=("--launcher",)),
        Option(names=("--launcher_args",)),
        Option(names=("--enable_each_rank_log",)),
        Option(names=("--autotuning",)),
        Option(names=("--comment",)),
        Option(names=("--account",)),
        Option(names=("--venv_script",)),
    ),
)
