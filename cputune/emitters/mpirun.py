"""``mpirun``: one bash script in the dialect of Intel MPI, MPICH or Open MPI 4 and 5.

Each dialect was tried with the real launchers; docs/clusters.md has the table. Only rank.py binds:
launchers accept a wrong pin without a message, take one list for all nodes, and end with an obscure
error if CPUs are missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from cputune.emitters import bash
from cputune.emitters.checked_words import WIDTH, comment
from cputune.emitters.command import applied
from cputune.emitters.format import EmittedFile, Format, LaunchJob
from cputune.emitters.one_rank import script_of_one
from cputune.errors import UsageError
from cputune.launch.launch import Launch
from cputune.launch.launchers.mpirun import (
    AS_ROOT,
    DIALECTS,
    VERSION_PATTERNS,
    host_lines,
    interface_arguments,
    is_openmpi,
    unbound,
)
from cputune.launch.write import LaunchLine, ShellText, array, start
from cputune.text.plain import count

HYDRA_HOSTS = "hosts.hydra"
OPENMPI_HOSTS = "hosts.openmpi"


def emit_mpirun(job: LaunchJob) -> tuple[EmittedFile, ...]:
    """The script, and for several nodes the host files. Raises UsageError."""
    if job.plan.world_size == 1:
        return (script_of_one(job, "mpirun", launcher="mpirun"),)
    bash.require_hosts(job)
    refuse_colon(job)
    # mpirun.sh is replaced by a launcher that ends its ranks; one that leaves them is watched.
    watched = "intelmpi" in dialects_of(job)
    name = DIALECTS[job.site.mpi] if job.site.mpi else "whichever MPI is found"
    launches, arrays = list[Launch](), dict[str, str]()
    for dialect in dialects_of(job):
        started = _started(job, dialect)
        launches.append(started.launch)
        arrays[dialect] = _array(dialect, started)
    hosts = host_files(job, dialects_of(job))
    needed = bash.beside(job)
    needed += [file.name for file in hosts]
    if watched:
        exports, ending = "export I_MPI_PIN=off # rank.py binds\n", bash.fill("watched.sh", {})
    else:
        exports, ending = "", 'exec "${launch[@]}" "$@"\n'
    script = bash.launch_script(
        job,
        "mpirun",
        f"mpirun ({name})",
        rank=bash.rank(bash.mpi_rank(job)),
        exports=exports,
        named="mpirun=${MPIRUN:-mpirun}\n",
        mpirun='"$mpirun"',
        beside=bash.missed(needed),
        **detected(job, arrays),
        launches=tuple(launches),
        start=_by_its_path(job) + ending,
    )
    return (script, *hosts)


def _by_its_path(job: LaunchJob) -> str:
    """A line for Open MPI, which finds itself on other hosts only by an absolute path."""
    several = job.plan.nodes > 1 and any(map(is_openmpi, dialects_of(job)))
    return 'launch[0]=$(command -v -- "$mpirun")\n' if several else ""


def detected(job: LaunchJob, lines: Mapping[str, str]) -> dict[str, str]:
    """What ``detect.sh`` is filled with: by dialect the line of bash that follows from it."""
    patterns: dict[str, list[str]] = {}
    for dialect, line in lines.items():
        names = patterns.setdefault(line, [])
        if VERSION_PATTERNS[dialect] not in names:
            names.append(VERSION_PATTERNS[dialect])
    cases = [f"  {' | '.join(names)}) {line} ;;\n" for line, names in patterns.items()]
    of_mpi = DIALECTS[job.site.mpi] if job.site.mpi else "Intel MPI, MPICH or Open MPI"
    return {"dialects": "".join(cases), "of_mpi": of_mpi}


def _started(job: LaunchJob, dialect: str) -> LaunchLine:
    """The launch of this dialect; its line ends with the options, to which the script adds."""
    plan, several = job.plan, job.plan.nodes > 1
    hosts = f"$here/{host_file(dialect)}"
    options = unbound(
        dialect,
        ranks=plan.world_size,
        ranks_per_node=plan.processes_per_node,
        hosts=ShellText(hosts) if several else "",
    )
    if several and job.site.interface is not None:
        options += interface_arguments(dialect, job.site.interface)
    return start(
        "mpirun",
        (ShellText("$mpirun"),),
        options,
        bash.trained(job.command),
        through=(*bash.mpi_rank(job), "--", *bash.trained(applied(job))),
        written=(),
        environment=bash.mpi_variables(job),
        removed=bash.names_cleared(job),
    )


def _array(dialect: str, started: LaunchLine) -> str:
    """The words of a launch as the array ``launch``."""
    text = array("launch", started.words, WIDTH, indent="    ")
    return f"{text}\n    export {' '.join(AS_ROOT)}" if is_openmpi(dialect) else text


def host_file(dialect: str) -> str:
    """The name of the host file of a dialect."""
    return OPENMPI_HOSTS if is_openmpi(dialect) else HYDRA_HOSTS


def host_files(
    job: LaunchJob, dialects: tuple[str, ...], *, always: bool = False
) -> tuple[EmittedFile, ...]:
    """The host files that these dialects read; on one node only if ``always``.

    Raises UsageError for an IPv6 address unless Open MPI 5 is meant, which alone reads one.
    """
    if job.plan.nodes == 1 and not always:
        return ()
    ranks = job.plan.processes_per_node
    names = [node.name for node in job.site.nodes] or ["localhost"]
    ipv6 = next((name for name in names if ":" in name), None)
    if ipv6 is not None and "openmpi5" not in dialects:
        raise UsageError(
            f"{DIALECTS[dialects[0]]} cannot read the address {ipv6} in a host file",
            hint="give the host a name (/etc/hosts will do)",
        )
    title = f"Hosts of {job.workload.name}: {count(ranks, 'rank')} on each."
    head = comment([title, "", *job.header])
    files = dict[str, EmittedFile]()
    for dialect in dialects:
        file = host_file(dialect)
        files[file] = EmittedFile(name=file, text=head + "".join(host_lines(dialect, names, ranks)))
    return tuple(files.values())


def dialects_of(job: LaunchJob) -> tuple[str, ...]:
    """The dialect that was found or asked for; all that can read the hosts if none was."""
    if job.site.mpi:
        return (job.site.mpi,)
    if any(":" in node.name for node in job.site.nodes):
        return ("openmpi5",)
    return tuple(DIALECTS)


def refuse_colon(job: LaunchJob) -> None:
    """Mpirun and srun take a lone ``:`` for the end of one program and the start of the next."""
    if ":" in job.command:
        raise UsageError(
            'mpirun and srun read the argument ":" as the start of another program',
            hint="use --format torchrun, or replace the argument",
        )


MPIRUN = Format(
    name="mpirun",
    write=emit_mpirun,
    main="mpirun.sh",
    alone=True,
    consumers=("bash", "launcher"),
)
