"""The process of a supervisor on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cputune.host.children import below, end, tell
from cputune.inside import root_directory
from cputune.ranks.idle import cpu_seconds
from cputune.steps import Crashed, TrialError

if TYPE_CHECKING:
    import psutil

    from cputune.ranks.work_folder import WorkFolder

LOOKS = 5
"""So often is looked for processes that were started while others were being stopped."""


class SupervisorProcess(Protocol):
    """A process that starts ranks, wherever it runs; ``socket`` is our end of the line to it."""

    socket: socket.socket

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        ...

    def stop_below(self) -> None:
        """Stop all that it has started (SIGSTOP): the ranks with every thread, their workers."""
        ...

    def continue_below(self) -> None:
        """Let what was stopped run again."""
        ...

    def kill(self) -> None:
        """The last resort, where it does not answer: end it, and what is below it."""
        ...

    def kill_stopped(self) -> None:
        """Nothing that it has started may stay stopped, now that it has died."""
        ...

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so many seconds at most; its files are gone then."""
        ...

    def said(self) -> str:
        """The tail of what it wrote to its log."""
        ...

    def died(self) -> TrialError:
        """The error to raise where its line has been closed."""
        ...

    def cpu_seconds(self) -> float | None:
        """CPU time of all living processes below it; None where that is not known."""
        ...

    def memory_kills(self) -> int | None:
        """How often the kernel there has killed for memory since it booted, if it says so."""
        ...


class ProcessHere:
    """A supervisor's process on this machine, in a session of its own."""

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str], work: WorkFolder
    ) -> None:
        self._stopped: set[psutil.Process] = set()
        ours, theirs = socket.socketpair()
        self.socket = ours
        self._log = work.path / f"supervisor-{ours.fileno()}-{time.monotonic_ns()}.log"
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                supervisor_command(
                    str(theirs.fileno()), [str(folder) for folder in work.doomed], modules
                ),
                env=supervisor_environment(environment, modules),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        return self._process.poll() is None

    def stop_below(self) -> None:
        """Stop all that it has started.

        Nothing stays behind stopped, however this ends. It is continued before it is ended;
        where this process is killed, the supervisor kills what is below it, and
        SIGKILL needs nobody to be awake; where the supervisor is killed, so are the ranks
        (PR_SET_PDEATHSIG), and ``kill`` ends what those have started.
        """
        for _ in range(LOOKS):
            running = [one for one in below(self._process.pid) if one not in self._stopped]
            if not running:
                return
            self._stopped.update(running)
            tell(running, signal.SIGSTOP)

    def continue_below(self) -> None:
        """Let what was stopped run again."""
        tell(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    def kill(self) -> None:
        """End it, and what is below it."""
        ranks = below(self._process.pid)
        self._process.kill()
        self._process.wait()
        end(lambda: [rank for rank in ranks if rank.is_running()], grace_seconds=0)
        self.kill_stopped()

    def kill_stopped(self) -> None:
        """End what it has left stopped."""
        tell(self._stopped, signal.SIGKILL)
        self._stopped.clear()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so many seconds at most; its log is gone then."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        with contextlib.suppress(OSError):
            self._log.unlink()
        return True

    def said(self) -> str:
        """The tail of what it wrote to its log."""
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4096))
            return file.read().decode(errors="replace")
        return ""

    def died(self) -> TrialError:
        """The error to raise where its line has been closed."""
        return Crashed("the process that starts the ranks died", details=self.said() or None)

    def cpu_seconds(self) -> float | None:
        """CPU time of all living processes below it."""
        return cpu_seconds(self._process.pid)

    def memory_kills(self) -> int | None:
        """How often the kernel has killed for memory since it booted; control groups included."""
        with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
            return kills_in(file.read())
        return None


def supervisor_command(
    channel: str, doomed: Sequence[str], modules: Sequence[str], root: str | None = None
) -> list[str]:
    """What starts a supervisor that speaks on the descriptor ``channel``.

    ``doomed`` are folders that it removes where the tuner is killed, ``root`` is where this copy
    of cputune lies on its machine.
    """
    code = bootstrap("cputune.ranks.supervisor_main", "main()", root)
    return [sys.executable, "-c", code, channel, json.dumps(list(doomed)), *modules]


def supervisor_environment(
    environment: Mapping[str, str], modules: Sequence[str]
) -> dict[str, str]:
    """Its variables: what loads OpenBLAS before it forks must not start threads."""
    return {**environment, "OPENBLAS_NUM_THREADS": "1"} if modules else dict(environment)


def bootstrap(module: str, call: str, root: str | None = None) -> str:
    """Python code for ``python -c`` that finds this very copy of cputune, and last of all.

    ``-m`` would put the working directory first on the path, where a file of the user's
    may have the name of a module of the standard library. On another machine the folder ``root``
    holds the copy and nothing else, so it comes first: another version may be installed there.
    """
    here = str(root_directory())
    found = f"{here!r} in sys.path or sys.path.append({here!r})"
    if root is not None:
        found = f"sys.path.insert(0, {root!r})"
    return (
        "import sys; sys.path[:] = [p for p in sys.path if p]; "
        f"{found}; from {module} import *; {call}"
    )


def kills_in(vmstat: str) -> int | None:
    """How often the kernel has killed for memory, from its ``/proc/vmstat``."""
    for line in vmstat.splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdigit():
            return int(count)
    return None
