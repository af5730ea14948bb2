"""``accelerate``: its YAML, a host file, and the script with the launch line.

accelerate starts several CPU ranks only through mpirun, and only where a host file is
named (0.34 to 1.15); no key of its YAML carries threads or CPUs. So the launch line is
part of the artefact. Keys per version: accelerate/commands/config/config_args.py.
"""

from __future__ import annotations

from cputune.emitters import bash, checked_words
from cputune.emitters.checked_words import WIDTH, Manifest
from cputune.emitters.command import applied
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.mpirun import (
    detected,
    dialects_of,
    host_file,
    host_files,
    refuse_colon,
)
from cputune.emitters.one_rank import script_of_one
from cputune.errors import UsageError
from cputune.launch.launchers.accelerate import one_process, through_mpirun
from cputune.launch.launchers.mpirun import (
    AS_ROOT,
    UNBOUND_VARIABLES,
    is_openmpi,
    launcher_variables,
)
from cputune.launch.write import LaunchLine, ShellText, array, assigned, start
from cputune.stack import Versions, load

CONFIG = "accelerate.yaml"
# accelerate wants a port in the configuration of several machines; the script names a free one.
PORT = 29500
# accelerate starts mpirun by its name, and Open MPI then looks for its daemon on PATH.
_DAEMONS = """
    bin=$(dirname -- "$(readlink -f -- "$(command -v mpirun)")") # not on the PATH of other hosts
    [[ ! -x $bin/orted ]] || export OMPI_MCA_orte_launch_agent=$bin/orted
    [[ ! -x $bin/prted ]] || export PRTE_MCA_prte_launch_agent=$bin/prted"""
# Variables that accelerate sets by itself: the plan's values follow them.
_TAKEN_BACK = ("-u", "KMP_AFFINITY", "-u", "KMP_BLOCKTIME")


def emit_accelerate(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script; for several ranks the YAML and the host files, too. Raises UsageError."""
    if job.plan.world_size == 1:
        return (script_of_one(job, "accelerate", starting=_alone),)
    bash.require_hosts(job)
    refuse_colon(job)
    if "mpirun_config" not in _known_keys(job):
        raise UsageError(
            f"accelerate {job.machine.versions['accelerate']} cannot start several CPU ranks",
            hint="use --format mpirun or torchrun, or accelerate 0.28 or later",
        )
    exported = dict[str, str]()
    for dialect in dialects_of(job):
        # accelerate gives Open MPI --bind-to socket, which fails on a host with fewer CPUs.
        exported |= UNBOUND_VARIABLES[dialect]
    if job.plan.nodes > 1 and job.site.interface is not None:
        exported |= launcher_variables(dialects_of(job), job.site.interface)
    lines = dict[str, str]()
    for dialect in dialects_of(job):
        lines[dialect] = f"hosts=$here/{host_file(dialect)}"
        if is_openmpi(dialect):
            lines[dialect] += f"\n    export {' '.join(AS_ROOT)}"
            if job.plan.nodes > 1:
                lines[dialect] += _DAEMONS
    started = _started(job)
    hosts = host_files(job, dialects_of(job), always=True)
    script = bash.launch_script(
        job,
        "accelerate",
        "accelerate launch",
        exports=bash.exports(checked_words.typed(exported)),
        named="",
        mpirun="mpirun",
        **detected(job, lines),
        rank=bash.rank(bash.mpi_rank(job, *_TAKEN_BACK)),
        start=array("launch", started.words, WIDTH) + "\n",
        launches=(started.launch,),
        beside=bash.missed([*bash.beside(job), CONFIG, *(file.name for file in hosts)]),
    )
    content = configuration(job)
    text = checked_words.document(content, job.header)
    config = EmittedFile(name=CONFIG, text=text, document=content)
    return (script, config, *hosts)


def _started(job: LaunchJob) -> LaunchLine:
    """The launch of several ranks, which are in the configuration."""
    options = through_mpirun(
        config=ShellText(f"$here/{CONFIG}"),
        threads=job.plan.threads_per_process,
        precision=precision(job),
        hosts=ShellText("$hosts"),
        port=ShellText("$port"),
    )
    return start(
        "accelerate",
        (bash.PYTHON, "-m", "accelerate.commands.launch"),
        (*options, "--no_python"),
        bash.trained(job.command),
        through=(*bash.mpi_rank(job, *_TAKEN_BACK), "--", *bash.trained(applied(job))),
        written=(bash.RANK, *bash.ALL_TRAINED),
        environment=bash.mpi_variables(job),
        removed=bash.names_cleared(job),
    )


def _alone(job: LaunchJob, bound: tuple[str, ...], trained: tuple[str, ...]) -> LaunchLine:
    """One rank. accelerate leaves the training behind when it alone is killed: so the kernel ends
    it.
    """
    plan, planned = job.plan, bash.rank_variables(job)
    options = one_process(
        threads=plan.threads_per_process, precision=precision(job), ipex=plan.ipex
    )
    blocktime = planned.get("KMP_BLOCKTIME")
    after_accelerate = () if blocktime is None else (assigned("KMP_BLOCKTIME", blocktime),)
    until_it_ends = ("setpriv", "--pdeathsig", "TERM", "env", *_TAKEN_BACK, *after_accelerate)
    through = (*until_it_ends, *bound, bash.PYTHON)
    return start(
        "accelerate",
        (bash.PYTHON, "-m", "accelerate.commands.launch"),
        (*options, "--no_python"),
        trained,
        through=through,
        written=(*through, *trained, bash.MORE),
        environment=planned,
        removed=bash.names_cleared(job),
    )


def precision(job: LaunchJob) -> str:
    """Accelerate's word for the precision; fp16 on a CPU would train in fp32 without a message."""
    return "no" if job.plan.precision == "fp32" else job.plan.precision


def configuration(job: LaunchJob) -> Manifest:
    """The YAML of this accelerate release. Any key that it does not know is a ValueError."""
    plan = job.plan
    version = Versions.from_names(job.machine.versions).accelerate
    keys = _known_keys(job)
    config: Manifest = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_process_ip": checked_words.YamlScalar(
            job.site.nodes[0].name if plan.nodes > 1 else "127.0.0.1"
        ),
        **({"main_process_port": PORT} if plan.nodes > 1 else {}),
        "main_training_function": "main",
        "mixed_precision": checked_words.YamlScalar(precision(job)),
        "num_machines": plan.nodes,
        "num_processes": plan.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": True,
    }
    if "enable_cpu_affinity" not in keys:
        del config["enable_cpu_affinity"]
    if "ipex_config" in keys:
        config["ipex_config"] = {"ipex": plan.ipex}
    config["mpirun_config"] = {}
    # Not where the file's host file (a path below the current directory) beats the flag's.
    if load().accelerate.does("hostfile-flag-wins", version):
        config["mpirun_config"]["mpirun_hostfile"] = host_file(dialects_of(job)[0])
    if load().accelerate.does("reads-mpirun-ccl", version):
        # It becomes CCL_WORKER_COUNT, and accelerate takes ccl where that is 1 or more.
        config["mpirun_config"]["mpirun_ccl"] = plan.ccl_workers
    return config


def _known_keys(job: LaunchJob) -> frozenset[str]:
    return load().accelerate.keys_of(Versions.from_names(job.machine.versions).accelerate)


ACCELERATE = Format(
    name="accelerate",
    write=emit_accelerate,
    main="accelerate.sh",
    alone=True,
    consumers=("bash", "launcher"),
)
