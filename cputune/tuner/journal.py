"""Optuna's journal in a file, with one writer."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend

from cputune.host.files import cut_to, has_torn_line, size


class OneWriter:
    """The lock of a journal with one writer: the tuner holds ``FILE.lock`` as long as it runs.

    Optuna's own locks have that name too, and would wait for ours.
    """

    def acquire(self) -> bool:
        """Nothing to wait for."""
        return True

    def release(self) -> None:
        """Nothing to free."""


class Journal(JournalFileBackend):
    """A journal to which each entry is added whole or not at all."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=OneWriter())
        self._path = path
        self._bytes = size(path)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add entries. Raises OSError if the file was removed or cut off, or has no room."""
        before = size(self._path)
        if before < self._bytes or has_torn_line(self._path):
            raise OSError(errno.EIO, "the file is damaged or truncated", str(self._path))
        try:
            super().append_logs(logs)
            self._bytes = size(self._path)
        except BaseException:
            with suppress(OSError):
                cut_to(self._path, before)
            self._bytes = before
            raise
