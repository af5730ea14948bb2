"""End every process that carries a mark in its environment, wherever it has gone.

Launchers put their ranks into sessions of their own (Slurm, prted), where a signal to a
process group does not reach them; what a process was started with stays readable.

Run as a program, ``marked.py NAME VALUE DIRECTORY`` is the guard: it waits until its standard
input ends; then it ends the marked processes and removes the directory. So both are gone even
where whoever made them was killed. Standard library alone, and nothing of ours: it starts in
milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_SECONDS = 3.0


def end_marked(name: str, value: str) -> None:
    """End every process whose environment holds ``name=value``: TERM, then KILL."""
    mark = f"{name}={value}".encode()
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        while marked := _marked(mark):
            for pid in marked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def guard(name: str, value: str, directory: str) -> Iterator[None]:
    """A process that cleans up should this one die before the block is over."""
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, name, value, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        assert watcher.stdin is not None
        watcher.stdin.close()
        watcher.wait()


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            if mark in variables and not _is_zombie(entry):
                found.append(int(entry))
    return found


def _is_zombie(pid: str) -> bool:
    return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] == "Z"


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1], sys.argv[2])
    shutil.rmtree(sys.argv[3], ignore_errors=True)
