"""Ends processes: those that were started, and those that they started in turn."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from cputune.host.files import remove_for_now

if TYPE_CHECKING:
    import psutil

    Find = Callable[[], Sequence[psutil.Process]]

GRACE_SECONDS = 2.0
"""Between SIGINT, SIGTERM and SIGKILL."""

LOOK_SECONDS = 0.02
KILL_SECONDS = 20.0
"""A process that the kernel holds (a disk that does not answer) outlives SIGKILL so long."""


def end(
    find: Find,
    *,
    grace_seconds: float = GRACE_SECONDS,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """End all that ``find`` finds, and look again until it finds nothing.

    SIGINT and SIGTERM leave ``grace_seconds`` each to end in order; with 0 there is only
    SIGKILL. ``pause`` waits the given seconds between two looks.
    """
    steps = [(signal.SIGINT, grace_seconds), (signal.SIGTERM, grace_seconds)]
    for number, seconds in [*(steps if grace_seconds > 0 else ()), (signal.SIGKILL, KILL_SECONDS)]:
        until = time.monotonic() + seconds
        signalled: set[psutil.Process] = set()
        while alive := find():
            tell([process for process in alive if process not in signalled], number)
            signalled.update(alive)
            if time.monotonic() >= until:
                break
            pause(LOOK_SECONDS)
        else:
            return


ALONE_SECONDS = 6.0
"""How long children may take to end by themselves, those held on other hosts included."""


def leave(code: int) -> NoReturn:
    """End this process at once, after all that it has started has ended and removed its files.

    Its descriptors are closed first, as the kernel would do. The processes that start ranks then
    end them (``cputune.ranks.supervisor_main``). What is left after ALONE_SECONDS is killed.
    """
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        until = time.monotonic() + ALONE_SECONDS
        with contextlib.suppress(ChildProcessError):  # no such descriptor
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(LOOK_SECONDS)
        end(lambda: below(os.getpid()), grace_seconds=0)
        remove_for_now()
    finally:
        os._exit(code)


def below(root: int) -> list[psutil.Process]:
    """Every living process that ``root`` has started, and that those have started."""
    import psutil

    try:
        return _living(psutil.Process(root).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def in_session(leader: int) -> list[psutil.Process]:
    """Every living process of a session, even where its leader has ended."""
    import psutil

    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader:
                found.append(psutil.Process(pid))
    return _living(found)


def marked(name: str, value: str) -> list[psutil.Process]:
    """Every other living process that was started with ``name=value`` in its environment.

    Some launchers start ranks that are not their descendants: slurmd those of ``sbatch``.
    """
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process)
    return _living(found)


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    import psutil

    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(process)
    return found


def tell(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to each process, except those that are gone or belong to another user."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(number)
