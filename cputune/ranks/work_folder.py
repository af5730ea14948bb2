"""The folder for temporary files of one run; it is removed however the run ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

from cputune.errors import CannotError
from cputune.host.files import FOR_NOW

OF_THIS_HOST = f"cputune-{socket.gethostname()}-"
"""A folder with this prefix is locked (flock(2)) while its run lives; the kernel unlocks it when
the run dies. A run on another host that sees the folder on a shared disk does not remove it."""

_MADE = re.compile(re.escape(OF_THIS_HOST) + r"[a-z0-9_]{8}")
"""What tempfile.mkdtemp makes of the prefix."""

_MOST_TRIES = 100


class WorkFolder:
    """A folder that only this user can read, in TMPDIR; what killed runs left there is removed.

    ``path`` is that of the folder.
    """

    def __init__(self) -> None:
        where = Path(tempfile.gettempdir())
        remove_orphans(where)
        self._locks: list[int] = []
        for _ in range(_MOST_TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=OF_THIS_HOST, dir=where))
            # Until it is locked another run may remove it as left behind; it is still empty.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                self._locks += _lock(self.path)
                if self.path.exists():
                    FOR_NOW.add(self.path)
                    return
        raise CannotError(f"cannot keep a folder in {where}", hint="TMPDIR names another place")

    def close(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        FOR_NOW.discard(self.path)
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def remove_orphans(place: Path) -> None:
    """Remove what runs of this user have left in ``place`` that were killed."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(place)):
            with contextlib.suppress(OSError):
                own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if own and _MADE.fullmatch(entry.name):
                    for lock in _lock(Path(entry.path)):
                        shutil.rmtree(entry.path, ignore_errors=True)
                        os.close(lock)


def _lock(folder: Path) -> list[int]:
    """The descriptor of a folder that is now locked; none where nothing can be locked.

    A link, which anybody may plant in /tmp, is not followed. Raises BlockingIOError where somebody
    else holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return []  # a network file system that cannot lock
    return [descriptor]
