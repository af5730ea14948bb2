"""The machine that we run on."""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping

from cputune.host.base import Command, Completed, Distribution, Host
from cputune.host.children import end, in_session
from cputune.host.files import read_file


class LiveHost(Host):
    """The machine that we run on."""

    live = True

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
        # An environment that was not activated has its programs all the same.
        beside = os.path.join(sys.prefix, "bin")
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
                code = child.poll()  # it may be gone while what it started holds the pipes
                end(lambda: in_session(child.pid))
                out, err = _what_is_left(child)
            except BaseException:
                end(lambda: in_session(child.pid))
                raise
        return Completed(
            returncode=code, stdout=out, stderr=err, seconds=time.monotonic() - started
        )

    def distributions(self) -> tuple[Distribution, ...]:
        from cputune.host.metadata import read_distributions

        return read_distributions(sys.path, sys.prefix)

    def python_version(self) -> str | None:
        return ".".join(map(str, sys.version_info[:3]))

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        # The device is root's alone (cpuid(4)), and x86's.
        try:
            with open("/dev/cpu/0/cpuid", "rb", buffering=0) as device:
                answer = os.pread(device.fileno(), 16, leaf | subleaf << 32)
        except OSError:
            return None
        return struct.unpack("<4I", answer) if len(answer) == 16 else None

    def cpu_info(self) -> Mapping[str, object]:
        # It takes a second and starts a dozen children, hence only where nothing else is.
        try:
            from cpuinfo import get_cpu_info

            told = get_cpu_info()
        except Exception:  # it raises what its parsers of foreign output raise
            return {}
        return told if isinstance(told, dict) else {}

    def disk_bytes(self, path: str) -> int | None:
        try:
            stats = os.statvfs(path)
        except OSError:
            return None
        return stats.f_frsize * stats.f_blocks

    def resource_limit(self, name: str) -> int | None:
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        return None if soft == resource.RLIM_INFINITY else soft


def _what_is_left(child: subprocess.Popen[str]) -> tuple[str, str]:
    """What an ended child has written; nothing where a process that left its group holds on."""
    try:
        return child.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:
        return "", ""
