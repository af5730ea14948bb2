"""Reading files whole, and writing them whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from cputune.errors import CannotError, UsageError

READ_LIMIT_BYTES = 16 << 20
"""No file of /proc or /sys that we read is longer (4096 CPUs of cpuinfo are 6 MiB)."""


def read_file(path: str) -> str:
    """The text of a regular file. Raises OSError for anything else.

    What is no file is not opened: a fifo would wait for a writer forever, and to open
    a device may do something.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    with open(path, "rb") as file:
        return file.read(READ_LIMIT_BYTES).decode("utf-8", errors="replace")


def write_atomically(path: Path, text: str, *, force: bool = False, mode: int = 0o644) -> None:
    """Write a file whole or not at all. Raises UsageError where it exists and not ``force``."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="give --force to replace it")
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise CannotError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place with -o"
        ) from error
