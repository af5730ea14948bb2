"""The machine that cputune runs on."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping

from cputune.host.base import Command, Completed, Host, Package, Process
from cputune.host.children import end, in_session
from cputune.host.files import read_file
from cputune.host.interpreter import other_interpreter, training_interpreter
from cputune.host.surroundings import Around, Surroundings, look_around

SHORTEST_LOOK_SECONDS = 0.1
"""The kernel counts the CPU time of processes in hundredths of a second."""


class LiveHost(Host):
    """The machine that we run on, with this Python or another by its path.

    Raises UsageError where the other is no Python.
    """

    live = True

    def __init__(self, python: str | None = None) -> None:
        self._python = training_interpreter() if python is None else other_interpreter(python)
        self._is_other = self._python.executable != sys.executable
        self.executable = self._python.executable
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
        return dict(os.environ)

    def affinity(self) -> tuple[int, ...] | None:
        if hasattr(os, "sched_getaffinity"):
            return tuple(sorted(os.sched_getaffinity(0)))
        return None

    def which(self, program: str) -> str | None:
        # An environment that was not activated has its programs all the same; one that is
        # examined from outside is taken as activated.
        beside = os.path.join(self._python.prefix, "bin")
        places = (beside, None) if self._is_other else (None, beside)
        return next(filter(None, (shutil.which(program, path=place) for place in places)), None)

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
                code = child.poll()  # the child may be gone while its own children hold the pipes
                end(lambda: in_session(child.pid))
                out, err = _what_is_left(child)
            except BaseException:
                end(lambda: in_session(child.pid))
                raise
        from cputune.text.log import log  # imported here: logging takes a while

        seconds = time.monotonic() - started
        log.getChild("host").debug("asked %s: %s after %.3g s", command.argv, code, seconds)
        return Completed(returncode=code, stdout=out, stderr=err, seconds=seconds)

    def distributions(self) -> tuple[Package, ...]:
        from cputune.host.metadata import read_distributions

        return read_distributions(self._python.paths, self._python.prefix)

    def python_version(self) -> str | None:
        return self._python.version

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        # The device is root's alone (cpuid(4)), and x86's.
        try:
            with open("/dev/cpu/0/cpuid", "rb", buffering=0) as device:
                answer = os.pread(device.fileno(), 16, leaf | subleaf << 32)
        except OSError:
            return None
        return struct.unpack("<4I", answer) if len(answer) == 16 else None

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
        found, used = [], {}
        for pid in numbers:
            status = _times_of(pid)
            if status is None or pid == os.getpid():
                continue
            name, seconds = status
            used[pid] = seconds
            then = None if before is None else before.get(pid, seconds)
            share = None if then is None else max(0.0, seconds - then) / passed
            found.append(Process(pid=pid, name=name, cpu_share=share))
        self._used_seconds, self._looked_seconds = used, time.monotonic()
        return tuple(found)

    def disk_bytes(self, path: str) -> tuple[int | None, int | None]:
        try:
            stats = os.statvfs(path)
        except OSError:
            return None, None
        return stats.f_frsize * stats.f_blocks, stats.f_frsize * stats.f_bavail

    def surroundings(self, launch: Around | None = None) -> Surroundings:
        return look_around(self._python, self.environment(), launch or Around())


def _what_is_left(child: subprocess.Popen[str]) -> tuple[str, str]:
    """What an ended child has written; empty while another process still holds its pipes."""
    try:
        return child.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:
        return "", ""


def _times_of(pid: int) -> tuple[str, float] | None:
    """Name and CPU seconds of a process (proc_pid_stat(5)); None: it is gone, or the kernel's.

    psutil tells the same, and takes ten times as long for it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if len(fields) < 21 or fields[20] == b"0":  # it has no memory
        return None
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return name.decode(errors="replace"), seconds
