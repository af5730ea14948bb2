"""Our end of a keeper (``cputune.ranks.keeper_main``): a process of its own, in its own session."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cputune.inside import root_directory
from cputune.ranks.listen import Post
from cputune.steps import Crashed, TimedOut

HARMLESS_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that know what a fork is: jemalloc stops and restarts its own around it."""

READY_SECONDS = 600.0
"""A cold import of torch and transformers from a network disk takes minutes."""

GONE_SECONDS = 30.0


class Keeper:
    """One keeper process; ``fork`` is whether its ranks can be forks of it."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str], work: Path) -> None:
        self._post: Post | None = None
        self.modules = tuple(modules)
        self.fork = False
        self.unsafe_threads: tuple[str, ...] = ()
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.log = work / f"keeper-{ours.fileno()}-{time.monotonic_ns()}.log"
        with theirs, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    bootstrap("cputune.ranks.keeper_main", "main()"),
                    str(theirs.fileno()),
                    str(work),
                    *modules,
                ],
                env={**environment, "OPENBLAS_NUM_THREADS": "1"} if modules else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def join(self, post: Post) -> None:
        """Wait until it is ready. Raises Crashed where the training stack cannot be loaded."""
        self._post = post
        post.add(self.socket, self)
        event = self._await("ready", READY_SECONDS)
        threads = [name for name in event["threads"][1:] if name not in HARMLESS_THREADS]
        self.unsafe_threads = tuple(threads)
        self.fork = bool(self.modules) and not threads

    def start(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Start the ranks of one plan."""
        self._send({"start": list(ranks)})

    def end(self, grace_seconds: float) -> dict[str, str]:
        """End all ranks and everything they started, and wait until they are gone.

        Returns the tail of what each rank wrote, by its number.
        """
        try:
            self._send({"end": grace_seconds})
            tails: dict[str, str] = self._await("gone", GONE_SECONDS)["tails"]
        except (OSError, Crashed, TimedOut):
            self.kill()
            return {}
        return tails

    @property
    def pid(self) -> int:
        """Its process; the ranks are below it."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can start another plan."""
        return self._process.poll() is None

    def kill(self) -> None:
        """The last resort: its ranks end with it (PR_SET_PDEATHSIG)."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Say goodbye; it ends whatever still runs."""
        if self._post is not None:
            self._post.remove(self.socket)
        with contextlib.suppress(OSError):
            self._send({"bye": True})
        self.socket.close()
        try:
            self._process.wait(timeout=10)
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

    def _send(self, message: Mapping[str, Any]) -> None:
        self.socket.setblocking(True)
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        finally:
            self.socket.setblocking(False)

    def _await(self, name: str, seconds: float) -> dict[str, Any]:
        assert self._post is not None
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for source, event in self._post.wait(left):
                if source is not self:
                    continue
                if event is None:
                    raise Crashed(
                        "the process that starts the ranks died", details=self.said() or None
                    )
                if event["event"] == name:
                    return event
        raise TimedOut(f"the process that starts the ranks was not {name} in {seconds:.0f} s")


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
