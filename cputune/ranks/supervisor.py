"""Our end of a supervisor (``cputune.ranks.supervisor_main``), a process in its own session."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from cputune.host.children import below, end, tell
from cputune.inside import root_directory
from cputune.log import log
from cputune.ranks.messages import Gone, RankCommand, Ready, Request
from cputune.steps import BEFORE_ITS_FIRST_STEP, Crashed, TimedOut, TimeUp

if TYPE_CHECKING:
    import psutil

    from cputune.ranks.listen import Post
    from cputune.ranks.work_folder import WorkFolder

HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that know what a fork is: jemalloc stops and restarts its own around it."""

READY_SECONDS = 600.0
"""A cold import of torch and transformers from a network disk takes minutes."""

LOOKS = 5
"""So often is looked for processes that were started while others were being stopped."""

GONE_SECONDS = 30.0
GOODBYE_SECONDS = 10.0


class Supervisor:
    """One supervisor process; ``fork`` is whether its ranks can be forks of it."""

    def __init__(
        self, environment: Mapping[str, str], modules: Sequence[str], work: WorkFolder
    ) -> None:
        self._post: Post | None = None
        self.modules = tuple(modules)
        self.fork = False
        self.unsafe_threads: tuple[str, ...] = ()
        self._stopped: set[psutil.Process] = set()
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.log = work.path / f"supervisor-{ours.fileno()}-{time.monotonic_ns()}.log"
        with theirs, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    bootstrap("cputune.ranks.supervisor_main", "main()"),
                    str(theirs.fileno()),
                    json.dumps([str(folder) for folder in work.doomed]),
                    *modules,
                ],
                env={**environment, "OPENBLAS_NUM_THREADS": "1"} if modules else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def join(self, post: Post, most_seconds: float = math.inf) -> None:
        """Wait until it is ready.

        Raises Crashed where the training stack cannot be loaded, TimeUp after ``most_seconds``.
        """
        self._post = post
        post.add(self.socket, self)
        try:
            ready = cast(Ready, self._await("ready", min(READY_SECONDS, most_seconds)))
        except TimedOut:
            if most_seconds < READY_SECONDS:
                during = f"while importing {names_of(self.modules)}"
                raise TimeUp(during if self.modules else BEFORE_ITS_FIRST_STEP) from None
            raise
        self.unsafe_threads = tuple(set(ready["threads"]) - HARMLESS_THREADS)
        self.fork = bool(self.modules) and not self.unsafe_threads

    def start(
        self, commands: Sequence[RankCommand], *, mark: tuple[str, str] | None = None
    ) -> None:
        """Start the ranks of one plan, or the launchers that start them (see ``Start``)."""
        log.getChild("ranks").debug("%d processes start below %d", len(commands), self.pid)
        self._send({"do": "start", "commands": list(commands), "mark": mark})

    def end(self, grace_seconds: float) -> dict[str, str]:
        """End all ranks and everything they started, and wait until they are gone.

        Returns the tail of what each rank wrote, by its number.
        """
        self.continue_ranks()
        try:
            self._send({"do": "end", "grace_seconds": grace_seconds})
            return cast(Gone, self._await("gone", GONE_SECONDS + 2 * grace_seconds))["tails"]
        except (OSError, Crashed, TimedOut):
            self.kill()
            return {}

    def stop_ranks(self) -> None:
        """Stop all that it has started (SIGSTOP): the ranks with every thread, their workers.

        Nothing stays behind stopped, however this ends. ``end`` and ``close`` continue them
        first; where this process is killed, the supervisor kills what is below it, and
        SIGKILL needs nobody to be awake; where the supervisor is killed, so are the ranks
        (PR_SET_PDEATHSIG), and ``died`` and ``kill`` end what those have started.
        """
        for _ in range(LOOKS):
            running = [process for process in below(self.pid) if process not in self._stopped]
            if not running:
                return
            self._stopped.update(running)
            tell(running, signal.SIGSTOP)

    def continue_ranks(self) -> None:
        """Let what was stopped run again."""
        tell(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    @property
    def pid(self) -> int:
        """Its process; the ranks are below it."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        return self._process.poll() is None

    def kill(self) -> None:
        """The last resort, where it does not answer: end it, and what is below it."""
        ranks = below(self.pid)
        self._process.kill()
        self._process.wait()
        end(lambda: [rank for rank in ranks if rank.is_running()], grace_seconds=0)
        self._kill_stopped()

    def close(self) -> None:
        """Say goodbye; it ends whatever still runs."""
        if self._post is not None:
            self._post.remove(self.socket)
        with contextlib.suppress(OSError):
            self._send({"do": "goodbye"})
        self.socket.close()
        self.continue_ranks()
        try:
            self._process.wait(timeout=GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        with contextlib.suppress(OSError):
            self.log.unlink()

    def said(self) -> str:
        """The tail of what it wrote to its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 4096))
            return file.read().decode(errors="replace")
        return ""

    def died(self) -> Crashed:
        """The error to raise where its line has been closed; nothing stays stopped."""
        self._kill_stopped()
        return Crashed("the process that starts the ranks died", details=self.said() or None)

    def _kill_stopped(self) -> None:
        tell(self._stopped, signal.SIGKILL)
        self._stopped.clear()

    def _send(self, request: Request) -> None:
        self.socket.setblocking(True)
        try:
            self.socket.sendall(json.dumps(request).encode() + b"\n")
        finally:
            self.socket.setblocking(False)

    def _await(self, event: str, seconds: float) -> object:
        assert self._post is not None
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for source, message in self._post.wait(left):
                if source is not self:
                    continue
                if message is None:
                    raise self.died()
                if message["event"] == event:
                    return message
        raise TimedOut(f"the process that starts the ranks was not {event} in {seconds:.0f} s")


def names_of(modules: Sequence[str]) -> str:
    """The packages of these modules, each once."""
    return ", ".join(dict.fromkeys(m.split(".")[0] for m in modules))


def bootstrap(module: str, call: str) -> str:
    """Python code for ``python -c`` that finds this very copy of cputune, and last of all.

    ``-m`` would put the working directory first on the path, where a file of the user's
    may have the name of a module of the standard library.
    """
    root = str(root_directory())
    return (
        "import sys; sys.path[:] = [p for p in sys.path if p]; "
        f"{root!r} in sys.path or sys.path.append({root!r}); "
        f"from {module} import *; {call}"
    )
