"""Plans of trials that stay alive, stopped, until the confirmation: today's launch and the best.

A process that was measured has paid for its imports and its warm-up. So the best trials are the
first block of the confirmation. A stopped process costs its memory alone: as many stay alive as
fit beside the next trial.
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
"""Today's launch, and as many as the confirmation compares with it."""


def most_living(facts: HostFacts, trials: Sequence[Trial]) -> int:
    """How many plans of a study can live side by side, by what the ranks of its trials held.

    Each is given what the largest of them needed. Where no rank has said what it held, the
    runner has no processes, and all can live at once.
    """
    held = max((held_bytes(trial) for trial in trials if trial.state != FAILED), default=0)
    room = spare_bytes(facts)
    return len(trials) if room is None or not held else int(room // held)


def held_bytes(trial: Trial) -> int:
    """The most memory that the ranks of a trial held on a node, libraries counted for each."""
    return sum(int(rank.get("peak_bytes") or 0) for rank in trial.observed) // trial.plan.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class LivingTrial:
    """The processes of a trial, and what was read of them in it."""

    living: Living
    run: Run
    center: float
    held_bytes: int


class LivingTrials:
    """Those of one study."""

    def __init__(self, facts: HostFacts) -> None:
        self._room = spare_bytes(facts)
        self._kept: dict[Plan, LivingTrial] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, trial: Trial, run: Run, center: float) -> None:
        """Keep what a run has left alive: ``center`` is its log seconds per sample.

        Where there are too many the slowest ends; today's launch is not one of those.
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
        """End the slowest until so much memory is left for another trial, today's launch last."""
        while self._room is not None and self._kept:
            held = sum(kept.held_bytes for kept in self._kept.values())
            if held + needed_bytes <= self._room:
                return
            self._end(self._slowest())

    def take(self, plan: Plan) -> LivingTrial | None:
        """The processes of a plan, which are then the caller's to end; None where it has none."""
        return self._kept.pop(plan, None)

    def only(self, plans: Iterable[Plan]) -> None:
        """End all but these."""
        for plan in set(self._kept) - set(plans):
            self._end(plan)

    def close(self) -> None:
        """End all of them."""
        self.only(())

    def _slowest(self) -> Plan:
        return max(self._kept, key=lambda plan: (not plan.as_found, self._kept[plan].center))

    def _end(self, plan: Plan) -> None:
        kept = self._kept.pop(plan, None)
        if kept is not None:
            with contextlib.suppress(Exception):  # what was measured of it stands
                kept.living.close()
