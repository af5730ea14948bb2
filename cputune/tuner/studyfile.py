"""The SQLite file of a study: its address, and whether it is a study of ours at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from cputune.errors import CannotError

STUDY_NAME = "cputune"

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
"""Not what somebody has planted there meanwhile."""

TABLES = {"studies", "trials", "study_user_attributes", "trial_user_attributes"}
"""Tables of Optuna's that a study cannot be gone on with without."""


def connect(path: Path, *, mode: str = "rwc") -> sqlite3.Connection:
    """Open the file, whatever signs are in its name; ``mode`` as in SQLite's addresses."""
    address = f"file:{quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(address, uri=True, check_same_thread=False)


def holds_study(path: Path) -> bool:
    """Whether a study of ours is in the file; False where there is no file, or an empty one.

    Raises CannotError for a file that belongs to somebody else, or that lost tables:
    nothing has been written to it then.
    """
    if not path.exists():
        return False
    if not path.is_file():
        raise no_study(path, "it is no regular file")
    try:
        # For reading and writing: a journal that a killed process left is rolled back.
        with closing(connect(path, mode="rw")) as file:
            tables = {name for (name,) in file.execute("select name from sqlite_master")}
            if not tables:
                return False
            names = file.execute("select study_name from studies") if tables >= TABLES else ()
            if (STUDY_NAME,) in names:
                (sound,) = file.execute("pragma quick_check(1)").fetchone()
                if sound != "ok":
                    raise no_study(path, f"the database is damaged ({sound})")
                return True
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise no_study(path, str(error)) from error
    raise no_study(path, "it is the database of something else, or tables of it are missing")


@contextmanager
def whole(path: Path, *, private: bool) -> Iterator[Path]:
    """A file beside ``path`` to make a study in; it becomes ``path`` when the block is over.

    So a study is there with all its tables and indices, or not at all: one that is killed
    while Optuna makes them could be neither gone on with nor begun. Where it is private,
    only its owner may read it.
    """
    half = path.with_name(f".{path.name}.new")
    half.unlink(missing_ok=True)
    os.close(os.open(half, _NEW, 0o600 if private else 0o666))
    try:
        yield half
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def no_study(path: Path | None, why: str) -> CannotError:
    """The error for a file that cannot be used, and why."""
    return CannotError(
        f"{path} cannot be opened as a study: {why}", hint="give another file with --study"
    )
