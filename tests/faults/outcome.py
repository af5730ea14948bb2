"""What became of one try, and the table of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One fault, tried once.

    Attributes:
        lost: finished trials that are not on record, or twice.
        left: processes and folders that outlived it.
        why: what is not as documented (the exit code, a sentence, no traceback); empty: nothing.
        tried: false where this machine cannot do it.
    """

    lost: int = 0
    left: tuple[str, ...] = ()
    why: str = ""
    tried: bool = True

    @property
    def wrong(self) -> str:
        """What was wrong, in words; empty where nothing was."""
        lost = f"{self.lost} trials lost" if self.lost else ""
        return "; ".join(filter(None, (self.why, lost, *self.left)))


HEAD = f"{'fault':58} {'tried':>5} {'survived':>9} {'lost':>5} {'left behind':>11}"


def row(fault: str, outcomes: Sequence[Outcome]) -> str:
    """A line of the table."""
    tried = [outcome for outcome in outcomes if outcome.tried]
    if not tried:
        return f"{fault:58} {'cannot be tried here':>33}"
    survived = sum(not outcome.why for outcome in tried)
    lost, left = sum(one.lost for one in tried), sum(len(one.left) for one in tried)
    return f"{fault:58} {len(tried):5} {survived:9} {lost:5} {left:11}"
