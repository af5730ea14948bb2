"""Ends processes, and the processes that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from cputune.host.files import remove_temporary_files

if TYPE_CHECKING:
    import psutil

    Find = Callable[[], Sequence[psutil.Process]]

GRACE_SECONDS = 2.0  # between SIGINT, SIGTERM and SIGKILL

LOOK_SECONDS = 0.02  # between two looks at what has ended
# A process may outlive SIGKILL while the kernel holds it (a disk that does not answer).
KILL_SECONDS = 20.0


def end(
    find: Find,
    *,
    grace_seconds: float = GRACE_SECONDS,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """End all processes that ``find`` returns, until it returns none.

    SIGINT and SIGTERM each leave them ``grace_seconds``; with 0 only SIGKILL is sent. ``pause``
    waits between two calls of ``find``.
    """
    steps = [(signal.SIGKILL, KILL_SECONDS)]
    if grace_seconds > 0:
        steps = [(signal.SIGINT, grace_seconds), (signal.SIGTERM, grace_seconds)] + steps
    for number, seconds in steps:
        until = time.monotonic() + seconds
        signalled: set[psutil.Process] = set()
        while alive := find():
            send_signal([process for process in alive if process not in signalled], number)
            signalled.update(alive)
            if time.monotonic() >= until:
                break
            pause(LOOK_SECONDS)
        else:
            return


ALONE_SECONDS = 6.0  # for children to end by themselves, also on other hosts


def leave(code: int) -> NoReturn:
    """End this process at once, but after its children have ended and removed their files.

    It closes its descriptors first; then the processes that start ranks end them
    (``cputune.ranks.supervisor_main``). What is left after ALONE_SECONDS is killed.
    """
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        until = time.monotonic() + ALONE_SECONDS
        with contextlib.suppress(ChildProcessError):  # no such descriptor
            while time.monotonic() < until:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(LOOK_SECONDS)
        end(lambda: below(os.getpid()), grace_seconds=0)
        remove_temporary_files()
    finally:
        os._exit(code)


def below(root: int) -> list[psutil.Process]:
    """Living descendants of ``root``."""
    import psutil

    try:
        return _living(psutil.Process(root).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def in_session(leader: int) -> list[psutil.Process]:
    """Living processes of a session, even if its leader has ended."""
    import psutil

    members = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader:
                members.append(psutil.Process(pid))
    return _living(members)


def marked(name: str, value: str) -> list[psutil.Process]:
    """Other living processes with ``name=value`` in their environment: slurmd, not ``sbatch``,
    is the parent of ranks.
    """
    import psutil

    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                processes.append(process)
    return _living(processes)


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    import psutil

    living = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                living.append(process)
    return living


def send_signal(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to processes, ignoring those that are gone or belong to another user."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(number)
