"""The study and the result of an earlier ``tune`` make room for new ones.

A finished study, or one without a trial, is replaced. An interrupted one is renamed; ``--resume``
continues it. A result is kept in the history.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cputune.errors import CputuneError, UsageError
from cputune.host import read_document
from cputune.host.files import rename
from cputune.records.history import keep, kept_ids, result_path
from cputune.records.result import Result
from cputune.text.documents import for_people
from cputune.tuner.databases import MovedStudy, StudyDatabase, free_name, written_at


def make_room(database: StudyDatabase) -> MovedStudy | None:
    """Clear the place of a study; returns where an interrupted one is now, or None.

    Raises CannotError if another process uses the study, or another program made it.
    """
    with database.lock():
        if database.is_over():
            database.remove()
            return None
        return database.move_aside()


def require_result(path: Path) -> Result:
    """The result in a file that is to be replaced. Raises UsageError if it is something else."""
    try:
        return Result.load(path)
    except CputuneError as error:
        raise UsageError(
            f"{path} exists and is not a result of cputune",
            hint="-o FILE writes elsewhere, --force replaces it",
        ) from error


def keep_result(path: Path) -> str:
    """Keep the result of a file that is about to be replaced; returns its name for ``cputune
    show``.
    """
    result = require_result(path)
    text = for_people(result.to_json()) + "\n"
    for id in kept_ids():
        with suppress(OSError):
            if read_document(result_path(id)) == text:
                return id
    kept = keep(result, now=written_at(path))
    if kept is not None:
        return kept
    beside = free_name(path)
    rename(path, beside)
    return str(beside)
