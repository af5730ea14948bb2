"""The processes that the far side starts: run to their end, or held with a channel, and ended.

The agent is a child subreaper (prctl(2)): whatever its children start stays below it, and is
found there. Nobody's exit is waited for; they are reaped when the kernel says so.

This file is sent to other hosts (see ``cputune.nodes.agent``): Python 3.7, the standard
library, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_OUTPUT_BYTES = 4 << 20
"""Of what a child wrote that is run to its end, on each of its two streams."""

LOOKS = 5
"""So often is looked for processes that were started while others were being told."""

ALL_GONE_SECONDS = 20.0
"""A process that the kernel holds (a disk that does not answer) outlives SIGKILL so long."""


class Run:
    """A child that is run to its end, whose output is the answer to a question."""

    def __init__(self, answer: Callable[[Any], None], out: Any, err: Any, seconds: float) -> None:
        self.answer, self.out, self.err = answer, out, err
        self.started = time.monotonic()
        self.until = self.started + seconds
        self.late = False


class Children:
    """All that was started here. ``say`` sends a message to who asked for it."""

    def __init__(self, say: Callable[[dict[str, Any]], None], folder: str) -> None:
        self._say, self._folder = say, folder
        self._living: dict[int, Any] = {}
        self._runs: dict[int, Run] = {}
        self._libc = ctypes.CDLL(None)
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self, ask: dict[str, Any], answer: Callable[[Any], None]) -> None:
        """Start a child; ``answer`` is called with how it ended. Raises OSError."""
        out, err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed at its end
        child = self._start(ask, stdout=out, stderr=err)
        seconds = ask.get("timeout")
        self._runs[child.pid] = Run(answer, out, err, 1e9 if seconds is None else seconds)

    def spawn(self, ask: dict[str, Any], channel: int | None) -> dict[str, Any]:
        """Start a child that stays; its end is told as ``exit``. Raises OSError.

        What it writes goes to the file ``log`` of the folder. ``channel`` is a descriptor that it
        gets: its number stands in the place of the word ``{channel}``.
        """
        path = os.path.join(self._folder, ask["log"])
        words = [str(channel) if word == "{channel}" else word for word in ask["argv"]]
        passed = () if channel is None else (channel,)
        with open(path, "ab") as log:
            child = self._start({**ask, "argv": words}, stdout=log, stderr=log, pass_fds=passed)
        return {"pid": child.pid, "log": path}

    def look(self) -> None:
        """Reap what has ended, and end what has run for too long."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self._living.pop(pid, None)
            if child is not None:  # else an orphan that was left to us
                # As os.waitstatus_to_exitcode, which is of 3.9.
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                child.returncode = code
                self._ended(pid, code)
        for pid, run in self._runs.items():
            if time.monotonic() > run.until and not run.late:
                run.late = True
                self.kill(pid)

    def next_look_seconds(self) -> float:
        """How long nothing has to be looked at, if no child ends."""
        until = [run.until for run in self._runs.values() if not run.late]
        return max(0.0, min(until) - time.monotonic()) if until else 1e9

    def tell(self, pid: int, number: int, itself: bool) -> None:
        """Send a signal to all that is below a process, and to it if so wished.

        To stop or to end them is told again to those that were started meanwhile.
        """
        told: set[int] = set()
        for _ in range(LOOKS):
            those = set(below(pid)) | ({pid} if itself else set())
            if not those - told:
                return
            for one in those - told:
                send(one, number)
            told |= those

    def kill(self, pid: int) -> None:
        """End a process and all that is below it, at once; first stopped, they start no others."""
        self.tell(pid, signal.SIGSTOP, True)
        self.tell(pid, signal.SIGKILL, True)

    def end_all(self, grace_seconds: float) -> None:
        """End everything that was ever started here; what ends by itself has a moment for it."""
        until = time.monotonic() + grace_seconds
        while self._left() and time.monotonic() < until:
            time.sleep(0.02)
        until = time.monotonic() + ALL_GONE_SECONDS
        while self._left() and time.monotonic() < until:
            for pid in below(os.getpid()):
                send(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _left(self) -> bool:
        self.look()
        return bool(below(os.getpid()))

    def _start(self, ask: dict[str, Any], **streams: Any) -> Any:
        def end_with_us() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        libc = self._libc
        child = subprocess.Popen(
            ask["argv"],
            env=ask.get("env"),
            cwd=ask.get("cwd"),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_us,
            **streams,
        )
        self._living[child.pid] = child
        return child

    def _ended(self, pid: int, code: int) -> None:
        run = self._runs.pop(pid, None)
        if run is None:
            self._say({"exit": pid, "status": code})
            return
        texts = []
        for stream in (run.out, run.err):
            stream.seek(0)
            texts.append(stream.read(MOST_OUTPUT_BYTES).decode("utf-8", "replace"))
            stream.close()
        run.answer([None if run.late else code, *texts, time.monotonic() - run.started])


def below(root: int) -> list[int]:
    """The processes that one has started, and that those have started; those that live."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        if fields[0] not in (b"Z", b"X"):
            parents.setdefault(int(fields[1]), []).append(int(name))
    found, new = [], [root]
    while new:
        new = [pid for parent in new for pid in parents.get(parent, [])]
        found += new
    return found


def send(pid: int, number: int) -> None:
    """A signal; a process that is gone, or not ours, does not get it."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def cpu_seconds(root: int) -> float:
    """CPU time of all living processes below one."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in below(root):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        total += (int(fields[11]) + int(fields[12])) / tick
    return total
