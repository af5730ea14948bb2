"""Combines the steps of ranks to those of the whole job."""

from __future__ import annotations

from collections.abc import Sequence

from cputune.inside.messages import StepMessage
from cputune.records.steps import Step


class Gather:
    """Combines the steps of all ranks, in order.

    A step of the job is complete when its last rank has reported it. The short last batch of an
    epoch is left out: its time says nothing about the others.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, dict[int, Step]] = {}
        self._full = 0
        self._skipped_last = False
        self.count = 0

    def add(self, rank: int, number: int, step: Step) -> Step | None:
        """Add one rank's step. Returns the job's step if this was the last missing rank."""
        files = self._open.setdefault(number, {})
        files[rank] = step
        if len(files) < self._ranks:
            return None
        del self._open[number]
        of_job = _combined(list(files.values()))
        self.count += 1
        short = of_job.samples < self._full
        self._full = max(self._full, of_job.samples)
        # Two short steps in a row are no last batch of an epoch: the second one counts.
        self._skipped_last = short and not self._skipped_last
        return None if self._skipped_last else of_job


def of_rank(message: StepMessage) -> Step:
    """One step as one rank saw it."""
    loss = message.get("loss")
    return Step(
        seconds=float(message["seconds"]),
        samples=int(message["samples"]),
        loss=None if loss is None else float(loss),
        delayed_seconds=float(message.get("delayed") or 0.0),
        size=int(message.get("size") or 0),
    )


def _combined(of_ranks: Sequence[Step]) -> Step:
    """A step of the job lasts as long as in its slowest rank; its samples are those of all."""
    losses = [step.loss for step in of_ranks if step.loss is not None]
    return Step(
        seconds=max(step.seconds for step in of_ranks),
        samples=sum(step.samples for step in of_ranks),
        loss=sum(losses) / len(losses) if losses else None,
        delayed_seconds=max(step.delayed_seconds for step in of_ranks),
        size=max(step.size for step in of_ranks),
    )
