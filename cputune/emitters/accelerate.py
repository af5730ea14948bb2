"""``accelerate``: its YAML, a host file, and the script with the launch line.

accelerate starts several CPU ranks only through mpirun, and only where a host file is
named (0.34 to 1.15); no key of its YAML carries threads or CPUs. So the launch line is
part of the artefact. Keys per version: accelerate/commands/config/config_args.py.
"""

from __future__ import annotations

from cputune.carrier.interface import launcher_variables
from cputune.emitters import shell, words
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.mpirun import (
    HYDRA_HOSTS,
    NAMES,
    OPENMPI_HOSTS,
    dialects_of,
    host_files,
    pin_domain,
    refuse_colon,
)
from cputune.emitters.words import Manifest
from cputune.errors import UsageError
from cputune.stack import Versions, load

CONFIG = "accelerate.yaml"
PUT_BACK = (
    "accelerate sets KMP_AFFINITY and KMP_BLOCKTIME itself; rank.py puts the plan's back, "
    "and binds each rank, whatever mpirun has done."
)


def emit_accelerate(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script, the YAML, and for several ranks the host files. Raises UsageError."""
    several = job.plan.world_size > 1
    variables = shell.variables(job, intel_mpi=job.mpi == "intelmpi")
    shell.require_hosts(job)
    if several:
        refuse_colon(job)
        if "mpirun_config" not in _known_keys(job):
            raise UsageError(
                f"accelerate {job.versions['accelerate']} cannot start several CPU ranks",
                hint="use --format mpirun or torchrun, or accelerate 0.28 or later",
            )
    of_mpi = {"mpirun": "mpirun", "of_mpi": NAMES[job.mpi] if job.mpi else "an MPI"}
    of_ranks = '  --mpirun_hostfile "$hosts"\n  --main_process_port "$port"\n'
    script = shell.launch_script(
        job,
        "accelerate",
        "accelerate launch",
        (PUT_BACK,) if several else (),
        exports=shell.exports(variables) + (_of_launcher(job) if several else ""),
        mpi=shell.fill("accelerate_mpi.sh", of_mpi) if several else "",
        threads=str(job.plan.threads_per_process),
        precision=precision(job),
        launch=of_ranks if several else "",
        rank=shell.rank(
            job,
            "mpi" if several else "torch",
            here=job.plan.nodes == 1,
            more=_carried(job, variables),
        ),
    )
    config = words.document(configuration(job), job.header)
    hosts = host_files(job, dialects_of(job), always=True) if several else ()
    return (script, EmittedFile(name=CONFIG, text=config), *hosts)


def _of_launcher(job: LaunchJob) -> str:
    """Exports for the launcher that accelerate starts: what it binds, and its interface."""
    text = shell.exports(words.typed(_binding(job)))
    if job.plan.nodes > 1 and job.interface is not None:
        text += "# The launcher that accelerate starts takes its interface from a variable.\n"
        text += shell.exports(words.typed(launcher_variables(dialects_of(job), job.interface)))
    return text


def _binding(job: LaunchJob) -> dict[str, str]:
    """What binds the ranks of one node; of several no launcher binds any.

    accelerate tells Open MPI ``--bind-to socket``, which fails on a host that has other CPUs
    than the first; without the component that binds it only maps.
    """
    if job.plan.nodes == 1:
        return {"I_MPI_PIN_DOMAIN": pin_domain(job)}
    return {"I_MPI_PIN": "off", "OMPI_MCA_rtc": "^hwloc", "PRTE_MCA_rtc": "^hwloc"}


def _carried(job: LaunchJob, variables: words.Variables) -> list[str]:
    """What rank.py sets after accelerate: its KMP variables, and on several nodes all.

    Open MPI hands no variables to other nodes unasked, and accelerate does not ask.
    """
    lines = ["--unset KMP_AFFINITY"]
    if "KMP_BLOCKTIME" not in variables:
        lines.append("--unset KMP_BLOCKTIME")
    several = job.plan.nodes > 1
    for name, value in variables.items():
        if several or name == "KMP_BLOCKTIME":
            lines.append("--set " + words.ShellWord(f"{name}={value}"))
    if several:
        lines.append("--set " + words.ShellWord(f"MASTER_ADDR={job.nodes[0].name}"))
        lines.append('--set "MASTER_PORT=$port"')
    return lines


def precision(job: LaunchJob) -> str:
    """Accelerate's word for the precision; fp16 on a CPU would train in fp32 without a word."""
    return "no" if job.plan.precision == "fp32" else job.plan.precision


def configuration(job: LaunchJob) -> Manifest:
    """The YAML of this accelerate release. Any key that it does not know is a ValueError."""
    plan = job.plan
    version = Versions.from_names(job.versions).accelerate
    known = _known_keys(job)
    several = plan.world_size > 1
    config: Manifest = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU" if several else words.YamlScalar("NO"),
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_process_ip": words.YamlScalar(job.nodes[0].name if plan.nodes > 1 else "127.0.0.1"),
        "main_training_function": "main",
        "mixed_precision": words.YamlScalar(precision(job)),
        "num_machines": plan.nodes,
        "num_processes": plan.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": True,
    }
    if "enable_cpu_affinity" not in known:
        del config["enable_cpu_affinity"]
    if "ipex_config" in known:
        config["ipex_config"] = {"ipex": plan.ipex}
    if several:
        hydra = dialects_of(job)[0] in ("intelmpi", "mpich")
        config["mpirun_config"] = {}
        # Not where the file's host file (a path below the current directory) beats the flag's.
        if load().accelerate.does("hostfile-flag-wins", version):
            config["mpirun_config"]["mpirun_hostfile"] = HYDRA_HOSTS if hydra else OPENMPI_HOSTS
        if load().accelerate.does("reads-mpirun-ccl", version):
            # It becomes CCL_WORKER_COUNT, and accelerate takes ccl where that is 1 or more.
            config["mpirun_config"]["mpirun_ccl"] = plan.ccl_workers
    return config


def _known_keys(job: LaunchJob) -> frozenset[str]:
    return load().accelerate.keys_of(Versions.from_names(job.versions).accelerate)


ACCELERATE = Format(
    name="accelerate",
    write=emit_accelerate,
    main="accelerate.sh",
    consumers=("bash", "launcher"),
)
