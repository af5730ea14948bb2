"""The questions that a machine can answer, and the records of questions and answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from cputune.host.interpreter import Interpreter
from cputune.host.surroundings import Around, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A child process to start. ``environment`` replaces ours; None inherits it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] | None = None
    cwd: str | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """How a child ended. ``returncode``: None if it was killed at its timeout."""

    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed distribution, read from its metadata without importing it.

    ``build`` is what torch was compiled for ("cpu", "cuda 13.0"). ``others`` are further versions
    with metadata in the same environment: the installation is damaged.
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
    """A running process other than this one. Kernel threads are left out.

    ``cpu_share`` is the CPU time since the previous call divided by the wall time: 1.0 is one CPU.
    None if there was no previous call, or no permission.
    """

    pid: int
    name: str
    cpu_share: float | None = None


class Host:
    """A machine to examine. This base class answers that nothing is known.

    Methods that read raise OSError as the file system does, and ValueError if a file is not text.
    """

    live = False
    # The Python of the training, for children that import its packages.
    executable = sys.executable

    # The Python of the training. None if that was not recorded.
    interpreter: Interpreter | None = None

    def read_text(self, path: str) -> str:
        """Text of a file. Bytes that cannot be decoded become U+FFFD."""
        raise FileNotFoundError(path)

    def list_dir(self, path: str) -> tuple[str, ...]:
        """Sorted names in a directory."""
        raise FileNotFoundError(path)

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists and can be reached."""
        return False

    def knows(self, path: str) -> bool:
        """Whether ``exists`` is reliable. A recording has only the files that were read."""
        return False

    def real_path(self, path: str) -> str:
        """The path with its links resolved."""
        return path

    def environment(self) -> Mapping[str, str]:
        """Environment variables of the process that asks."""
        return {}

    def affinity(self) -> tuple[int, ...] | None:
        """CPUs on which the process may run. None if that was not recorded."""
        return None

    def which(self, program: str) -> str | None:
        """Path of a program on PATH."""
        return None

    def run(self, command: Command) -> Completed:
        """Run a child until it ends. Raises OSError if it cannot be started."""
        raise FileNotFoundError(command.argv[0])

    def distributions(self) -> tuple[Package, ...]:
        """Installed Python distributions, from their metadata alone."""
        return ()

    def python_version(self) -> str | None:
        """Version of the Python of the training."""
        return None

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        """EAX, EBX, ECX, EDX of the CPUID instruction. None if it cannot be executed."""
        return None

    def cpu_info(self) -> Mapping[str, object]:
        """What py-cpuinfo reports, for a machine without /proc/cpuinfo. Takes a second."""
        return {}

    def processes(self) -> tuple[Process, ...] | None:
        """Other processes, and how busy they were since the previous call.

        None if processes cannot be seen, or were not recorded.
        """
        return None

    def disk_bytes(self, path: str) -> tuple[int | None, int | None]:
        """Size and free bytes of the file system of a path."""
        return None, None

    def surroundings(self, launch: Around | None = None) -> Surroundings:
        """What a launch finds around it, empty if that was not recorded."""
        return Surroundings()
