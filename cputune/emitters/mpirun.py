"""``mpirun``: one bash script in the dialect of Intel MPI, MPICH or Open MPI 4 and 5.

What each dialect takes was tried with the real launchers; docs/clusters.md has the table.
rank.py makes sure of the CPUs after the launcher: a wrong pin is accepted in silence, so
only the affinity that a rank observes can be believed. On several nodes it alone binds: a
launcher takes one list for all of them, and where a node lacks such CPUs it ends in words of
its own, once for each rank.
"""

from __future__ import annotations

from textwrap import indent

from cputune import cpulist
from cputune.carrier.interface import interface_arguments
from cputune.emitters import shell
from cputune.emitters.alone import script_of_one
from cputune.emitters.format import MPI_DIALECTS, EmittedFile, Format, LaunchJob
from cputune.emitters.words import ShellWord, Variables, comment
from cputune.errors import UsageError

NAMES = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}
HYDRA_HOSTS = "hosts.hydra"
OPENMPI_HOSTS = "hosts.openmpi"


def emit_mpirun(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script, and for several nodes the host files. Raises UsageError."""
    if job.plan.world_size == 1:
        return (script_of_one(job, "mpirun"),)
    shell.require_hosts(job)
    refuse_colon(job)
    of = NAMES[job.mpi] if job.mpi else "whichever MPI is found"
    words = '"$python" "${rank[@]}" -- "${train[@]}"'
    # mpirun.sh is replaced by a launcher that ends its ranks; one that leaves them is watched.
    watched = job.mpi in ("intelmpi", None)
    script = shell.launch_script(
        job,
        "mpirun",
        f"mpirun ({of})",
        mpirun="${MPIRUN:-mpirun}",
        of_mpi=NAMES[job.mpi] if job.mpi else "an MPI",
        only=_refuse_others(job.mpi) if job.mpi else "",
        launch=_launch(job, job.mpi) if job.mpi else _launch_of_any(job),
        rank=shell.rank(job, "mpi", here=job.plan.nodes == 1),
        start=f"launch+=({words})\n" + shell.fill("watched.sh", {})
        if watched
        else f'exec "${{launch[@]}}" {words} "$@"\n',
    )
    return (script, *host_files(job, dialects_of(job)))


def _refuse_others(dialect: str) -> str:
    return (
        f"[[ $dialect == {_pattern(dialect)} ]] ||\n"
        f'  fail "this script is for {NAMES[dialect]}, and $mpirun is another: $dialect" \\\n'
        '    "cputune emit --format mpirun --mpi NAME"\n'
    )


def _launch_of_any(job: LaunchJob) -> str:
    """The same array for the dialect that is found when the script runs."""
    text = "\ncase $dialect in\n"
    for dialect in dialects_of(job):
        if dialect == "openmpi4":
            continue  # openmpi5 says it for both
        lines = indent(_launch(job, dialect).lstrip(), "    ")
        text += f"  {_pattern(dialect)})\n{lines}    ;;\n"
    unknown = 'fail "$mpirun is no MPI that is known here" "install Intel MPI, MPICH or Open MPI"'
    return f"{text}  *) {unknown} ;;\nesac\n"


def _launch(job: LaunchJob, dialect: str) -> str:
    """The array ``launch``: mpirun and its options, one dialect's."""
    plan = job.plan
    several = plan.nodes > 1
    address = ShellWord(job.nodes[0].name) if several else "127.0.0.1"
    variables = shell.variables(job, intel_mpi=dialect == "intelmpi")
    lines = ['"$mpirun"', f"-n {plan.world_size}"]
    interface: list[str] = []
    if several and job.interface is not None:
        interface += interface_arguments(dialect, job.interface)
    if dialect in ("intelmpi", "mpich"):
        lines.append(f"-ppn {plan.processes_per_node}")
        lines.append(f'-f "$here/{HYDRA_HOSTS}"' if several else "-launcher fork")
        lines.append(_hydra_binding(job, dialect))
        lines += interface + _variables("-genv {} {}", address, variables)
    else:
        if several:
            lines.append(f'--hostfile "$here/{OPENMPI_HOSTS}"')
        else:
            lines.append(f"--host localhost:{plan.processes_per_node}")
        # Its own default binds each of two ranks to one core; rank.py binds instead.
        lines += [f"--map-by ppr:{plan.processes_per_node}:node", "--bind-to none"]
        lines += interface + _variables("-x {}={}", address, variables)
    text = shell.lines_array("launch", lines)
    if dialect.startswith("openmpi"):
        text += "[[ $EUID -ne 0 ]] || launch+=(--allow-run-as-root)\n"
    return text


def _hydra_binding(job: LaunchJob, dialect: str) -> str:
    """What binds the ranks of one node; several leave that to rank.py."""
    if job.plan.nodes > 1:
        return "-bind-to none" if dialect == "mpich" else "-genv I_MPI_PIN off"
    if dialect == "mpich":
        # user:0+1,2+3 is MPICH's form.
        lists = ",".join("+".join(map(str, cpus)) for cpus in job.plan.cpus)
        return f"-bind-to {ShellWord(f'user:{lists}')}"
    return "-genv I_MPI_PIN_DOMAIN " + ShellWord(pin_domain(job))


def _variables(form: str, address: str, variables: Variables) -> list[str]:
    lines = [form.format("MASTER_ADDR", address)]
    lines += [form.format(name, ShellWord(value)) for name, value in variables.items()]
    return [*lines, form.format("MASTER_PORT", '"$port"')]


def pin_domain(job: LaunchJob) -> str:
    """``[0x3,0xc]``: without the prefix Intel MPI warns and pins as it likes."""
    return "[" + ",".join(cpulist.render_mask(cpus) for cpus in job.plan.cpus) + "]"


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


def _pattern(dialect: str) -> str:
    """Open MPI 4 and 5 take the same words of all that is used here."""
    return "openmpi*" if dialect.startswith("openmpi") else dialect


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
