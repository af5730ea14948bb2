"""Steps of single ranks become steps of the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune.steps import Step


class Gather:
    """Puts the steps of all ranks together, in order.

    A step of the job is complete when its last rank has told it. The last batch of an
    epoch may be a short one, and is passed over: its time says nothing about the others.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, dict[int, Mapping[str, Any]]] = {}
        self._full = 0
        self._skipped_last = False
        self.count = 0

    def add(self, rank: int, event: Mapping[str, Any]) -> Step | None:
        """One rank's step; the job's, where this was the last rank that it lacked."""
        number = int(event["number"])
        told = self._open.setdefault(number, {})
        told[rank] = event
        if len(told) < self._ranks:
            return None
        del self._open[number]
        step = _whole(tuple(told.values()))
        self.count += 1
        short = step.samples < self._full
        self._full = max(self._full, step.samples)
        self._skipped_last = short and not self._skipped_last
        return None if self._skipped_last else step


def _whole(told: tuple[Mapping[str, Any], ...]) -> Step:
    losses = [float(event["loss"]) for event in told if event.get("loss") is not None]
    return Step(
        seconds=max(float(event["seconds"]) for event in told),
        samples=sum(int(event["samples"]) for event in told),
        loss=sum(losses) / len(losses) if losses else None,
        delayed_seconds=max(float(event.get("delayed", 0.0)) for event in told),
    )
