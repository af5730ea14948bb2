"""Locks between processes: one for each study, one for the machine while it is measured.

The kernel frees both when their owner ends, however it ends; so none can be stale, and a
lock file that a killed owner has left, or one from before a reboot, is only a file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cputune.errors import CannotError

MEASURING = "\0cputune.measuring"
"""The socket of whoever measures: a name in the abstract namespace (unix(7)), which is no
file that somebody could plant, and the same for every user of the machine. A container with
a network of its own has a namespace of its own."""

_AGAIN_SECONDS = 0.1


@contextlib.contextmanager
def study_lock(study: Path) -> Iterator[None]:
    """Hold ``STUDY.lock``, which names its owner. Raises CannotError where another holds it."""
    path = Path(os.path.realpath(study) + ".lock")
    descriptor = _locked(path, study)
    try:
        os.ftruncate(descriptor, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, study: Path) -> int:
    import fcntl  # Windows has none

    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _no_lock(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass  # its owner has just removed it
        except BlockingIOError as error:
            raise CannotError(
                f"the study {study} is in use by {_owner(descriptor)}",
                hint="wait until that has ended, or give another file with --study",
            ) from error
        except OSError as error:
            raise _no_lock(path, error) from error
        os.close(descriptor)


def _no_lock(path: Path, error: OSError) -> CannotError:
    return CannotError(
        f"cannot lock {path}: {error.strerror}", hint="--study FILE keeps the study elsewhere"
    )


def _owner(descriptor: int) -> str:
    """The owner of a lock file in words; it may be about to write its name."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(owner['pid'])} on {str(owner['host'])[:100]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextlib.contextmanager
def measuring_lock(
    on_wait: Callable[[str], None] | None = None, *, until: float | None = None
) -> Iterator[None]:
    """Be the only one that measures on this machine; whoever comes later waits.

    ``on_wait`` is told in words for whom, once for each owner. Raises CannotError where it is
    not free ``until`` then, by ``time.monotonic()``.
    """
    holder = _hold(on_wait, until) if sys.platform == "linux" else None
    try:
        yield
    finally:
        if holder is not None:
            holder.close()


def _hold(on_wait: Callable[[str], None] | None, until: float | None) -> socket.socket:
    told = None
    while True:
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(MEASURING)
            holder.listen(128)
            return holder
        except OSError as error:
            holder.close()
            if error.errno != errno.EADDRINUSE:
                raise
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise CannotError(
                f"the time given was up while {told or 'another process'} measured here",
                hint="give it more time, or --share-machine where the CPUs are apart",
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
            try:
                visitor.connect(MEASURING)
                owner = _peer(visitor)
                if owner != told and on_wait is not None:
                    on_wait(owner)
                    told = owner
                visitor.settimeout(left)
                visitor.recv(1)  # until the owner has closed, or died
            except OSError:
                time.sleep(_AGAIN_SECONDS)  # it listens not yet, or no more


def _peer(visitor: socket.socket) -> str:
    """The process at the other end, as the kernel names it; another container's has no number."""
    size = struct.calcsize("3i")
    raw = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", raw)
    with contextlib.suppress(KeyError):
        import pwd  # Windows has none

        user = pwd.getpwuid(user).pw_name
    return f"process {pid or 'in another container'} of {user}"
