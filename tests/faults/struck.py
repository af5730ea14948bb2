"""One rank goes wrong in the middle of a study; the study goes on, and nothing of it is left."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from faults.outcome import Outcome
from faults.parents import LIGHT
from faults.watched import TUNE, Watched, judge, told

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


def strike(fault: str, place: Path) -> Outcome:
    """A study of which the third rank that begins goes wrong so."""
    place.mkdir(parents=True)
    environment = {"FAULT": fault, "FAULT_AT": "2", "FAULT_BOOK": str(place / "book")}
    watched = Watched(place, (*TUNE, "--budget", "6", "--", *LIGHT), environment)
    outcome = judge(watched)
    return replace(outcome, why=outcome.why or _complaint(watched.written, place))


def _complaint(said: str, place: Path) -> str:
    if "\x1b" in said or 99 in told(said):
        return said[-800:]
    if os.path.getsize(place / "book") < 4:
        return f"nobody was struck: {said[-1500:]}"
    trials = json.loads((place / "cputune.json").read_text())["trials"]
    return "" if len(trials) > 3 else f"only {len(trials)} trials: {said[-800:]}"
