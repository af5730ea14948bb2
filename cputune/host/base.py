"""What a machine can be asked, and the records of questions and answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from cputune.host.surroundings import Around, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A child to start. ``environment`` replaces ours; None inherits it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    cwd: str | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a child ended. ``returncode`` is None where it was ended at its timeout."""

    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed distribution, read from its metadata and never imported.

    ``build`` is what torch was compiled for ("cpu", "cuda 13.0"); ``others`` are further
    versions whose metadata lies in the same environment, a sign of a damaged install.
    """

    name: str
    version: str | None = None
    location: str | None = None
    requires: tuple[str, ...] = ()
    installer: str | None = None
    build: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running process other than ours, and no thread of the kernel.

    ``cpu_share`` is the CPU time it used since the processes were last asked for: 1.0 is
    one CPU. None where there is no earlier answer, or no permission.
    """

    pid: int
    name: str
    cpu_share: float | None = None


class Host:
    """A machine to look at. This base class answers that nothing is known.

    Reading raises OSError, as the file system does; ``ValueError`` where a file is no text.
    """

    live = False
    executable = sys.executable
    """The Python that trains, for children that import its packages."""

    def read_text(self, path: str) -> str:
        """The text of a file; undecodable bytes become U+FFFD."""
        raise FileNotFoundError(path)

    def list_dir(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        raise FileNotFoundError(path)

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there and can be reached."""
        return False

    def knows(self, path: str) -> bool:
        """Whether ``exists`` can be believed: a recording holds only what was looked at."""
        return False

    def real_path(self, path: str) -> str:
        """The path with its links followed."""
        return path

    def environment(self) -> Mapping[str, str]:
        """The environment variables of the process that asks."""
        return {}

    def affinity(self) -> tuple[int, ...] | None:
        """CPUs that the process may run on; None where that is not recorded."""
        return None

    def which(self, program: str) -> str | None:
        """The path of a program on PATH."""
        return None

    def run(self, command: Command) -> Completed:
        """Run a child to its end. Raises OSError where it cannot be started."""
        raise FileNotFoundError(command.argv[0])

    def distributions(self) -> tuple[Package, ...]:
        """Installed Python distributions, from metadata alone."""
        return ()

    def python_version(self) -> str | None:
        """The version of the interpreter that trains."""
        return None

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        """EAX, EBX, ECX, EDX of the CPUID instruction; None where it cannot be asked."""
        return None

    def cpu_info(self) -> Mapping[str, object]:
        """What py-cpuinfo says of the processor, where no file tells it; it takes a second."""
        return {}

    def processes(self) -> tuple[Process, ...] | None:
        """What runs beside us, and how busy it was since the last call.

        None where processes cannot be seen, or were not recorded.
        """
        return None

    def disk_bytes(self, path: str) -> tuple[int | None, int | None]:
        """Size of the file system that holds a path, and what is free of it for us."""
        return None, None

    def surroundings(self, launch: Around | None = None) -> Surroundings:
        """What this launch, or any, finds around it; nothing where it was not recorded."""
        return Surroundings()
