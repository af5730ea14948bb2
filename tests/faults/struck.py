"""One rank goes wrong in the middle of a study; the study goes on, and nothing of it is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

from faults.outcome import Outcome
from faults.parents import LIGHT
from faults.watched import TUNE, Watched, on_record, told, traceback_in

STRIKES = {
    # FAULT of light.py: how the table names it
    "killed": "a rank is killed",
    "segfault": "a rank segfaults",
    "address space": "a rank runs out of memory (RLIMIT_AS)",
    "flood": "a rank writes 1 GB",
    "deaf": "a rank is deaf to every signal",
    "daemons": "a rank leaves daemons",
    "endless": "a rank says 8 MB without a line's end",
    "untrue": "a rank says a step that is none",
    "forges": "a rank's words forge lines of the terminal",
}
HANGS = {
    # the same, ended by the time that is given a step: a minute each
    "stopped": "a rank is stopped (SIGSTOP)",
    "hangs": "a rank hangs in step 3",
    "closes": "a rank closes its channel",
    "rubbish": "a rank writes rubbish into its channel",
}
LONGEST_SECONDS = 400.0


def strike(fault: str, place: Path, *, warm: bool = False) -> Outcome:
    """A study of which the third rank that begins goes wrong so."""
    place.mkdir(parents=True)
    environment = {"FAULT": fault, "FAULT_AT": "2", "FAULT_BOOK": str(place / "book")}
    words = (*TUNE, "--budget", "6", "--", *LIGHT)
    watched = Watched(place, words, environment, warm=warm)
    ended = watched.wait(LONGEST_SECONDS)
    if ended is None:
        watched.end()
    left = [*watched.left_behind(), *map(str, watched.folders())]
    said = watched.said
    lost = len(told(said) ^ set(on_record(place / "cputune.db")))
    why = _complaint(ended, said, place)
    return Outcome(survived=not why, lost=lost, left=len(left), why=why or ", ".join(left))


def _complaint(ended: int | None, said: str, place: Path) -> str:
    if ended != 0:
        return f"ended with {ended}: {said[-800:]}"
    if traceback_in(said) or "\x1b" in said or 99 in told(said):
        return said[-800:]
    if os.path.getsize(place / "book") < 4:
        return f"nobody was struck: {said[-1500:]}"
    trials = json.loads((place / "cputune.json").read_text())["trials"]
    return "" if len(trials) > 3 else f"only {len(trials)} trials: {said[-800:]}"
