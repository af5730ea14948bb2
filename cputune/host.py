"""Host: the only door to disk, environment, clock and child processes.

Everything that looks at the machine takes a ``Host``, so that a recorded machine
(``RecordedHost``) can stand in for the live one. Paths are those of the machine that is
looked at: ``/proc/cpuinfo`` is read below the root of the recording.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cputune.errors import CannotError, HostError, UsageError

READ_LIMIT_BYTES = 16 << 20
"""No file of /proc or /sys that we read is longer (4096 CPUs of cpuinfo are 6 MiB)."""


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

    returncode: int | None
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """An installed Python distribution, as its metadata describes it.

    ``others`` are further versions of it that lie in the same environment.
    """

    name: str
    version: str | None
    location: str | None
    requires: tuple[str, ...] = ()
    installer: str | None = None
    others: tuple[str, ...] = ()


class Host:
    """A machine to look at. This base class knows nothing of its own, and says so.

    Reading raises OSError, as the file system does; ``ValueError`` where a file is no text.
    """

    live = False

    def read_text(self, path: str) -> str:
        """The text of a file; undecodable bytes become U+FFFD."""
        raise FileNotFoundError(path)

    def list_dir(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        raise FileNotFoundError(path)

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there and can be reached."""
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

    def distributions(self) -> tuple[Distribution, ...]:
        """Installed Python distributions, from metadata alone."""
        return ()

    def python_version(self) -> str | None:
        """The version of the interpreter that trains."""
        return None

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        """EAX, EBX, ECX, EDX of the CPUID instruction; None where it cannot be asked."""
        return None

    def cpu_info(self) -> Mapping[str, object]:
        """What py-cpuinfo says, for systems that have no /proc/cpuinfo."""
        return {}

    def disk_bytes(self, path: str) -> int | None:
        """Size of the file system that holds a path."""
        return None

    def resource_limit(self, name: str) -> int | None:
        """A soft limit (``NOFILE``, ``MEMLOCK``); None where unlimited or not recorded."""
        return None


class LiveHost(Host):
    """The machine that we run on."""

    live = True

    def read_text(self, path: str) -> str:
        return _read(Path(path))

    def list_dir(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(os.listdir(path)))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def environment(self) -> Mapping[str, str]:
        return dict(os.environ)

    def affinity(self) -> tuple[int, ...] | None:
        if hasattr(os, "sched_getaffinity"):
            return tuple(sorted(os.sched_getaffinity(0)))
        return None

    def which(self, program: str) -> str | None:
        return shutil.which(program)

    def run(self, command: Command) -> Completed:
        started = time.monotonic()
        with subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if command.environment is None else dict(command.environment),
            cwd=command.cwd,
            start_new_session=True,
            text=True,
            errors="replace",
        ) as child:
            try:
                out, err = child.communicate(timeout=command.timeout_seconds)
                code: int | None = child.returncode
            except subprocess.TimeoutExpired:
                end_group(child)
                out, err = child.communicate()
                code = None
            except BaseException:
                end_group(child)
                raise
        return Completed(
            returncode=code, stdout=out, stderr=err, seconds=time.monotonic() - started
        )

    def distributions(self) -> tuple[Distribution, ...]:
        from importlib import metadata

        found: dict[str, Distribution] = {}
        for dist in metadata.distributions():
            try:
                record = _distribution(dist)
            except Exception:  # damaged metadata of somebody else's package
                continue
            if record is not None:
                found.setdefault(record.name.lower().replace("_", "-"), record)
        return tuple(found[name] for name in sorted(found))

    def python_version(self) -> str | None:
        import platform

        return platform.python_version()

    def disk_bytes(self, path: str) -> int | None:
        try:
            stats = os.statvfs(path)
        except OSError:
            return None
        return stats.f_frsize * stats.f_blocks

    def resource_limit(self, name: str) -> int | None:
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        return None if soft == resource.RLIM_INFINITY else soft


def _distribution(dist: Any) -> Distribution | None:
    name = dist.metadata["Name"]
    if not name:
        return None
    installer = dist.read_text("INSTALLER")
    return Distribution(
        name=str(name),
        version=dist.version or None,
        location=str(dist.locate_file("")),
        requires=tuple(dist.requires or ()),
        installer=installer.strip() if installer else None,
    )


@dataclass(frozen=True, slots=True)
class RecordedHost(Host):
    """A machine as it was recorded: ``root/proc``, ``root/sys``, and what else was kept.

    ``root/record.json``, where there is one, holds what is no file: environment,
    packages, programs, limits. Nothing is ever taken from the live machine.
    """

    root: str | os.PathLike[str]
    _record: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = Path(self.root)
        if not base.is_dir():
            raise HostError(
                f"no recorded machine lies at {str(self.root)!r}",
                hint="give the directory that holds proc/ and sys/",
            )
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(_read(base / "record.json"))
            if isinstance(record, dict):
                self._record.update(record)

    def read_text(self, path: str) -> str:
        return _read(self._inside(path))

    def list_dir(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(os.listdir(self._inside(path))))

    def exists(self, path: str) -> bool:
        with contextlib.suppress(OSError, ValueError):
            return self._inside(path).exists()
        return False

    def _inside(self, path: str) -> Path:
        """Map a path of the machine below the root; links may not lead out of it."""
        base = Path(self.root).resolve()
        target = base / path.lstrip("/")
        real = target.resolve()
        if real != base and base not in real.parents:
            raise FileNotFoundError(f"{path} leads out of the recording")
        return target


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(READ_LIMIT_BYTES).decode("utf-8", errors="replace")


def end_group(child: subprocess.Popen[Any], *, grace_seconds: float = 2.0) -> None:
    """End a child and everything it started: INT, then TERM, then KILL on its group.

    The child must lead its own process group (``start_new_session=True``).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        try:
            child.wait(timeout=grace_seconds)
        except subprocess.TimeoutExpired:
            continue
        break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # grandchildren that outlived their parent


def write_atomically(path: Path, text: str, *, force: bool = False, mode: int = 0o644) -> None:
    """Write a file whole or not at all. Raises UsageError where it exists and not ``force``."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="give --force to replace it")
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise CannotError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place with -o"
        ) from error
