"""Keeps the processes of the best trials, stopped, for the confirmation.

A process that was measured has done its imports and its warm-up. So the first block of the
confirmation uses the processes of today's launch and of the best trials. A stopped process costs
nothing but its memory: as many are kept as fit beside the next trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cputune.facts import HostFacts
from cputune.memory import spare_bytes
from cputune.plan import Plan
from cputune.result import FAILED, Trial
from cputune.steps import Living
from cputune.tuner.reading import Run

MOST_KEPT_ALIVE = 5
"""How many are kept at most: today's launch, and the rivals that the confirmation compares with
it."""


def most_living(facts: HostFacts, trials: Sequence[Trial]) -> int:
    """How many plans of a study can be alive at once, by the memory that its trials needed.

    Each plan is given as much as the largest trial needed. Where no rank has reported its memory,
    the runner has no processes, and all plans can be alive at once.
    """
    held = max((held_bytes(trial) for trial in trials if trial.state != FAILED), default=0)
    room = spare_bytes(facts)
    return len(trials) if room is None or not held else int(room // held)


def held_bytes(trial: Trial) -> int:
    """The most memory that the ranks of a trial used on a node; shared libraries count for each."""
    return sum(int(rank.get("peak_bytes") or 0) for rank in trial.observed) // trial.plan.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingTrial:
    """The processes of a trial, and what was read of them in it."""

    living: Living
    run: Run
    center: float
    held_bytes: int


class LivingTrials:
    """The processes that one study keeps."""

    def __init__(self, facts: HostFacts) -> None:
        self._room = spare_bytes(facts)
        self._kept: dict[Plan, LivingTrial] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, trial: Trial, run: Run, center: float) -> None:
        """Keep the processes that a run has left alive: ``center`` is its log seconds per sample.

        Where there are too many, the slowest plan but today's launch is ended.
        """
        if run.living is None:
            return
        self._end(trial.plan)
        self._kept[trial.plan] = LivingTrial(
            living=run.living, run=run, center=center, held_bytes=held_bytes(trial)
        )
        while len(self._kept) > MOST_KEPT_ALIVE:
            self._end(self._slowest())

    def make_room(self, needed_bytes: float) -> None:
        """End the slowest until another trial has so much memory; today's launch goes last."""
        while self._room is not None and self._kept:
            held = sum(kept.held_bytes for kept in self._kept.values())
            if held + needed_bytes <= self._room:
                return
            self._end(self._slowest())

    def take(self, plan: Plan) -> LivingTrial | None:
        """The processes of a plan, for the caller to end; None where none are kept."""
        return self._kept.pop(plan, None)

    def only(self, plans: Iterable[Plan]) -> None:
        """End all processes but those of these plans."""
        for plan in set(self._kept) - set(plans):
            self._end(plan)

    def close(self) -> None:
        """End all processes."""
        self.only(())

    def _slowest(self) -> Plan:
        return max(self._kept, key=lambda plan: (not plan.as_found, self._kept[plan].center))

    def _end(self, plan: Plan) -> None:
        kept = self._kept.pop(plan, None)
        if kept is not None:
            with contextlib.suppress(Exception):  # its measurements stand
                kept.living.close()
