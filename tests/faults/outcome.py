"""What became of one try, and the table of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fault, tried once.

    Attributes:
        survived: it ended as documented: the exit code, a sentence, no traceback; or went on.
        lost: finished trials that are not on record, or twice.
        left: processes and folders that outlived it.
        why: what was wrong, in words.
        tried: false where this machine cannot do it.
    """

    survived: bool = True
    lost: int = 0
    left: int = 0
    why: str = ""
    tried: bool = True


def row(fault: str, outcomes: Iterable[Outcome]) -> str:
    """A line of the table."""
    tried = [outcome for outcome in outcomes if outcome.tried]
    if not tried:
        return f"{fault:58} {'cannot be tried here':>32}"
    survived, lost, left = (
        sum(getattr(outcome, name) for outcome in tried) for name in ("survived", "lost", "left")
    )
    return f"{fault:58} {len(tried):5} {survived:9} {lost:5} {left:11}"


HEAD = f"{'fault':58} {'tried':>5} {'survived':>9} {'lost':>5} {'left behind':>11}"
