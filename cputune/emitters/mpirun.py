"""``mpirun``: one bash script in the dialect of Intel MPI, MPICH or Open MPI 4 and 5.

What each dialect takes was tried with the real launchers; docs/clusters.md has the table.
rank.py makes sure of the CPUs after the launcher: a wrong pin is accepted in silence, so
only the affinity that a rank observes can be believed. On several nodes it alone binds: a
launcher takes one list for all of them, and where a node lacks such CPUs it ends in words of
its own, once for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from cputune import cpulist
from cputune.carrier.interface import interface_arguments
from cputune.emitters import ending, hostfile, shell
from cputune.emitters.header import comment
from cputune.emitters.interface import MPI_DIALECTS, EmittedFile, Job
from cputune.errors import UsageError
from cputune.nodes.named import Node

NAMES = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}
HYDRA_HOSTS = "hosts.hydra"
OPENMPI_HOSTS = "hosts.openmpi"

DETECT = """
# An mpirun of pip or conda lies beside the interpreter, whose directory need not be on PATH.
beside=$(dirname -- "$(command -v -- "$python")")
command -v mpirun >/dev/null || [[ ! -x $beside/mpirun ]] || PATH=$PATH:$beside

# Which dialect this mpirun speaks; its name does not say.
mpirun=%s
command -v -- "$mpirun" >/dev/null || fail "there is no $mpirun" "install %s, or mend PATH"
version=$("$mpirun" --version 2>&1 || true)
case $version in
  *"Intel(R) MPI"*) dialect=intelmpi ;;
  *HYDRA*) dialect=mpich ;;
  *"(Open MPI) 4."* | *"(OpenRTE) 4."*) dialect=openmpi4 ;;
  *"(Open MPI) "* | *"(OpenRTE) "*) dialect=openmpi5 ;;
  *) dialect=unknown ;;
esac
"""

NO_COLON = """for word in "$@"; do
  [[ $word != : ]] ||
    fail "a lone colon would start another program here" "write the argument otherwise"
done
"""


def emit_mpirun(job: Job) -> tuple[EmittedFile, ...]:
    """The script, and for several nodes the host files. Raises UsageError."""
    refuse_colon(job)
    shell.require_hosts(job)
    dialects = dialects_of(job)
    of = NAMES[job.mpi] if job.mpi else "whichever MPI is found"
    text = shell.head(job, "mpirun", f"Launch of {job.workload.name} with mpirun ({of}).")
    text += shell.oneccl(job)
    text += DETECT % ("${MPIRUN:-mpirun}", NAMES[job.mpi] if job.mpi else "an MPI")
    if job.mpi:
        text += (
            f"[[ $dialect == {_pattern(job.mpi)} ]] ||\n"
            f'  fail "this script is for {of}, and $mpirun is another: $dialect" \\\n'
            '    "cputune emit --format mpirun --mpi NAME"\n'
        )
    text += shell.training(job)
    text += NO_COLON + shell.FREE_PORT
    if job.mpi:
        text += _launch(job, job.mpi)
    else:
        text += "\ncase $dialect in\n"
        for dialect in dialects:
            if dialect == "openmpi4":
                continue  # openmpi5 says it for both
            body = indent(_launch(job, dialect).lstrip(), "    ")
            text += f"  {_pattern(dialect)})\n{body}    ;;\n"
        text += (
            '  *) fail "$mpirun is no MPI that is known here" '
            '"install Intel MPI, MPICH or Open MPI" ;;\nesac\n'
        )
    text += shell.rank(job, "mpi", here=job.plan.nodes == 1)
    text += ending.start(
        '"$python" "${rank[@]}" -- "${train[@]}"', watched=job.mpi in ("intelmpi", None)
    )
    return (
        shell.script("mpirun.sh", text),
        *shell.meeting(job),
        *host_files(job, dialects),
    )


def _launch(job: Job, dialect: str) -> str:
    """The array ``launch``: mpirun and its options, one dialect's."""
    plan = job.plan
    several = plan.nodes > 1
    variables = {
        "MASTER_ADDR": job.nodes[0].name if several else "127.0.0.1",
        **shell.variables(job, intel_mpi=dialect == "intelmpi"),
    }
    lines = ['"$mpirun"', f"-n {plan.world_size}"]
    interface: list[str] = []
    if several and job.interface is not None:
        interface += interface_arguments(dialect, job.interface)
    if dialect in ("intelmpi", "mpich"):
        lines.append(f"-ppn {plan.processes_per_node}")
        lines.append(f'-f "$here/{HYDRA_HOSTS}"' if several else "-launcher fork")
        lines.append(_hydra_binding(job, dialect))
        lines += interface + _variables("-genv {} {}", variables)
    else:
        if several:
            lines.append(f'--hostfile "$here/{OPENMPI_HOSTS}"')
        else:
            lines.append(f"--host localhost:{plan.processes_per_node}")
        # Its own default binds each of two ranks to one core; rank.py binds instead.
        lines += [f"--map-by ppr:{plan.processes_per_node}:node", "--bind-to none"]
        lines += interface + _variables("-x {}={}", variables)
    text = shell.lines_array("launch", lines)
    if dialect.startswith("openmpi"):
        text += "[[ $EUID -ne 0 ]] || launch+=(--allow-run-as-root)\n"
    return text


def _hydra_binding(job: Job, dialect: str) -> str:
    """What binds the ranks of one node; several leave that to rank.py."""
    if job.plan.nodes > 1:
        return "-bind-to none" if dialect == "mpich" else "-genv I_MPI_PIN off"
    if dialect == "mpich":
        return "-bind-to " + shell.quote(user_binding(job))
    return "-genv I_MPI_PIN_DOMAIN " + shell.quote(pin_domain(job))


def _variables(form: str, variables: Mapping[str, str]) -> list[str]:
    lines = [form.format(name, shell.quote(value)) for name, value in variables.items()]
    return [*lines, form.format("MASTER_PORT", '"$port"')]


def pin_domain(job: Job) -> str:
    """``[0x3,0xc]``: without the prefix Intel MPI warns and pins as it likes."""
    return "[" + ",".join(cpulist.render_mask(cpus) for cpus in job.plan.cpus) + "]"


def user_binding(job: Job) -> str:
    """``user:0+1,2+3``, MPICH's form."""
    return "user:" + ",".join("+".join(map(str, cpus)) for cpus in job.plan.cpus)


def host_files(
    job: Job, dialects: tuple[str, ...], *, always: bool = False
) -> tuple[EmittedFile, ...]:
    """The host files that these dialects read; on one node only where ``always``."""
    if job.plan.nodes == 1 and not always:
        return ()
    ranks = job.plan.processes_per_node
    nodes = job.nodes or (Node(name="localhost"),)
    head = comment([f"Hosts of {job.workload.name}: {ranks} ranks on each.", "", *job.header])
    files = []
    if any(dialect in ("intelmpi", "mpich") for dialect in dialects):
        files.append(EmittedFile(name=HYDRA_HOSTS, text=head + hostfile.hydra(nodes, ranks)))
    if any(dialect.startswith("openmpi") for dialect in dialects):
        if "openmpi5" not in dialects:
            hostfile.refuse_ipv6(nodes, "Open MPI 4")
        files.append(EmittedFile(name=OPENMPI_HOSTS, text=head + hostfile.openmpi(nodes, ranks)))
    return tuple(files)


def dialects_of(job: Job) -> tuple[str, ...]:
    """The dialect that was found or asked for; all that can read the hosts where none was."""
    if job.mpi:
        return (job.mpi,)
    if any(":" in node.name for node in job.nodes):
        return ("openmpi5",)
    return MPI_DIALECTS


def _pattern(dialect: str) -> str:
    """Open MPI 4 and 5 take the same words of all that is used here."""
    return "openmpi*" if dialect.startswith("openmpi") else dialect


def refuse_colon(job: Job) -> None:
    """Mpirun and srun take a lone ``:`` for the end of one program and the start of the next."""
    if ":" in job.command:
        raise UsageError(
            "mpirun and srun cannot carry an argument that is a lone colon",
            hint="use --format torchrun, or write the argument otherwise",
        )
