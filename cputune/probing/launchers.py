"""Programs that start ranks, and which dialect ``mpirun`` speaks."""

from __future__ import annotations

import re

from cputune.facts import Launcher
from cputune.host import Command
from cputune.probing._look import Look

MPI_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra")
OTHER_PROGRAMS = ("torchrun", "accelerate", "srun", "sbatch", "numactl", "kubectl", "conda")

VERSION_TIMEOUT_SECONDS = 5.0

_DIALECTS = (
    # what `mpirun --version` says: dialect, pattern of the version
    ("intelmpi", r"Intel\(R\) MPI Library.*?Version\s+([\d.]+)"),
    ("mpich", r"HYDRA build details:.*?Version:\s+([\w.]+)"),
    ("openmpi", r"\((?:Open MPI|OpenRTE)\)\s+v?([\w.]+)"),
)


def read_launchers(look: Look) -> tuple[Launcher, ...]:
    """Find each on PATH, and ask the MPI ones for their version: once for each directory.

    That child is the only one that probing starts. The name tells nothing: every MPI
    calls its launcher mpirun.
    """
    found = []
    asked: dict[str, tuple[str | None, str | None]] = {}
    for name in MPI_PROGRAMS:
        path = look.host.which(name)
        if path is None:
            continue
        directory = path.rpartition("/")[0]
        if directory not in asked:
            asked[directory] = _ask(look, name, path)
        dialect, version = asked[directory]
        found.append(Launcher(name=name, path=path, dialect=dialect, version=version))
    for name in OTHER_PROGRAMS:
        path = look.host.which(name)
        if path is not None:
            found.append(Launcher(name=name, path=path))
    return tuple(found)


def _ask(look: Look, name: str, path: str) -> tuple[str | None, str | None]:
    fact = f"launchers.{name}.dialect"
    command = Command(argv=(path, "--version"), timeout_seconds=VERSION_TIMEOUT_SECONDS)
    try:
        completed = look.host.run(command)
    except OSError as error:
        look.not_known(fact, f"{path} cannot be started: {error.strerror or error}")
        return None, None
    if completed.returncode is None:
        look.not_known(
            fact, f"{path} --version gave no answer in {VERSION_TIMEOUT_SECONDS:.0f} seconds"
        )
        return None, None
    dialect, version = parse_version(completed.stdout + "\n" + completed.stderr)
    if dialect is None:
        ended = (
            f"ended with {completed.returncode}" if completed.returncode else "says nothing known"
        )
        look.not_known(fact, f"{path} --version {ended}")
    return dialect, version


def parse_version(text: str) -> tuple[str | None, str | None]:
    """Dialect and version in what ``mpirun --version`` wrote; two None where it is no MPI.

    Open MPI 4 and 5 differ in their options and count as two dialects.
    """
    for dialect, pattern in _DIALECTS:
        found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
        if found:
            version = found[1]
            if dialect == "openmpi":
                major = version.partition(".")[0]
                dialect = "openmpi5" if major.isdigit() and int(major) >= 5 else "openmpi4"
            return dialect, version
    return None, None
