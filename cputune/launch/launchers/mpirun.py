"""``mpirun`` and ``mpiexec`` of Intel MPI, MPICH and Open MPI.

Every spelling was tried with Intel MPI 2021.18, MPICH 5.0, Open MPI 4.1 and 5.0. How an option of
one dialect is spelled in another is in ``stack.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from cputune.launch.option import Launcher, Option

# Those that an mpirun may speak, and the product of each; docs/clusters.md has the differences.
DIALECTS = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}
# What ``mpirun --version`` prints, as a pattern of bash.
VERSION_PATTERNS = {
    "intelmpi": '*"Intel(R) MPI"*',
    "mpich": "*HYDRA*",
    "openmpi4": '*"(Open MPI) "* | *"(OpenRTE) "*',
    "openmpi5": '*"(Open MPI) "* | *"(OpenRTE) "*',
}
# Variables without which Open MPI starts nothing for root.
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")

_NOT_HYDRA = (
    *("-x", "--allow-run-as-root", "--mca", "-mca", "--npernode", "-npernode"),
    *("--oversubscribe", "--rankfile"),
)
_NOT_OPENMPI = ("-f", "-ppn", "-perhost", "-genv", "-genvall", "-genvlist", "-env")
# Options that each dialect refuses.
REFUSED = {
    "intelmpi": (*_NOT_HYDRA, "--report-bindings"),
    "mpich": (*_NOT_HYDRA, "-perhost"),
    "openmpi4": _NOT_OPENMPI,
    "openmpi5": (*_NOT_OPENMPI, "-bind-to", "-map-by"),
}

MPIRUN = Launcher(
    name="mpirun",
    programs=(
        "mpirun",
        "mpiexec",
        "mpiexec.hydra",
        "orterun",
        "prterun",
        "mpirun.mpich",
        "mpiexec.mpich",
        "mpirun.openmpi",
        "mpiexec.openmpi",
    ),
    options=(
        Option(names=("-n", "-np", "--np", "--n", "-c"), means="ranks"),
        Option(names=("-ppn", "-perhost", "--npernode", "-npernode", "-N"), means="ranks per node"),
        Option(names=("--map-by", "-map-by"), means="map"),
        Option(names=("-hosts", "--hosts", "-host", "--host", "-H"), means="hosts"),
        Option(
            names=(
                "-f",
                "--hostfile",
                "-hostfile",
                "--machinefile",
                "-machinefile",
                "--default-hostfile",
                "-default-hostfile",
            ),
            means="host file",
        ),
        Option(names=("-genv", "--genv", "-env"), takes=2, means="variable"),
        Option(names=("-genvlist", "-envlist")),
        Option(names=("-genvall", "-envall", "-genvnone"), takes=0),
        Option(names=("-x",), means="variable"),
        Option(names=("--mca", "-mca", "--gmca", "-gmca", "--prtemca"), takes=2),
        Option(names=("--bind-to", "-bind-to"), means="bind"),
        Option(names=("--rankfile", "-rf"), means="bind"),
        Option(names=("--cpu-set",), means="bind"),
        Option(names=("-l", "-prepend-rank", "--tag-output"), takes=0),
        Option(
            names=(
                "--allow-run-as-root",
                "--oversubscribe",
                "--report-bindings",
                "-v",
                "--verbose",
            ),
            takes=0,
        ),
        Option(names=("-wdir", "--wdir", "-wd")),
        Option(names=("-launcher", "-bootstrap")),
        Option(names=("-iface",)),
    ),
)


# The variables that name the network interface to the launcher itself, by dialect.
INTERFACE_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "intelmpi": ("I_MPI_HYDRA_IFACE",),
    "mpich": ("HYDRA_IFACE",),
    "openmpi4": ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
    "openmpi5": ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"),
}
_OPENMPI_INTERFACE = (("--mca", "btl_tcp_if_include"), ("--mca", "oob_tcp_if_include"))

_OPENMPI_UNBOUND = {"OMPI_MCA_rtc": "^hwloc", "PRTE_MCA_rtc": "^hwloc"}
# The variables that keep an mpirun from binding if its options say otherwise. Without the
# component that binds, Open MPI only maps.
UNBOUND_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "intelmpi": {"I_MPI_PIN": "off"},
    "mpich": {},
    "openmpi4": _OPENMPI_UNBOUND,
    "openmpi5": _OPENMPI_UNBOUND,
}


def is_openmpi(dialect: str | None) -> bool:
    """Whether an mpirun of this dialect is one of Open MPI."""
    return (dialect or "").startswith("openmpi")


def is_hydra(dialect: str | None) -> bool:
    """Whether an mpirun of this dialect is the hydra of Intel MPI or MPICH."""
    return dialect in ("intelmpi", "mpich")


# Names under which Debian and Open MPI 4 install Open MPI's launcher.
_OPENMPI_PROGRAMS = ("orterun", "mpirun.openmpi", "mpiexec.openmpi")


def dialect_of(program: str, launchers: Sequence[tuple[str, str, str | None]]) -> str | None:
    """The dialect of a program as it is typed; None if it is not known.

    ``launchers`` are those on PATH, each with its name, path and dialect. Another path than theirs,
    and one that a variable holds, may be of any MPI. ``mpiexec`` is the product of ``mpirun`` if it
    was not found itself.
    """
    folder, _, name = program.rpartition("/")
    if folder or "$" in program:
        return next((dialect for _, path, dialect in launchers if path == program), None)
    by_name = {name: dialect for name, _, dialect in launchers}
    if name in by_name:
        return by_name[name]
    if name.endswith(".mpich"):
        return "mpich"
    if name == "prterun":
        return "openmpi5"
    if name in _OPENMPI_PROGRAMS:
        return next(filter(is_openmpi, by_name.values()), None)
    if name in ("mpirun", "mpiexec"):
        return by_name.get("mpirun") or by_name.get("mpiexec")
    return None


def interface_arguments(dialect: str, name: str) -> tuple[str, ...]:
    """The options that name the network interface, in words: ``-iface``, ``eth0``."""
    if not is_openmpi(dialect):
        return ("-iface", name)
    words = list[str]()
    for option in _OPENMPI_INTERFACE:
        words += (*option, name)
    return tuple(words)


def launcher_variables(dialects: Iterable[str], name: str) -> dict[str, str]:
    """The same as variables, for launchers of these dialects that another program starts."""
    variables = dict[str, str]()
    for dialect in dialects:
        variables |= dict.fromkeys(INTERFACE_VARIABLES[dialect], name)
    return variables


def cores_of_each(dialect: str | None, *, ranks: int, cores: int) -> tuple[str, ...]:
    """The options that give each rank this number of cores; hydra divides all by itself."""
    if not is_openmpi(dialect):
        return ()
    return ("--map-by", f"ppr:{ranks}:node:pe={cores}")


def unbound(
    dialect: str, *, ranks: int, ranks_per_node: int, hosts: str, names: Sequence[str] = ()
) -> tuple[str, ...]:
    """The options of these ranks, none of which mpirun binds.

    ``hosts`` is the host file of this dialect, or ``names`` are the hosts; without both this
    machine alone. Open MPI would bind each of two ranks to one core. Intel MPI binds unless
    I_MPI_PIN is off.
    """
    options = ["-n", str(ranks)]
    if is_openmpi(dialect):
        each = ",".join(f"{name}:{ranks_per_node}" for name in names or ("localhost",))
        options += ("--hostfile", hosts) if hosts else ("--host", each)
        options += ("--map-by", f"ppr:{ranks_per_node}:node", "--bind-to", "none")
        return tuple(options)
    options += ("-ppn", str(ranks_per_node))
    if hosts:
        options += ("-f", hosts)
    elif names:
        options += ("-hosts", ",".join(names))
    else:
        options += ("-launcher", "fork")
    if dialect == "mpich":
        options += ("-bind-to", "none")
    return tuple(options)


def host_lines(dialect: str, hosts: Sequence[str], ranks: int) -> list[str]:
    """The lines of a host file of this dialect, with this number of ranks on each host."""
    slots = " slots=" if is_openmpi(dialect) else ":"
    return [f"{host}{slots}{ranks}\n" for host in hosts]


def refused_slots(dialect: str, words: Sequence[str]) -> tuple[str, str] | None:
    """What an mpirun of this dialect refuses in a line of a host file, and what it takes instead.

    ``words`` are those of the line. None if it takes the line, or if the dialect is not known.
    """
    host, *more = words
    if is_hydra(dialect) and any(word.startswith("slots") for word in more):
        return " ".join(more), f"{host}:N"
    if is_openmpi(dialect) and re.fullmatch(r"[^:]+:\d+", host):
        return host, f"HOST slots={host.rpartition(':')[2]}"
    return None
