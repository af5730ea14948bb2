"""A recorded machine: files below a directory, and the answers that are not files."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from cputune.errors import HostError
from cputune.host.base import (
    Command,
    Completed,
    Host,
    Package,
    Process,
)
from cputune.host.files import read_file
from cputune.host.metadata import normal_name
from cputune.host.surroundings import Around, Surroundings
from cputune.text import cpulist
from cputune.text.documents import parse, record_of

RECORD_FILE = "record.json"
RECORD_SCHEMA: Literal["cputune.record/1"] = "cputune.record/1"


Number = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    path: str | None = None
    error: int | None = None
    answer: Completed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A process that ran. ``cpu_share`` is bounded: no machine has a million CPUs."""

    pid: Number
    name: str = ""
    cpu_share: Annotated[float, Meta(ge=0, lt=1e6)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """``record.json``. Unknown keys and values of other types are rejected."""

    schema: Literal["cputune.record/1"] = RECORD_SCHEMA
    python: str | None = None
    affinity: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[Package, ...] | Mapping[str, str | None] = ()
    launchers: Mapping[str, _Launcher] = field(default_factory=dict)
    processes: tuple[_Running, ...] | None = None
    disk_bytes: Mapping[str, Number | None] = field(default_factory=dict)
    disk_free_bytes: Mapping[str, Number | None] = field(default_factory=dict)
    cpuid: Mapping[str, tuple[int, int, int, int] | None] = field(default_factory=dict)
    unreadable: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    real_paths: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, bool] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings)

    def __post_init__(self) -> None:
        cpulist.parse(self.affinity or "")


@dataclass(frozen=True, slots=True)
class RecordedHost(Host):
    """The machine recorded at ``root``: ``root/proc``, ``root/sys``, and ``root/record.json``.

    The last one is optional and has what is not a file of the kernel::

        {"schema": "cputune.record/1",
         "python": "3.11.7",
         "affinity": "0-15",
         "environment": {"OMP_NUM_THREADS": "8"},
         "packages": [{"name": "torch", "version": "2.13.0", "location": "/venv/lib/..."}],
         "launchers": {"mpirun": {"path": "/usr/bin/mpirun",
                                  "answer": {"returncode": 0, "stdout": "...", "stderr": ""}}},
         "processes": [{"pid": 7, "name": "python", "cpu_share": 1.0}],
         "disk_bytes": {"/dev/shm": 67108864},
         "disk_free_bytes": {"/dev/shm": 67108864},
         "cpuid": {"7.1": [0, 0, 0, 0]},
         "unreadable": {"/proc/x": 13},
         "files": {"/venv/lib/.../torch/version.py": "..."},
         "directories": {"/usr/lib64": ["libgomp.so.1"]},
         "real_paths": {"/usr/lib64/libgomp.so.1": "/usr/lib64/libgomp.so.1.0.0"},
         "paths": {"/.dockerenv": true, "/dev/kfd": false}}

    ``packages`` may also map names to versions. Nothing is read from the live machine, nor from
    outside of ``root``.
    """

    root: str | os.PathLike[str]
    _record: _Record = field(init=False, repr=False, compare=False)
    _tree: _Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = os.path.realpath(self.root)
        if not os.path.isdir(base):
            raise HostError(
                f"there is no recorded machine at {os.fspath(self.root)!r}",
                hint="give the directory that contains proc/ and sys/",
            )
        object.__setattr__(self, "_tree", _Tree(base))  # the record is frozen
        try:
            document = parse(read_file(os.path.join(base, RECORD_FILE)))
            object.__setattr__(self, "_record", record_of(_Record, document))
        except FileNotFoundError:
            object.__setattr__(self, "_record", _Record())
        except (OSError, ValueError) as error:
            raise HostError(
                f"{RECORD_FILE} of the recorded machine {os.fspath(self.root)!r} cannot be read: "
                f"{error}",
                hint="record it again: cputune doctor --record DIR",
            ) from error

    def read_text(self, path: str) -> str:
        number = self._record.unreadable.get(path)
        if number is not None:
            raise OSError(number, os.strerror(number), path)
        kept = self._record.files.get(path)
        if kept is not None:
            return kept
        return read_file(self._tree.inside(path))

    def list_dir(self, path: str) -> tuple[str, ...]:
        kept = self._record.directories.get(path)
        if kept is not None:
            return tuple(sorted(kept))
        return tuple(sorted(os.listdir(self._tree.inside(path))))

    def exists(self, path: str) -> bool:
        if path in self._record.files or path in self._record.directories:
            return True
        kept = self._record.paths.get(path)
        if kept is not None:
            return kept
        try:
            return os.path.exists(self._tree.inside(path))
        except (OSError, ValueError):
            return False

    def knows(self, path: str) -> bool:
        return path in self._record.paths or self.exists(path)

    def real_path(self, path: str) -> str:
        return self._record.real_paths.get(path, path)

    def environment(self) -> Mapping[str, str]:
        return self._record.environment

    def affinity(self) -> tuple[int, ...] | None:
        return _cpus(self._record.affinity) or None

    def which(self, program: str) -> str | None:
        launcher = self._record.launchers.get(program)
        if launcher is None:
            return None
        return launcher.path

    def run(self, command: Command) -> Completed:
        """The recorded answer of a launcher to ``--version``."""
        for launcher in self._record.launchers.values():
            if command.argv != (launcher.path, "--version"):
                continue
            if launcher.error is not None:
                raise OSError(launcher.error, os.strerror(launcher.error), command.argv[0])
            if launcher.answer is not None:
                return launcher.answer
        raise FileNotFoundError(errno.ENOENT, "its answer was not recorded", command.argv[0])

    def distributions(self) -> tuple[Package, ...]:
        packages = self._record.packages
        if isinstance(packages, Mapping):
            packages = tuple(Package(name=n, version=version) for n, version in packages.items())
        return tuple(sorted(packages, key=lambda package: normal_name(package.name)))

    def python_version(self) -> str | None:
        return self._record.python or None

    def processes(self) -> tuple[Process, ...] | None:
        processes = self._record.processes
        if processes is None:
            return None
        return tuple(
            Process(pid=process.pid, name=process.name, cpu_share=process.cpu_share)
            for process in processes
        )

    def disk_bytes(self, path: str) -> tuple[int | None, int | None]:
        return self._record.disk_bytes.get(path), self._record.disk_free_bytes.get(path)

    def surroundings(self, launch: Around | None = None) -> Surroundings:
        return self._record.surroundings

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        return self._record.cpuid.get(f"{leaf}.{subleaf}")


def _cpus(text: str | None) -> tuple[int, ...]:
    try:
        return cpulist.parse(text or "")
    except ValueError:
        return ()


_PATH_MAX = 4096  # linux/limits.h


class _Tree:
    """Finds paths of the machine below ``base``, which must be a real path.

    Links are followed, but not out of the tree. The real path of each directory is cached.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._folders: dict[str, str] = {}

    def inside(self, path: str) -> str:
        """The file of a path. Raises OSError if it is outside of the recording, or not a valid
        path.
        """
        if len(path) > _PATH_MAX or "\0" in path:
            raise OSError(errno.ENAMETOOLONG, "it is not a valid path", path[:80])
        directory, name = posixpath.split(posixpath.normpath("/" + path))
        if directory not in self._folders:
            self._folders[directory] = self._real(self._base + directory)
        target = os.path.join(self._folders[directory], name)
        if os.path.islink(target):
            return self._real(target)
        return target

    def _real(self, path: str) -> str:
        real = os.path.realpath(path)
        if real != self._base and not real.startswith(self._base.rstrip("/") + "/"):
            raise FileNotFoundError(errno.ENOENT, "leads out of the recording", path)
        return real
