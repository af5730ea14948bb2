"""Locks between processes: one for each study, two for the machine while it is measured.

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
from cputune.host.files import FOR_NOW, make_private, state_folder

MEASURING = "\0cputune.measuring"
"""The socket of whoever measures: a name in the abstract namespace (unix(7)), which is no
file that somebody could plant, and the same for every user of the machine. A container with
a network of its own has a namespace of its own. Without its NUL it is the name of the user's
own lock file."""

OTHERS_SECONDS = 600.0
"""So long at most is waited for other users: any of them could hold that socket for ever."""

_AGAIN_SECONDS = 0.25


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
    with _owned(path, found):
        yield


@contextlib.contextmanager
def _owned(path: Path, descriptor: int) -> Iterator[None]:
    """While a locked file is held it names its owner; then it is gone."""
    FOR_NOW.add(path)
    try:
        os.ftruncate(descriptor, 0)
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        FOR_NOW.discard(path)


def _locked(path: Path) -> int | str:
    """The descriptor of a file that is now locked, or who holds it. Raises CannotError."""
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
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            return owner
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
    """Be the only one of this user that measures on this machine; whoever comes later waits.

    Other users are waited for too, but not longer than OTHERS_SECONDS: nobody can keep this
    machine from everybody. ``on_wait`` is told in words for whom, once for each owner. Raises
    CannotError where the user's own is not free ``until`` then, by ``time.monotonic()``.
    """
    tell = on_wait or (lambda owner: None)
    with contextlib.ExitStack() as held:
        if sys.platform == "linux":
            folder = _own_folder()
            if folder is not None:
                held.enter_context(_own_lock(folder / MEASURING[1:], tell, until))
            soon = time.monotonic() + OTHERS_SECONDS
            last = soon if until is None else min(soon, until)
            holder = _among_users(tell, last)
            if holder is not None:
                held.enter_context(holder)
        yield


def _own_folder() -> Path | None:
    """The user's runtime folder, where nobody else may write; else that of the state, or none.

    ``su`` and ``sudo`` may leave another user's XDG_RUNTIME_DIR behind.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nowhere")
    with contextlib.suppress(OSError):
        found = runtime.stat()
        if runtime.is_absolute() and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return runtime
    state = state_folder()
    if state is None:
        return None
    try:
        make_private(state)
        here = state / f"on-{socket.gethostname()}"  # a home may be that of many machines
        make_private(here)
    except CannotError:
        return None
    return here


@contextlib.contextmanager
def _own_lock(path: Path, tell: Callable[[str], None], until: float | None) -> Iterator[None]:
    told = None
    while isinstance(found := _locked(path), str):
        if found != told:
            tell(told := found)
        left = _AGAIN_SECONDS if until is None else until - time.monotonic()
        if left <= 0:
            raise CannotError(
                f"the time given was up while {told} measured here",
                hint="give it more time, or --share-machine where the CPUs are apart",
            )
        time.sleep(min(left, _AGAIN_SECONDS))
    with _owned(path, found):
        yield


def _among_users(tell: Callable[[str], None], last: float) -> socket.socket | None:
    """The socket that other users see; None where one of them still has it at the ``last``."""
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
        left = last - time.monotonic()
        if left <= 0:
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
            visitor.settimeout(left)
            try:
                visitor.connect(MEASURING)
                owner = _peer(visitor)
                if owner != told:
                    tell(told := owner)
                visitor.settimeout(max(0.001, last - time.monotonic()))
                visitor.recv(1)  # until the owner has closed, or died
            except OSError:
                # it does not listen yet or any more, or refuses us
                time.sleep(max(0.0, min(_AGAIN_SECONDS, last - time.monotonic())))


def _peer(visitor: socket.socket) -> str:
    """The process at the other end, as the kernel names it; another container's has no number."""
    size = struct.calcsize("3i")
    raw = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", raw)
    with contextlib.suppress(KeyError):
        import pwd  # Windows has none

        user = pwd.getpwuid(user).pw_name
    return f"process {pid or 'in another container'} of {user}"
