"""The folder for temporary files of one run: gone when the run is, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cputune.errors import CannotError
from cputune.host.files import FOR_NOW

PREFIX = "cputune-"
OWNER = "owner.lock"
"""Locked (flock(2)) for as long as the run lives; the kernel unlocks it when that dies."""

_NEW = "owner.new"
_MADE = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")
"""What tempfile.mkdtemp makes of the prefix."""

_MOST_TRIES = 100

LONGEST_SOCKET_PATH = 100
"""A Unix socket's path has 108 bytes (unix(7)); somebody's TMPDIR may be longer."""


class WorkFolder:
    """A folder that only this user can read, and a second one where a socket needs it.

    Attributes:
        path: for files.
        socket_folder: for sockets; the same but where its path would be too long.
        folders: both.
        doomed: what a supervisor removes where the run is killed: these, and the folder of
            the run that this one is a part of.
    """

    def __init__(
        self, place: str | os.PathLike[str] | None = None, *, within: WorkFolder | None = None
    ) -> None:
        """Make it in ``place``, else in TMPDIR, where what killed runs left is removed.

        ``within`` is the folder of a run that this one is a part of; it is made in there.
        """
        where = Path(tempfile.gettempdir() if place is None else place)
        if within is not None:
            where = within.path
        remove_orphans(where)
        self._owners: list[int] = []
        self.path: Path = self._make(where)
        self.socket_folder = self.path
        self.folders: tuple[Path, ...] = (self.path,)
        if len(os.fsencode(self.path)) > LONGEST_SOCKET_PATH - len("/socket"):
            remove_orphans(Path("/tmp"))
            self.socket_folder = self._make(Path("/tmp"))
            self.folders = (self.path, self.socket_folder)
        self.doomed: tuple[Path, ...] = self.folders
        if within is not None:
            self.doomed += within.doomed

    def close(self) -> None:
        """Remove all of it."""
        for folder in self.folders:
            _remove(folder)
            FOR_NOW.discard(folder)
        while self._owners:
            os.close(self._owners.pop())

    def _make(self, where: Path) -> Path:
        for _ in range(_MOST_TRIES):
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
            FOR_NOW.add(folder)
            try:
                owner = _lock(folder / _NEW, os.O_CREAT)
                # Nobody takes it for one that was left, now that it is locked.
                (folder / _NEW).rename(folder / OWNER)
            except (FileNotFoundError, BlockingIOError):
                FOR_NOW.discard(folder)
                continue  # another run took it for one that was left; it holds nothing yet
            if owner is not None:
                self._owners.append(owner)
            return folder
        raise CannotError(f"cannot keep a folder in {where}", hint="TMPDIR names another place")

    def __enter__(self) -> WorkFolder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def remove_orphans(place: Path) -> None:
    """Remove what runs of this user have left in ``place`` that were killed."""
    for folder in _own_folders(place):
        for name in (OWNER, _NEW):
            with contextlib.suppress(OSError):
                owner = _lock(folder / name)
                if owner is not None:
                    _remove(folder)
                    os.close(owner)
        if _MADE.fullmatch(folder.name):
            with contextlib.suppress(OSError):
                folder.rmdir()  # killed before it had an owner, so it is empty


def _remove(folder: Path) -> None:
    """Its owner goes last: by that a later run knows what is left of it, if this one is killed."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name not in (OWNER, _NEW):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


def _own_folders(place: Path) -> Iterator[Path]:
    """Folders of this user with our prefix; no links, which anybody may plant in /tmp."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(place)):
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                        yield Path(entry.path)


def _lock(path: Path, flags: int = 0) -> int | None:
    """The descriptor of a file that is now locked; None where nothing can be locked.

    Raises BlockingIOError where somebody else holds the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor
