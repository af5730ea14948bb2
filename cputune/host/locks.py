"""Locks between processes: one for each study, one for the machine during measurements.

The kernel releases them when their owner ends in any way. filelock cannot be used: its locks do not
name their owner, and other users cannot wait for them.
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
from cputune.host.files import TEMPORARY_FILES

# The socket of the measuring process, a name in the abstract namespace (unix(7)), which no user
# can plant as a file and all users share. A container with its own network has its own namespace.
MEASURING = "\0cputune.measuring"

# Longest wait for other users, because any of them could hold that socket forever.
OTHERS_SECONDS = 600.0

_AGAIN_SECONDS = 0.25  # between two attempts


@contextlib.contextmanager
def study_lock(study: Path) -> Iterator[None]:
    """Hold ``STUDY.lock``, which names its owner. Raises CannotError if another process holds
    it.
    """
    path = Path(os.path.realpath(study) + ".lock")
    locked = _locked(path)
    if isinstance(locked, str):
        raise CannotError(
            f"the study {study} is in use by {locked}",
            hint="wait until it ends, or use another file: --study FILE",
        )
    TEMPORARY_FILES.add(path)
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        with contextlib.suppress(OSError):  # a full disk does not prevent the lock
            os.ftruncate(locked, 0)
            os.write(locked, json.dumps(owner).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(locked)
        TEMPORARY_FILES.discard(path)


def _locked(path: Path) -> int | str:
    """Lock a file. Returns its descriptor, or the description of its owner. Raises CannotError."""
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
                hint="store the study in another place: --study FILE",
            ) from error


def _owner(descriptor: int) -> str:
    """Describe the owner of a lock file. It may not have written its name yet."""
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(owner['pid'])} on {str(owner['host'])[:100]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextlib.contextmanager
def measuring_lock(
    on_wait: Callable[[str], None] | None = None, *, until: float | None = None
) -> Iterator[None]:
    """Hold the lock of the machine for measuring. Other cputune processes wait.

    ``on_wait`` gets a description of each owner once. ``until`` is a time of ``time.monotonic()``:
    if another process of the same user still measures then, CannotError is raised.
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
                    hint="raise --max-time, or use --share-machine if they have different CPUs",
                )
            if not same_user and (up or now >= others_until):
                break
            time.sleep(_AGAIN_SECONDS)
        yield


def _is_bound(holder: socket.socket) -> bool:
    try:
        holder.bind(MEASURING)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    holder.listen(128)
    return True


def _owner_of_the_machine() -> tuple[str | None, bool]:
    """Describe the process that measures, and return whether it belongs to our user.

    None if it does not listen yet or any more, or refuses us.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(_AGAIN_SECONDS)
        try:
            visitor.connect(MEASURING)
            return _peer(visitor)
        except OSError:
            return None, False


def _peer(visitor: socket.socket) -> tuple[str, bool]:
    """Describe the process at the other end, and return whether it belongs to our user.

    The kernel gives no pid for a process of another container.
    """
    import pwd  # Windows has none

    size = struct.calcsize("3i")
    raw = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", raw)
    name = user
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(user).pw_name
    return f"process {pid or 'in another container'} of {name}", user == os.getuid()
