"""Locks between processes: one for each study, one for the machine while it is measured.

The kernel frees them when their owner ends, however it ends; so none can be stale, and a
lock file that a killed owner has left, or one from before a reboot, is only a file. Made by hand:
a lock of filelock does not say who holds it, and is no socket that other users can wait for.
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
from cputune.host.files import FOR_NOW

MEASURING = "\0cputune.measuring"
"""The socket of whoever measures: a name in the abstract namespace (unix(7)), which is no
file that somebody could plant, and the same for every user of the machine. A container with
a network of its own has a namespace of its own."""

OTHERS_SECONDS = 600.0
"""How long to wait for other users at most: any of them could hold that socket for ever."""

_AGAIN_SECONDS = 0.25
"""Between two tries."""


@contextlib.contextmanager
def study_lock(study: Path) -> Iterator[None]:
    """Hold ``STUDY.lock``, which names its owner. Raises CannotError where another holds it."""
    path = Path(os.path.realpath(study) + ".lock")
    found = _locked(path)
    if isinstance(found, str):
        raise CannotError(
            f"the study {study} is in use by {found}",
            hint="wait until that has ended, or give another file with --study",
        )
    FOR_NOW.add(path)
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        with contextlib.suppress(OSError):  # a full disk: it is locked all the same
            os.ftruncate(found, 0)
            os.write(found, json.dumps(owner).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(found)
        FOR_NOW.discard(path)


def _locked(path: Path) -> int | str:
    """The descriptor of a file that is now locked, or who holds it. Raises CannotError."""
    import fcntl  # Windows has none

    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)  # the owner has just removed the lock file
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            return owner
        except OSError as error:
            raise CannotError(
                f"cannot lock {path}: {error.strerror}",
                hint="--study FILE keeps the study elsewhere",
            ) from error


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

    Other users are not waited for longer than OTHERS_SECONDS: nobody can keep this
    machine from everybody. ``on_wait`` is told in words for whom, once for each owner. Raises
    CannotError where another process of the user still measures ``until`` then, by
    ``time.monotonic()``.
    """
    if sys.platform != "linux":
        yield
        return
    warned, others_until = None, time.monotonic() + OTHERS_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
        while not _is_bound(ours):
            owner, same_user = _owner_of_the_machine()
            if owner is not None and owner != warned and on_wait is not None:
                on_wait(owner)
            warned, now = owner or warned, time.monotonic()
            up = until is not None and now >= until
            if same_user and up:
                raise CannotError(
                    f"the time limit was reached while {warned} measured here",
                    hint="give it more time, or --share-machine where the CPUs are apart",
                )
            if not same_user and (up or now >= others_until):
                break
            time.sleep(_AGAIN_SECONDS)
        yield


def _is_bound(holder: socket.socket) -> bool:
    """Bind the socket that stands for measuring; whether it is ours now."""
    try:
        holder.bind(MEASURING)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    holder.listen(128)
    return True


def _owner_of_the_machine() -> tuple[str | None, bool]:
    """Who measures, in words, and whether it is of our user.

    Nobody where it does not listen yet or any more, or refuses us.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(_AGAIN_SECONDS)
        try:
            visitor.connect(MEASURING)
            return _peer(visitor)
        except OSError:
            return None, False


def _peer(visitor: socket.socket) -> tuple[str, bool]:
    """The process at the other end as the kernel names it, and whether it is of our user.

    That of another container has no number.
    """
    import pwd  # Windows has none

    size = struct.calcsize("3i")
    raw = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", raw)
    name = user
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(user).pw_name
    return f"process {pid or 'in another container'} of {name}", user == os.getuid()
