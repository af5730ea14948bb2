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
    asked: dict[str, tuple[str | None, str | None, str]] = {}
    for name in MPI_PROGRAMS:
        path = look.host.which(name)
        if path is None:
            continue
        directory = path.rpartition("/")[0]
        if directory not in asked:
            asked[directory] = _ask(look, path)
        dialect, version, reason = asked[directory]
        if dialect is None:
            for fact in ("dialect", "version"):
                look.not_known(f"launchers.{name}.{fact}", reason)
        found.append(Launcher(name=name, path=path, dialect=dialect, version=version))
    for name in OTHER_PROGRAMS:
        path = look.host.which(name)
        if path is not None:
            found.append(Launcher(name=name, path=path))
    return tuple(found)


def _ask(look: Look, path: str) -> tuple[str | None, str | None, str]:
    """Dialect and version, or why they are not known."""
    command = Command(argv=(path, "--version"), timeout_seconds=VERSION_TIMEOUT_SECONDS)
    try:
        completed = look.host.run(command)
    except OSError as error:
        return None, None, f"{path} cannot be started: {error.strerror or error}"
    if completed.returncode is None:
        seconds = f"{VERSION_TIMEOUT_SECONDS:.0f} seconds"
        return None, None, f"{path} --version gave no answer in {seconds}"
    dialect, version = parse_version(completed.stdout + "\n" + completed.stderr)
    code = completed.returncode
    ended = f"ended with {code}" if code else "says nothing known"
    return dialect, version, f"{path} --version {ended}"


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
