"""``mpirun``: one bash script in the dialect of Intel MPI, MPICH or Open MPI 4 and 5.

What each dialect takes was tried with the real launchers; docs/clusters.md has the table.
rank.py alone binds: a launcher accepts a wrong pin in silence, takes one list for all nodes, and
where one lacks such CPUs it ends in words of its own, once for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from cputune.emitters import shell
from cputune.emitters.alone import script_of_one
from cputune.emitters.format import MPI_DIALECTS, EmittedFile, Format, LaunchJob
from cputune.emitters.words import comment
from cputune.errors import UsageError
from cputune.plans.carrier.interface import interface_arguments

NAMES = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}
HYDRA_HOSTS = "hosts.hydra"
OPENMPI_HOSTS = "hosts.openmpi"


_SAYS = {
    "intelmpi": '*"Intel(R) MPI"*',
    "mpich": "*HYDRA*",
    "openmpi4": '*"(Open MPI) "* | *"(OpenRTE) "*',
    "openmpi5": '*"(Open MPI) "* | *"(OpenRTE) "*',
}
"""What ``mpirun --version`` says, as a pattern of bash."""


def emit_mpirun(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script, and for several nodes the host files. Raises UsageError."""
    if job.plan.world_size == 1:
        return (script_of_one(job, "mpirun", launcher="mpirun"),)
    shell.require_hosts(job)
    refuse_colon(job)
    # mpirun.sh is replaced by a launcher that ends its ranks; one that leaves them is watched.
    watched = "intelmpi" in dialects_of(job)
    name = NAMES[job.mpi] if job.mpi else "whichever MPI is found"
    script = shell.launch_script(
        job,
        "mpirun",
        f"mpirun ({name})",
        rank=shell.mpi_rank(job),
        exports="export I_MPI_PIN=off # rank.py binds\n" if watched else "",
        mpirun="${MPIRUN:-mpirun}",
        **detected(job, {dialect: _launch(job, dialect) for dialect in dialects_of(job)}),
        start=shell.fill("watched.sh", {}) if watched else 'exec "${launch[@]}" "$@"\n',
    )
    return (script, *host_files(job, dialects_of(job)))


def detected(job: LaunchJob, lines: Mapping[str, str]) -> dict[str, str]:
    """What ``detect.sh`` is filled with: by dialect the line of bash that follows from it."""
    cases = dict.fromkeys(f"  {_SAYS[dialect]}) {line} ;;\n" for dialect, line in lines.items())
    of_mpi = NAMES[job.mpi] if job.mpi else "Intel MPI, MPICH or Open MPI"
    return {"dialects": "".join(cases), "of_mpi": of_mpi}


def _launch(job: LaunchJob, dialect: str) -> str:
    """Mpirun and its options as the array ``launch``, in one dialect."""
    plan, several = job.plan, job.plan.nodes > 1
    options = [f"-n {plan.world_size}"]
    if dialect in ("intelmpi", "mpich"):
        options.append(f"-ppn {plan.processes_per_node}")
        options.append(f'-f "$here/{HYDRA_HOSTS}"' if several else "-launcher fork")
        options += ["-bind-to none"] if dialect == "mpich" else []
    else:
        on = f'--hostfile "$here/{OPENMPI_HOSTS}"' if several else "--host localhost:"
        options.append(on if several else f"{on}{plan.processes_per_node}")
        # Its own default binds each of two ranks to one core; rank.py binds instead.
        options += [f"--map-by ppr:{plan.processes_per_node}:node", "--bind-to none"]
    if several and job.interface is not None:
        options += interface_arguments(dialect, job.interface)
    line = "\n    ".join(shell.packed(['launch=("$mpirun"', *options])) + ")"
    if dialect.startswith("openmpi"):
        line += f"\n    {AS_ROOT}"
    return line


AS_ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"


def host_files(
    job: LaunchJob, dialects: tuple[str, ...], *, always: bool = False
) -> tuple[EmittedFile, ...]:
    """The host files that these dialects read; on one node only where ``always``.

    Raises UsageError for an IPv6 address where Open MPI 5, which alone reads one, is not meant.
    """
    if job.plan.nodes == 1 and not always:
        return ()
    ranks = job.plan.processes_per_node
    names = [node.name for node in job.nodes] or ["localhost"]
    ipv6 = next((name for name in names if ":" in name), None)
    if ipv6 is not None and "openmpi5" not in dialects:
        raise UsageError(
            f"{NAMES[dialects[0]]} cannot read the address {ipv6} in a host file",
            hint="give the host a name (/etc/hosts will do)",
        )
    head = comment([f"Hosts of {job.workload.name}: {ranks} ranks on each.", "", *job.header])
    lines = {}
    if any(dialect in ("intelmpi", "mpich") for dialect in dialects):
        lines[HYDRA_HOSTS] = [f"{name}:{ranks}\n" for name in names]
    if any(dialect.startswith("openmpi") for dialect in dialects):
        lines[OPENMPI_HOSTS] = [f"{name} slots={ranks}\n" for name in names]
    return tuple(EmittedFile(name=file, text=head + "".join(of)) for file, of in lines.items())


def dialects_of(job: LaunchJob) -> tuple[str, ...]:
    """The dialect that was found or asked for; all that can read the hosts where none was."""
    if job.mpi:
        return (job.mpi,)
    if any(":" in node.name for node in job.nodes):
        return ("openmpi5",)
    return MPI_DIALECTS


def refuse_colon(job: LaunchJob) -> None:
    """Mpirun and srun take a lone ``:`` for the end of one program and the start of the next."""
    if ":" in job.command:
        raise UsageError(
            "mpirun and srun cannot carry an argument that is a lone colon",
            hint="use --format torchrun, or write the argument otherwise",
        )


MPIRUN = Format(
    name="mpirun",
    write=emit_mpirun,
    main="mpirun.sh",
    alone=True,
    consumers=("bash", "launcher"),
)
