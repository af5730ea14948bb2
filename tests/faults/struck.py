"""The rank of trial 1 goes wrong in the middle of it; the study goes on, nothing of it is left."""

from __future__ import annotations

import json
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

FAILS = ("killed", "segfault", "endless", "untrue", *HANGS)
"""After these a trial has failed. Without memory it is run again, alone; others do no harm."""


def strike(fault: str, place: Path) -> Outcome:
    """A study of which the rank of trial 1 goes wrong so."""
    place.mkdir(parents=True)
    watched = Watched(place, (*TUNE, "--budget", "6", "--", *LIGHT), first_trial(fault, place))
    outcome = judge(watched)
    return replace(outcome, why=outcome.why or _complaint(fault, watched.written, place))


def first_trial(fault: str, place: Path) -> dict[str, str]:
    """The environment in which trial 1 is struck; trial 0 is the launch as it is."""
    return {"FAULT": fault, "FAULT_AT": "1", "FAULT_BOOK": str(place / "book")}


def not_as_struck(place: Path, *, fails: bool) -> str:
    """What is wrong if nobody was struck, or if trial 1 did not end so; or nothing."""
    if not (place / "book.struck").exists():
        return "nobody was struck"
    trials = json.loads((place / "cputune.json").read_text())["trials"]
    ended = {trial["number"]: (trial["state"], trial["reason"]) for trial in trials}
    if 1 not in ended:
        return f"trial 1 is not on record: {ended}"
    failed = ended[1][0] == "failed"
    return "" if failed == fails else f"trial 1 ended otherwise: {ended[1]}"


def _complaint(fault: str, said: str, place: Path) -> str:
    if "\x1b" in said or 99 in told(said):
        return said[-800:]
    wrong = not_as_struck(place, fails=fault in FAILS)
    if wrong:
        return f"{wrong}: {said[-1500:]}"
    trials = json.loads((place / "cputune.json").read_text())["trials"]
    return "" if len(trials) > 3 else f"only {len(trials)} trials: {said[-800:]}"
