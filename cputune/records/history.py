"""The history: every result that ``cputune tune`` writes, in the user's state folder.

Its id, which ``cputune show`` takes, is the second at which it was stored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cputune.errors import CannotError, CputuneError, UsageError
from cputune.host import read_document, write_atomically
from cputune.host.files import (
    changed_at,
    exists,
    make_private,
    own_files,
    remove,
    rename,
    user_folder,
    write_somewhere,
)
from cputune.host.process import variables
from cputune.records.result import Result
from cputune.text.documents import for_people
from cputune.text.hidden import hide_arguments
from cputune.text.log import log

# The oldest are removed first.
MOST_KEPT = 100

_ID = re.compile(r"[0-9]{8}-[0-9]{6}(?:-[0-9]+)?")
_RESULT = ".json"
LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A result of the history; None if its file cannot be read."""

    id: str
    result: Result | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where a result was stored.

    Attributes:
        name: what to pass to ``cputune show``: a path or an id. None if it is not stored.
        failure: why the named file could not be written.
    """

    name: str | None
    failure: CannotError | None = None


def save(result: Result, destination: Path | None, *, history: bool, now: str) -> Saved:
    """Write a result to ``destination``, if given, and to the history.

    A result takes hours to measure. So if the file cannot be written, it is stored in the history
    or in a temporary file. ``now`` is as for ``keep``.
    """
    cause = None
    if destination is not None:
        try:
            result.save(destination, force=True)
        except CannotError as error:
            cause = error
    id = None
    if history:
        id = keep(result, now=now)
    if cause is None:
        if destination is not None:
            return Saved(name=str(destination))
        return Saved(name=id)
    name = id
    if name is None:
        file = write_somewhere("cputune", for_people(result.to_json()) + "\n")
        if file is not None:
            name = str(file)
    hint = "free disk space; the result is only in the output above, and its trials in the study"
    if name is not None:
        hint = f"the result is stored elsewhere: cputune show {name}"
    return Saved(name=name, failure=CannotError(str(cause), hint=hint))


def history_folder() -> Path | None:
    """The folder of the history. None if the user has no home folder."""
    state = user_folder("state")
    if state is None:
        return None
    return state / "history"


def keep(result: Result, *, now: str) -> str | None:
    """Store a result in the history; returns its id, or None, since a failure must not end tune.

    ``now`` is the time as ``20261121-193000``.
    """
    folder = history_folder()
    if folder is None:
        return None
    try:
        make_private(folder)
        # Two studies may end in one second.
        names = [now] + [f"{now}-{number:03}" for number in range(2, 1000)]
        id = next(name for name in names if not exists(folder / (name + _RESULT)))
        write_atomically(folder / (id + _RESULT), for_people(result.to_json()) + "\n", mode=0o600)
        remove(folder, [old + _RESULT for old in kept_ids()[MOST_KEPT:]])
    except (CputuneError, OSError) as error:
        log.getChild("history").info("the result was not stored in the history: %s", error)
        return None
    return id


def written_at(path: Path) -> str:
    """When a file was written last, as in the ids of the history."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(changed_at(path)))


def free_name(path: Path) -> Path:
    """``cputune-20261127-211300.db``: when it was written last, and a number if that is taken."""
    stem = f"{path.stem}-{written_at(path)}"
    number = 1
    beside = path.with_name(f"{stem}{path.suffix}")
    while exists(beside):
        number += 1
        beside = path.with_name(f"{stem}-{number}{path.suffix}")
    return beside


def require_result(path: Path) -> Result:
    """The result in a file that is to be replaced. Raises UsageError if it is something else."""
    try:
        return Result.load(path)
    except CputuneError as error:
        raise UsageError(
            f"{path} exists and is not a result of cputune",
            hint="-o FILE writes elsewhere, --force replaces it",
        ) from error


def keep_earlier(path: Path) -> str:
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


def kept_ids() -> tuple[str, ...]:
    """The ids of the history, the newest first."""
    folder = history_folder()
    if folder is None:
        return ()
    ids = (name.removesuffix(_RESULT) for name in own_files(folder, _RESULT))
    return tuple(sorted(filter(_ID.fullmatch, ids), reverse=True))


def kept_results() -> tuple[Kept, ...]:
    results = []
    for id in kept_ids():
        result = None
        with suppress(CputuneError):
            result = Result.load(result_path(id))
        results.append(Kept(id=id, result=result))
    return tuple(results)


def peak_bytes_before(argv: Sequence[str], ranks: int) -> int | None:
    """The peak memory of a rank, in bytes, from the last time this command was tuned, or None.

    A trial with this number of ranks is preferred to the first trial.
    """
    shown, _ = hide_arguments(argv, variables=variables())
    for id in kept_ids():
        with suppress(CputuneError):
            result = Result.load(result_path(id))
            if result.workload.argv != tuple(shown):
                continue
            peaks: dict[int, int] = {}
            first: int | None = None
            for trial in reversed(result.trials):
                peak = max((int(rank.get("peak_bytes") or 0) for rank in trial.observed), default=0)
                if peak:
                    first = peaks[trial.plan.processes_per_node] = peak
            return peaks.get(ranks) or first
    return None


def result_path(word: str) -> Path:
    """The file of a result: a path, an id of the history or its beginning, or ``last``.

    Raises UsageError if an id matches no result, or several.
    """
    looks_like_id = word == LAST or re.fullmatch(r"[0-9][0-9-]{0,20}", word)
    if exists(word) or not looks_like_id:
        return Path(word)
    folder, ids = history_folder(), kept_ids()
    if word == LAST:
        matching = ids[:1]
    elif word in ids:
        matching = (word,)
    else:
        matching = tuple(id for id in ids if id.startswith(word))
    if folder is not None and len(matching) == 1:
        return folder / (matching[0] + _RESULT)
    if not ids:
        raise UsageError(
            f"the history is empty, so there is no result {word}", hint="run `cputune tune` first"
        )
    problem = f"there is no file {word}, and no result in the history with this id"
    if matching:
        problem = f"{len(matching)} results in the history begin with {word}"
    raise UsageError(problem, hint="run `cputune history` to list the ids")
