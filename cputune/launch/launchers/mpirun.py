"""``mpirun`` and ``mpiexec`` of Intel MPI, MPICH and Open MPI.

Every spelling was tried with Intel MPI 2021.18, MPICH 5.0, Open MPI 4.1 and 5.0. How an option of
one dialect is spelled in another is in ``stack.toml``.
"""

from collections.abc import Sequence

from cputune.launch.option import Launcher, Option

DIALECTS = {
    "intelmpi": "Intel MPI",
    "mpich": "MPICH",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
}
"""Those that an mpirun may speak, and the product of each; docs/clusters.md has the differences."""
VERSION_PATTERNS = {
    "intelmpi": '*"Intel(R) MPI"*',
    "mpich": "*HYDRA*",
    "openmpi4": '*"(Open MPI) "* | *"(OpenRTE) "*',
    "openmpi5": '*"(Open MPI) "* | *"(OpenRTE) "*',
}
"""What ``mpirun --version`` prints, as a pattern of bash."""
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
"""Variables without which Open MPI starts nothing for root."""

_NOT_HYDRA = (
    *("-x", "--allow-run-as-root", "--mca", "-mca", "--npernode", "-npernode"),
    *("--oversubscribe", "--rankfile"),
)
_NOT_OPENMPI = ("-f", "-ppn", "-perhost", "-genv", "-genvall", "-genvlist", "-env")
REFUSED = {
    "intelmpi": (*_NOT_HYDRA, "--report-bindings"),
    "mpich": (*_NOT_HYDRA, "-perhost"),
    "openmpi4": _NOT_OPENMPI,
    "openmpi5": (*_NOT_OPENMPI, "-bind-to", "-map-by"),
}
"""Options that each dialect refuses."""

MPIRUN = Launcher(
    name="mpirun",
    programs=("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"),
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


def is_openmpi(dialect: str) -> bool:
    """Whether an mpirun of this dialect is one of Open MPI; else it is one of hydra."""
    return dialect.startswith("openmpi")


def unbound(dialect: str, *, ranks: int, ranks_per_node: int, hosts: str) -> tuple[str, ...]:
    """The options of so many ranks, none of which mpirun binds.

    ``hosts`` is the host file of this dialect; "" for this machine alone. Open MPI would bind each
    of two ranks to one core. Intel MPI binds unless I_MPI_PIN is off.
    """
    options = ["-n", str(ranks)]
    if is_openmpi(dialect):
        here = ("--host", f"localhost:{ranks_per_node}")
        options += ("--hostfile", hosts) if hosts else here
        options += ("--map-by", f"ppr:{ranks_per_node}:node", "--bind-to", "none")
        return tuple(options)
    options += ("-ppn", str(ranks_per_node))
    options += ("-f", hosts) if hosts else ("-launcher", "fork")
    if dialect == "mpich":
        options += ("-bind-to", "none")
    return tuple(options)


def host_lines(dialect: str, hosts: Sequence[str], ranks: int) -> list[str]:
    """The lines of a host file of this dialect, with so many ranks on each host."""
    slots = " slots=" if is_openmpi(dialect) else ":"
    return [f"{host}{slots}{ranks}\n" for host in hosts]
