"""``mpirun`` and ``mpiexec`` of Intel MPI, MPICH and Open MPI.

Every spelling was tried with Intel MPI 2021.18, MPICH 5.0, Open MPI 4.1 and 5.0. How an option of
one dialect is spelled in another is in ``stack.toml``.
"""

from cputune.launch.option import Launcher, Option

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
    ),
)
