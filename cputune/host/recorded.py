"""A machine as it was recorded: files below a directory, and what is no file beside them."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cputune import cpulist
from cputune.documents import parse
from cputune.errors import HostError
from cputune.host.base import (
    Command,
    Completed,
    Distribution,
    Host,
    Place,
    Process,
    Stray,
    Surroundings,
)
from cputune.host.files import read_file
from cputune.host.metadata import normal_name

RECORD_FILE = "record.json"
RECORD_SCHEMA = "cputune.record/1"
_MOST_PROCESSES = 4096


@dataclass(frozen=True, slots=True)
class RecordedHost(Host):
    """The machine recorded at ``root``: ``root/proc``, ``root/sys``, and ``root/record.json``.

    The last is optional and holds what is no file of the kernel::

        {"schema": "cputune.record/1",
         "python": "3.11.7",
         "affinity": "0-15",
         "environment": {"OMP_NUM_THREADS": "8"},
         "packages": [{"name": "torch", "version": "2.13.0", "location": "/venv/lib/..."}],
         "launchers": {"mpirun": {"path": "/usr/bin/mpirun",
                                  "answer": {"returncode": 0, "stdout": "...", "stderr": ""}}},
         "limits": {"NOFILE": 1024, "MEMLOCK": null},
         "cpu_info": {"brand_raw": "Cortex-A76"},
         "processes": [{"pid": 7, "name": "python", "cpus": "0-3", "cpu_share": 1.0}],
         "disk_bytes": {"/dev/shm": 67108864},
         "disk_free_bytes": {"/dev/shm": 67108864},
         "cpuid": {"7.1": [0, 0, 0, 0]},
         "unreadable": {"/proc/x": 13},
         "files": {"/venv/lib/.../torch/version.py": "..."},
         "directories": {"/usr/lib64": ["libgomp.so.1"]},
         "real_paths": {"/usr/lib64/libgomp.so.1": "/usr/lib64/libgomp.so.1.0.0"},
         "paths": {"/.dockerenv": true, "/dev/kfd": false}}

    ``packages`` may also map names to versions. Nothing is ever taken from the live
    machine, and nothing that lies outside of ``root`` is read.
    """

    root: str | os.PathLike[str]
    _record: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _tree: Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = os.path.realpath(self.root)
        if not os.path.isdir(base):
            raise HostError(
                f"no recorded machine lies at {os.fspath(self.root)!r}",
                hint="give the directory that holds proc/ and sys/",
            )
        object.__setattr__(self, "_tree", Tree(base))  # as a frozen record sets its fields
        try:
            record = parse(read_file(os.path.join(base, RECORD_FILE)))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._record["trouble"] = f"{RECORD_FILE} cannot be read: {error}"
            return
        if not isinstance(record, dict):
            self._record["trouble"] = f"{RECORD_FILE} holds no JSON object"
        elif record.get("schema", RECORD_SCHEMA) != RECORD_SCHEMA:
            self._record["trouble"] = f"{RECORD_FILE} has the unknown schema {record['schema']!r}"
        else:
            self._record.update(record)

    def trouble(self) -> str | None:
        told = self._record.get("trouble")
        return told if isinstance(told, str) else None

    def read_text(self, path: str) -> str:
        number = self._mapping("unreadable").get(path)
        if isinstance(number, int):
            raise OSError(number, os.strerror(number), path)
        kept = self._mapping("files").get(path)
        return kept if isinstance(kept, str) else read_file(self._tree.inside(path))

    def list_dir(self, path: str) -> tuple[str, ...]:
        kept = self._mapping("directories").get(path)
        if isinstance(kept, list):
            return tuple(sorted(name for name in kept if isinstance(name, str)))
        return tuple(sorted(os.listdir(self._tree.inside(path))))

    def exists(self, path: str) -> bool:
        if path in self._mapping("files") or path in self._mapping("directories"):
            return True
        kept = self._mapping("paths").get(path)
        if isinstance(kept, bool):
            return kept
        try:
            return os.path.exists(self._tree.inside(path))
        except (OSError, ValueError):
            return False

    def is_readable_file(self, path: str) -> bool:
        # The recording notes as existing what was a file that could be read.
        return self.exists(path)

    def knows(self, path: str) -> bool:
        return isinstance(self._mapping("paths").get(path), bool) or self.exists(path)

    def real_path(self, path: str) -> str:
        real = self._mapping("real_paths").get(path)
        return real if isinstance(real, str) else path

    def environment(self) -> Mapping[str, str]:
        return {k: v for k, v in self._mapping("environment").items() if isinstance(v, str)}

    def affinity(self) -> tuple[int, ...] | None:
        return _cpus(self._record.get("affinity")) or None

    def which(self, program: str) -> str | None:
        path = self._launcher(program).get("path")
        return path if isinstance(path, str) else None

    def run(self, command: Command) -> Completed:
        """The recorded answer of a launcher to ``--version``, as if it ran."""
        for name in self._mapping("launchers"):
            launcher = self._launcher(name)
            if command.argv != (launcher.get("path"), "--version"):
                continue
            error = launcher.get("error")
            if isinstance(error, int):
                raise OSError(error, os.strerror(error), command.argv[0])
            answer = launcher.get("answer")
            if isinstance(answer, dict):
                code = answer.get("returncode")
                return Completed(
                    returncode=code if isinstance(code, int) else None,
                    stdout=str(answer.get("stdout", "")),
                    stderr=str(answer.get("stderr", "")),
                    seconds=0.0,
                )
        raise FileNotFoundError(errno.ENOENT, "its answer was not recorded", command.argv[0])

    def distributions(self) -> tuple[Distribution, ...]:
        packages = self._record.get("packages")
        if isinstance(packages, dict):
            packages = [{"name": name, "version": version} for name, version in packages.items()]
        found = []
        for package in packages if isinstance(packages, list) else ():
            if isinstance(package, dict) and isinstance(package.get("name"), str):
                found.append(
                    Distribution(
                        name=package["name"],
                        version=_text(package.get("version")),
                        location=_text(package.get("location")),
                        requires=_texts(package.get("requires")),
                        installer=_text(package.get("installer")),
                        others=_texts(package.get("others")),
                    )
                )
        return tuple(sorted(found, key=lambda distribution: normal_name(distribution.name)))

    def python_version(self) -> str | None:
        return _text(self._record.get("python"))

    def cpu_info(self) -> Mapping[str, object]:
        return self._mapping("cpu_info")

    def processes(self) -> tuple[Process, ...] | None:
        """Those of the record; else those whose ``/proc/PID/status`` lies in the tree."""
        told = self._record.get("processes")
        if not isinstance(told, list):
            return tuple(self._processes_of_the_tree()) or None
        found = []
        for process in told:
            values = process if isinstance(process, dict) else {}
            pid = _number(values.get("pid"))
            if pid is not None:
                found.append(
                    Process(
                        pid=pid,
                        name=_text(values.get("name")) or "",
                        cpus=_cpus(values.get("cpus")),
                        cpu_share=_share(values.get("cpu_share")),
                    )
                )
        return tuple(found)

    def _processes_of_the_tree(self) -> Iterator[Process]:
        try:
            numbers = sorted(int(name) for name in self.list_dir("/proc") if _is_pid(name))
        except OSError:
            return
        for pid in numbers[:_MOST_PROCESSES]:
            try:
                lines = self.read_text(f"/proc/{pid}/status").splitlines()
            except (OSError, ValueError):
                continue
            told = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
            if "VmSize" in told:  # threads of the kernel have no memory of their own
                name, cpus = told.get("Name", ""), _cpus(told.get("Cpus_allowed_list"))
                yield Process(pid=pid, name=name, cpus=cpus)

    def disk_bytes(self, path: str) -> int | None:
        return _number(self._mapping("disk_bytes").get(path))

    def disk_free_bytes(self, path: str) -> int | None:
        return _number(self._mapping("disk_free_bytes").get(path))

    def resource_limit(self, name: str) -> int | None:
        return _number(self._mapping("limits").get(name))

    def surroundings(self) -> Surroundings:
        told = self._mapping("surroundings")
        try:
            return Surroundings(
                prefix=str(told.get("prefix", "")),
                places=tuple(Place(**place) for place in told.get("places", ())),
                strays=tuple(Stray(**stray) for stray in told.get("strays", ())),
                names_nothing=_texts(told.get("names_nothing")),
                ports_taken=_texts(told.get("ports_taken")),
            )
        except TypeError:  # another's fields, or none
            return Surroundings()

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        kept = self._mapping("cpuid").get(f"{leaf}.{subleaf}")
        if isinstance(kept, list) and len(kept) == 4 and all(isinstance(v, int) for v in kept):
            a, b, c, d = kept
            return a, b, c, d
        return None

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self._record.get(key)
        return value if isinstance(value, dict) else {}

    def _launcher(self, name: str) -> Mapping[str, Any]:
        value = self._mapping("launchers").get(name)
        return value if isinstance(value, dict) else {}


def _is_pid(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10


def _cpus(told: object) -> tuple[int, ...]:
    """A kernel list of the record; nothing where it is none."""
    try:
        return cpulist.parse(told) if isinstance(told, str) else ()
    except ValueError:
        return ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


def _share(value: object) -> float | None:
    """CPUs that a process used; no machine has a million, and NaN is less than nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e6 else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_PATH_MAX = 4096


class Tree:
    """Finds what a path of the machine is below ``base``, which must be a real path.

    Links are followed, but not out of the tree: the real path of each directory is found
    once and kept, so that 4096 CPUs are read quickly.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._real = {"": base}

    def inside(self, path: str) -> str:
        """The place of a path. Raises OSError where it leads out, or can be none."""
        if len(path) > _PATH_MAX:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path[:80])
        directory, name = posixpath.split(posixpath.normpath("/" + path))
        target = os.path.join(self._real_directory(directory.strip("/")), name)
        try:
            if stat.S_ISLNK(os.lstat(target).st_mode):
                return self._checked(os.path.realpath(target))
        except ValueError as error:  # a NUL in the path
            raise FileNotFoundError(errno.ENOENT, str(error)) from error
        return target

    def _real_directory(self, directory: str) -> str:
        known = directory
        while known not in self._real:
            known = known.rpartition("/")[0]
        real = self._real[known]
        rest = directory.removeprefix(known).strip("/") if known != directory else ""
        for name in rest.split("/") if rest else ():
            known = f"{known}/{name}".lstrip("/")
            target = os.path.join(real, name)
            if os.path.islink(target):
                target = self._checked(os.path.realpath(target))
            real = self._real[known] = target
        return real

    def _checked(self, real: str) -> str:
        if real != self._base and not real.startswith(self._base.rstrip("/") + "/"):
            raise FileNotFoundError(errno.ENOENT, "leads out of the recording", real)
        return real
