"""How many plans can live at once: their memory is all that a stopped process costs."""

from __future__ import annotations

from collections.abc import Sequence

from cputune.facts import HostFacts
from cputune.memory import room_bytes
from cputune.result import FAILED, Trial

SPARE = 0.8
"""Share of the memory that was free before the study; the rest is for what grows meanwhile."""


def room_for(facts: HostFacts, trials: Sequence[Trial]) -> int:
    """How many plans of a study can live side by side, by what the ranks of its trials held.

    Each is given what the largest of them needed. Where no rank has said what it held, the
    runner has no processes, and there is room for all.
    """
    held = max((held_bytes(trial) for trial in trials if trial.state != FAILED), default=0)
    free = [size for size in (facts.memory.available_bytes, room_bytes(facts)) if size]
    if not held or not free:
        return len(trials)
    return int(SPARE * min(free) // held)


def held_bytes(trial: Trial) -> int:
    """The most memory that the ranks of a trial held on a node, libraries counted for each."""
    return sum(int(rank.get("peak_bytes") or 0) for rank in trial.observed) // trial.plan.nodes
