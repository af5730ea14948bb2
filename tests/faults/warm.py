"""Starts ``cputune`` as a fork of this process, which has imported what it needs already.

A thousand cold starts would spend an hour importing optuna. A fork is as real a process;
what happens during imports is tried with cold starts.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

MODULES = ("cputune.cli.tune", "cputune.probing", "cputune.tuner.study", "cputune.ranks.runner")


def warm_up() -> None:
    """Import it; without the threads of numpy, a fork is as right as a new process."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in MODULES:
        import_module(name)
    import optuna.storages  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401


class Forked:
    """What of ``subprocess.Popen`` is used here, for a fork that is ``cputune WORDS``."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: int,
        err: int,
        limit: Callable[[], None] | None,
    ) -> None:
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_cputune(words, cwd, env, out, err, limit)

    def poll(self) -> int | None:
        """How it ended, as ``Popen.returncode``; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("cputune", timeout or 0.0)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has been waited for."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _be_cputune(
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    out: int,
    err: int,
    limit: Callable[[], None] | None,
) -> None:
    """The life of the fork; never returns."""
    status = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["cputune", *words]
        if limit is not None:
            limit()
        status = _main()
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def _main() -> int:
    from cputune.start import main

    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        return end.code if isinstance(end.code, int) else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        return 1
    return 0
