"""The results that were kept: each that ``cputune tune`` writes, under the user's state folder.

A result lies there as it is written elsewhere, for the user alone. Its id, by which
``cputune show`` opens it, is when it was kept, to the second. Where the file that the user named
cannot be written, the result is there, or in a temporary file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cputune.errors import CannotError, CputuneError, UsageError
from cputune.host import write_atomically
from cputune.host.files import make_private, own_files, remove, user_folder, write_somewhere
from cputune.records.result import Result
from cputune.text.documents import for_people
from cputune.text.hidden import hide_arguments
from cputune.text.log import log

MOST_KEPT = 100
"""Results that are kept; the oldest go first."""

_ID = re.compile(r"[0-9]{8}-[0-9]{6}(?:-[0-9]+)?")
_RESULT = ".json"
LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A result that was kept; None where its file cannot be read."""

    id: str
    result: Result | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where a result is now.

    Attributes:
        name: by which ``cputune show`` opens it, a path or an id; None where it is nowhere.
        failure: why the file that was named could not be written; None where it was, or none was.
    """

    name: str | None
    failure: CannotError | None = None


def save(result: Result, destination: Path | None, *, history: bool, now: str) -> Saved:
    """Write a result to the file that is named, if any, and keep it in the ``history``.

    A result of hours is not lost: where the file cannot be written it is kept in the history, or
    else in a temporary file, and ``failure`` says which. ``now`` is as for ``keep``.
    """
    cause = None
    if destination is not None:
        try:
            result.save(destination, force=True)
        except CannotError as error:
            cause = error
    id = keep(result, now=now) if history else None
    if cause is None:
        return Saved(name=id if destination is None else str(destination))
    name = id
    if name is None:
        file = write_somewhere("cputune", for_people(result.to_json()) + "\n")
        name = None if file is None else str(file)
    hint = "make room; what is printed above is all that is left of it, beside the study"
    if name is not None:
        hint = f"the whole result is kept elsewhere: cputune show {name}"
    return Saved(name=name, failure=CannotError(str(cause), hint=hint))


def history_folder() -> Path | None:
    """Where results are kept; None where the user has no home."""
    state = user_folder("state")
    return None if state is None else state / "history"


def keep(result: Result, *, now: str) -> str | None:
    """Keep a result; its id, or None where that could not be done: tune does not end for it.

    ``now`` is the time as ``20261121-193000``.
    """
    folder = history_folder()
    if folder is None:
        return None
    try:
        make_private(folder)
        # Two studies may end in one second.
        names = (now, *(f"{now}-{number:03}" for number in range(2, 1000)))
        id = next(name for name in names if not (folder / (name + _RESULT)).exists())
        write_atomically(folder / (id + _RESULT), for_people(result.to_json()) + "\n", mode=0o600)
        remove(folder, [old + _RESULT for old in kept_ids()[MOST_KEPT:]])
    except (CputuneError, OSError) as error:
        log.getChild("history").info("the result was not kept: %s", error)
        return None
    return id


def kept_ids() -> tuple[str, ...]:
    """The ids of what is kept, the newest first; other files of the folder are not ours."""
    folder = history_folder()
    names = () if folder is None else own_files(folder, _RESULT)
    ids = (name.removesuffix(_RESULT) for name in names)
    return tuple(sorted(filter(_ID.fullmatch, ids), reverse=True))


def kept_results() -> tuple[Kept, ...]:
    """What is kept, the newest first."""
    found = []
    for id in kept_ids():
        result = None
        with suppress(CputuneError):
            result = Result.load(result_path(id))
        found.append(Kept(id=id, result=result))
    return tuple(found)


def held_before(argv: Sequence[str], ranks: int) -> int | None:
    """Bytes that a rank of this command held at most when it was tuned last; None: it never was.

    ``argv`` is the script and its arguments. The trial with as many ranks is taken, else the first.
    """
    words, _ = hide_arguments(argv, variables=os.environ)
    for id in kept_ids():
        with suppress(CputuneError):
            result = Result.load(result_path(id))
            if result.workload.argv != tuple(words):
                continue
            held = {
                trial.plan.processes_per_node: max(
                    int(rank.get("peak_bytes") or 0) for rank in trial.observed
                )
                for trial in reversed(result.trials)
                if trial.observed
            }
            return held.get(ranks) or next(reversed(held.values()), 0) or None
    return None


def result_path(word: str) -> Path:
    """The file that a word names: a path, the id of a kept result or its beginning, or ``last``.

    Raises UsageError for an id that means none, or several.
    """
    looks_like_id = word == LAST or re.fullmatch(r"[0-9][0-9-]{0,20}", word)
    if Path(word).exists() or not looks_like_id:
        return Path(word)
    folder, ids = history_folder(), kept_ids()
    found = ids[:1] if word == LAST else [id for id in ids if id.startswith(word)]
    if word in ids:
        found = [word]
    if folder is not None and len(found) == 1:
        return folder / (found[0] + _RESULT)
    if not ids:
        raise UsageError(
            f"the history is empty, so there is no result {word}",
            hint="`cputune tune` makes the first one",
        )
    why = f"there is no file {word}, and no result of the history has this id"
    if found:
        why = f"{len(found)} results of the history begin with {word}"
    raise UsageError(why, hint="`cputune history` lists them")
