"""How one rank begins: a new process, or a fork of one that has imported the training stack."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from cputune.ranks.messages import RankCommand

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def _prepare(cpus: list[int] | None, parent: int) -> None:
    """What a rank does first: own session, end with its parent, bound to its CPUs."""
    os.setsid()
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if cpus is not None:
        os.sched_setaffinity(0, cpus)


def spawn(command: RankCommand, output: int) -> int:
    """Start a rank as a new process that writes to ``output``; its process id."""
    parent = os.getpid()
    child = subprocess.Popen(
        command["argv"],
        env=command["env"],
        cwd=command["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=lambda: _prepare(command["cpus"], parent),
    )
    child.returncode = 0  # reaped by us, not by subprocess
    return child.pid


def fork(command: RankCommand, output: int, forget: Callable[[], None]) -> int:
    """Start a rank as a fork of this process; its process id.

    ``forget`` lets go, in the rank, of what belongs to this process.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        forget()
        _be_rank(command, output, parent)
    return pid


def _be_rank(command: RankCommand, output: int, parent: int) -> None:
    """The life of a forked rank; never returns."""
    status = 70
    try:
        _prepare(command["cpus"], parent)
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.chdir(command["cwd"])
        for name in set(os.environ) - set(command["env"]):
            del os.environ[name]
        os.environ.update(command["env"])
        threads = command["env"].get("OMP_NUM_THREADS", "").split(",")[0]
        if threads.isdigit() and "torch" in sys.modules:
            # libgomp has read the variable when it was loaded, before it was set.
            sys.modules["torch"].set_num_threads(int(threads))
        from cputune.inside.run import run_script

        status = run_script(command["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
