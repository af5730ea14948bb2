"""Where ``tune`` writes: said before hours of work, what would end them at their end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cputune.errors import CannotError, UsageError


def study_path(study: str | None, destination: Path | None) -> Path:
    """The study's file: as asked, or beside the result (``cputune.json``, ``cputune.db``)."""
    if study is not None:
        return Path(study)
    return Path("cputune.db") if destination is None else destination.with_suffix(".db")


def refuse_overwriting(
    destination: Path | None, book: Path | None, *, force: bool, resume: bool
) -> None:
    """What would end hours of work at their end is said before. Raises CputuneError.

    ``book`` is None for a study in a database: it is gone on with, whoever began it.
    """
    for path in (destination, book):
        if path is not None:
            _writable(path)
    if resume:
        if book is not None and not book.is_file():
            raise CannotError(f"there is no study {book} to resume", hint="leave out --resume")
        return
    for path in (destination, book):
        if path is None:
            continue
        if path.exists() and not force:
            raise UsageError(
                f"{path} exists",
                hint="--force replaces it, -o FILE writes elsewhere, --resume goes on with a study",
            )


def _writable(path: Path) -> None:
    """Raise where no file can be made beside ``path``."""
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {path.parent}", hint="-o FILE writes elsewhere")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise CannotError(
            f"nothing can be written in {path.parent.absolute()}: {error.strerror}"
            if _here()
            else "the working folder was removed",
            hint="go to another folder, or name one with -o",
        ) from error


def _here() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
