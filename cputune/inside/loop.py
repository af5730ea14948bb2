"""Follows a training loop that a script has written itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cputune.inside.messages import Framework
from cputune.inside.meter import Meter


class Loop:
    """Which data loader a loop iterates, and which optimizer is its clock.

    Attributes:
        samples: of the batch that was taken last; 0 once its loss went backward.
    """

    def __init__(self, meter: Meter, framework: Framework) -> None:
        self.meter = meter
        self.framework: Framework = framework
        self.samples = 0
        self._running = 0
        self._clock: int | None = None

    def batches(self, iterate: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of a loader; those of the loader that is trained on, without end.

        A script evaluates and saves when its training loader is exhausted. A loader that
        is iterated inside another one's loop is an evaluation: its time does not count.
        """
        nested = self._running > 0
        since, trained = self.meter.pause(), self.meter.backwards
        if not nested or self.meter.framework is None:
            self.meter.begin(self.framework)
        self._running += 1
        try:
            while True:
                before = self.meter.backwards
                for batch in iterate():
                    self.samples = self.meter.see_batch(batch)
                    yield batch
                if self.meter.backwards == before:
                    return
        finally:
            self._running -= 1
            if nested and self.meter.backwards == trained:
                self.meter.resume(since)

    def backward(self, loss: Any) -> None:
        """A loss went backward; a batch with several losses is one batch.

        The batches of the first step are counted: a script that accumulates by hand tells
        nobody how many it takes.
        """
        facts = self.meter.facts
        if self.meter.steps == 0 and self.samples and "batch" in facts:
            facts["accumulation"] = facts.get("accumulation", 0) + 1
        self.meter.micro_step(self.samples, loss.detach() if hasattr(loss, "detach") else loss)
        self.samples = 0

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped; the first one that ever did is the clock."""
        if self._clock is None:
            self._clock = id(optimizer)
        if self._clock == id(optimizer):
            self.meter.step(mean_loss=True, optimizer=optimizer)
