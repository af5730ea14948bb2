"""What an earlier ``tune`` left: its study and its result make room for new ones.

A finished study, or one without a trial, is replaced. An interrupted one is moved aside;
``--resume`` continues it there. A result is kept in the history before it is replaced.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from cputune.errors import CputuneError, UsageError
from cputune.host import read_document
from cputune.records.history import keep, kept_ids, result_path
from cputune.records.result import Result
from cputune.text.documents import for_people
from cputune.tuner.databases import StudyFile, connect

FINISHED = "cputune.finished"
"""The attribute of a study whose result was written."""

_TRIALS = "select count(*) from trials join studies using (study_id) where study_name = ?"
_IS_FINISHED = (
    "select count(*) from study_user_attributes join studies using (study_id) "
    "where study_name = ? and key = ?"
)
_FINISH = (
    "insert into study_user_attributes (study_id, key, value_json) "
    "select study_id, ?, 'true' from studies where study_name = ? and not exists ("
    "select 1 from study_user_attributes as known where known.key = ? "
    "and known.study_id = studies.study_id)"
)


def make_room(study: StudyFile) -> tuple[Path, int] | None:
    """Clear the file of a study for a new one.

    Returns where an interrupted study is now and how many trials it has; None if there was none.
    Raises CannotError if another process uses the file.
    """
    with study.lock():
        with closing(connect(study.path)) as file:
            (trials,) = file.execute(_TRIALS, (study.name,)).fetchone()
            (finished,) = file.execute(_IS_FINISHED, (study.name, FINISHED)).fetchone()
        if not trials or finished:
            study.remove()
            return None
        beside = _free_name(study.path)
        study.path.rename(beside)
        return beside, trials


def finish(study: StudyFile) -> None:
    """Record that the result of a study was written; a removed file is ignored."""
    with suppress(sqlite3.Error), closing(connect(study.path)) as file, file:
        file.execute(_FINISH, (FINISHED, study.name, FINISHED))


def require_result(path: Path) -> Result:
    """The result in a file that is to be replaced. Raises UsageError if it is something else."""
    try:
        return Result.load(path)
    except CputuneError as error:
        raise UsageError(
            f"{path} exists, and is not a result of cputune",
            hint="-o FILE writes elsewhere, --force replaces it",
        ) from error


def keep_result(path: Path) -> str:
    """Keep the result of a file that is about to be replaced; returns its name for ``cputune
    show``.

    Raises UsageError if the file is not a result.
    """
    result = require_result(path)
    text = for_people(result.to_json()) + "\n"
    for id in kept_ids():
        with suppress(OSError):
            if read_document(result_path(id)) == text:
                return id
    kept = keep(result, now=_written_at(path))
    if kept is not None:
        return kept
    beside = _free_name(path)
    path.rename(beside)
    return str(beside)


def _free_name(path: Path) -> Path:
    """``cputune-20261127-211300.db``: the time of its last write, and a number if that is taken."""
    stem = f"{path.stem}-{_written_at(path)}"
    number = 1
    beside = path.with_name(f"{stem}{path.suffix}")
    while beside.exists():
        number += 1
        beside = path.with_name(f"{stem}-{number}{path.suffix}")
    return beside


def _written_at(path: Path) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(path.stat().st_mtime))
