"""The machine on which cputune runs."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping

from cputune.host.base import Command, Completed, Host, Package, Process
from cputune.host.children import end, in_session
from cputune.host.files import read_file
from cputune.host.interpreter import Interpreter, other_interpreter, this_interpreter
from cputune.host.surroundings import Around, Surroundings, look_around

# The kernel counts the CPU time of processes in hundredths of a second.
SHORTEST_LOOK_SECONDS = 0.1


class LiveHost(Host):
    """The machine on which cputune runs, with the Python that trains.

    ``python`` is that Python, its path, or the path of its environment. None: the Python that runs
    cputune. ``variables`` are set in addition to those of this process. Raises UsageError if it is
    not a Python.
    """

    live = True

    def __init__(
        self,
        python: str | Interpreter | None = None,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        if python is None:
            python = this_interpreter()
        elif isinstance(python, str):
            python = other_interpreter(python)
        self.interpreter = self._python = python
        self.executable = python.executable
        self._variables = variables or {}
        self._looked_seconds = 0.0
        self._used_seconds: dict[int, float] | None = None

    def read_text(self, path: str) -> str:
        return read_file(path)

    def list_dir(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(os.listdir(path)))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def knows(self, path: str) -> bool:
        return True

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **self._variables}

    def affinity(self) -> tuple[int, ...] | None:
        if hasattr(os, "sched_getaffinity"):
            return tuple(sorted(os.sched_getaffinity(0)))
        return None

    def which(self, program: str) -> str | None:
        # The programs of an environment can be used without activating it. PATH has priority for
        # our own Python; another environment is treated as if it were activated.
        beside = os.path.join(self._python.prefix, "bin")
        if not self._python.is_ours:
            return shutil.which(program, path=beside) or shutil.which(program)
        return shutil.which(program) or shutil.which(program, path=beside)

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
                code = child.poll()  # the child may have ended while its children hold the pipes
                end(lambda: in_session(child.pid))
                out, err = _what_is_left(child)
            except BaseException:
                end(lambda: in_session(child.pid))
                raise
        from cputune.text.log import log  # logging takes a while to import

        seconds = time.monotonic() - started
        log.getChild("host").debug("ran %s: %s after %.3g s", command.argv, code, seconds)
        return Completed(returncode=code, stdout=out, stderr=err, seconds=seconds)

    def distributions(self) -> tuple[Package, ...]:
        from cputune.host.metadata import read_distributions

        return read_distributions(self._python.paths, self._python.prefix)

    def python_version(self) -> str | None:
        return self._python.version

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        # Only root may open the device (cpuid(4)), and only x86 has it.
        try:
            with open("/dev/cpu/0/cpuid", "rb", buffering=0) as device:
                answer = os.pread(device.fileno(), 16, leaf | subleaf << 32)
        except OSError:
            return None
        if len(answer) != 16:
            return None
        return struct.unpack("<4I", answer)

    def cpu_info(self) -> Mapping[str, object]:
        try:
            from cpuinfo import get_cpu_info

            return dict(get_cpu_info())
        except Exception:  # py-cpuinfo raises whatever its parsers raise
            return {}

    def processes(self) -> tuple[Process, ...] | None:
        before, passed = self._used_seconds, time.monotonic() - self._looked_seconds
        if before is not None:
            time.sleep(max(0.0, SHORTEST_LOOK_SECONDS - passed))
        try:
            numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        except OSError:
            return None
        if not numbers:  # no /proc is mounted
            return None
        passed = time.monotonic() - self._looked_seconds
        processes, used = [], {}
        for pid in numbers:
            status = _times_of(pid)
            if status is None or pid == os.getpid():
                continue
            name, seconds = status
            used[pid] = seconds
            share = None
            if before is not None:
                share = max(0.0, seconds - before.get(pid, seconds)) / passed
            processes.append(Process(pid=pid, name=name, cpu_share=share))
        self._used_seconds, self._looked_seconds = used, time.monotonic()
        return tuple(processes)

    def disk_bytes(self, path: str) -> tuple[int | None, int | None]:
        try:
            stats = os.statvfs(path)
        except OSError:
            return None, None
        return stats.f_frsize * stats.f_blocks, stats.f_frsize * stats.f_bavail

    def surroundings(self, launch: Around | None = None) -> Surroundings:
        return look_around(self._python, self.environment(), launch or Around())


def _what_is_left(child: subprocess.Popen[str]) -> tuple[str, str]:
    """The output of an ended child, empty if another process still holds its pipes."""
    try:
        return child.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:
        return "", ""


def _times_of(pid: int) -> tuple[str, float] | None:
    """Name and CPU seconds of a process (proc_pid_stat(5)). None if it is gone or a kernel thread.

    psutil takes ten times as long.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if len(fields) < 21 or fields[20] == b"0":  # no virtual memory: a kernel thread
        return None
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return name.decode(errors="replace"), seconds
