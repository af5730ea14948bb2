"""What became of one try, and the table of many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """Some tries of one fault, and what they took: time, and CPU time of what was waited for."""

    outcomes: Sequence[Outcome]
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def row(fault: str, tries: Iterable[Tries]) -> str:
    """A line of the table."""
    all_tries = list(tries)
    tried = [outcome for some in all_tries for outcome in some.outcomes if outcome.tried]
    if not tried:
        return f"{fault:58} {'cannot be tried here':>47}"
    survived, lost, left = (
        sum(getattr(outcome, name) for outcome in tried) for name in ("survived", "lost", "left")
    )
    wall, cpu = (sum(getattr(t, name) for t in all_tries) for name in ("seconds", "cpu_seconds"))
    return f"{fault:58} {len(tried):5} {survived:9} {lost:5} {left:11} {wall:6.0f} {cpu:6.0f}"


HEAD = f"{'fault':58} {'tried':>5} {'survived':>9} {'lost':>5} {'left behind':>11}   wall    CPU"
