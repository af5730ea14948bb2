"""``accelerate launch`` (accelerate/commands/launch.py, 0.34 to 1.15).

Its options reach a rank as variables (accelerate/utils/launch.py), which another launcher can set;
sharding and other devices have no counterpart on CPUs.
"""

from cputune.launch.option import Launcher, Option

_NO_GPU = "it selects GPUs, and no GPU takes part"
# Options of a launch that is meant for GPUs.
ON_GPUS = ("--multi_gpu", "--use_deepspeed", "--use_fsdp", "--use_megatron_lm", "--use_xpu")
_FLAGS = (
    *ON_GPUS,
    "--tpu",
    "--use_mps_device",
    "--use_parallelism_config",
    "--tpu_cluster",
    "--no_tpu_cluster",
    "--tpu_use_sudo",
    "--downcast_bf16",
    "--fp8_use_autocast_during_eval",
)

ACCELERATE = Launcher(
    name="accelerate",
    programs=("accelerate-launch",),
    modules=("accelerate.commands.launch",),
    options=(
        Option(names=("--num_processes",), means="ranks"),
        Option(names=("--num_machines",), means="nodes"),
        Option(names=("--machine_rank",), means="node rank"),
        Option(names=("--main_process_ip",), means="address"),
        Option(names=("--main_process_port",), means="port"),
        Option(names=("--mpirun_hostfile",), means="host file"),
        Option(names=("--num_cpu_threads_per_process",), means="threads"),
        Option(names=("--mixed_precision",), means="precision"),
        Option(names=("--cpu", "--use_cpu"), takes=0, means="use cpu"),
        Option(names=("--config_file",), means="configuration"),
        Option(names=("--module", "-m"), takes=0, means="module"),
        Option(names=("--no_python",), takes=0, means="program"),
        Option(names=("--debug",), takes=0, variable="ACCELERATE_DEBUG_MODE=true"),
        Option(names=("--dynamo_backend",), variable="ACCELERATE_DYNAMO_BACKEND={upper}"),
        Option(names=("--dynamo_mode",), variable="ACCELERATE_DYNAMO_MODE={}"),
        Option(
            names=("--dynamo_use_fullgraph",),
            takes=0,
            variable="ACCELERATE_DYNAMO_USE_FULLGRAPH=True",
        ),
        Option(
            names=("--dynamo_use_dynamic",),
            takes=0,
            variable="ACCELERATE_DYNAMO_USE_DYNAMIC=True",
        ),
        Option(
            names=("--dynamo_use_regional_compilation",),
            takes=0,
            variable="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=True",
        ),
        Option(
            names=("--gradient_accumulation_steps",),
            variable="ACCELERATE_GRADIENT_ACCUMULATION_STEPS={}",
        ),
        Option(
            names=("--enable_cpu_affinity",),
            takes=0,
            needless="it binds ranks to the NUMA nodes of GPUs",
        ),
        Option(names=("--ipex",), takes=0, needless="IPEX has ended"),
        Option(names=("--gpu_ids",), needless=_NO_GPU),
        Option(
            names=("--same_network",),
            takes=0,
            needless="it chooses between two ways for several machines",
        ),
        Option(names=("--quiet", "-q"), takes=0, needless="it shortens a traceback"),
        Option(names=("--tee", "-t"), means="tee"),
        Option(names=("--log_dir",), means="log folder"),
        Option(names=("--role",), means="role"),
        Option(names=("--rdzv_backend",), means="rendezvous backend"),
        Option(names=("--rdzv_conf",), means="rendezvous configuration"),
        Option(names=("--max_restarts",), means="restarts"),
        Option(names=("--monitor_interval",), means="monitor interval"),
        Option(names=("--distributed_type",), means="kind"),
        Option(names=("--main_training_function",), needless="notebooks and TPUs alone read it"),
        *(Option(names=(name,), takes=0) for name in _FLAGS),
    ),
)


def one_process(*, threads: int, precision: str, ipex: bool) -> tuple[str, ...]:
    """The options of one process on CPUs; with ``--cpu`` no configuration of the user is read."""
    return (
        *("--cpu", "--num_processes", "1", "--num_machines", "1"),
        *("--mixed_precision", precision, "--dynamo_backend", "no"),
        *("--num_cpu_threads_per_process", str(threads)),
        *(("--ipex",) if ipex else ()),
    )


def through_mpirun(
    *, config: str, threads: int, precision: str, hosts: str, port: str
) -> tuple[str, ...]:
    """The options of several ranks, which accelerate starts only through mpirun and a host file.

    Ranks and machines are in the configuration (0.34 to 1.15 were tried).
    """
    return (
        *("--config_file", config, "--num_cpu_threads_per_process", str(threads)),
        *("--mixed_precision", precision, "--mpirun_hostfile", hosts),
        *("--main_process_port", port),
    )
