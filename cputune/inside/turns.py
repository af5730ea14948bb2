"""Trains on batches once more: all turns have the same weights, random numbers and state.

Nothing is updated meanwhile. Afterwards weights, gradients and optimizers are as before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeAlias

from cputune.inside.applying.unchanged import as_before
from cputune.inside.draws import SEED, Draws
from cputune.inside.nearness import Turn, norm, plus

# How much each weight is moved: the deviation of a usual initialisation.
MOVED = 0.02

# The most backward passes of a step that are noted, and averaged one after the other.
REPLAYED = 4

# A turn gives batches and a factor for the items of a step. It is None if a batch was not trained
# on.
Trains: TypeAlias = Generator[tuple[object, float], None, Turn | None]


class Turns:
    """The turns of one rank: what it trains on for a question.

    Attributes:
        are_on: a question is being answered, so nothing else counts.
        is_spread: each sample has draws of its own, by its place in the batch.
        backwards: the gradients after each backward pass of the latest turn.
        averaged: those that its next passes get in place of their own.
        sent: the values that the latest turn exchanged with other ranks, each with its reduction.
        received: those that its next exchanges get in place of their own.
    """

    def __init__(self, draws: Draws) -> None:
        self.are_on = self.is_spread = False
        self.backwards: list[list[Any]] = []
        self.averaged: list[list[Any]] = []
        self.sent: list[tuple[str, Any]] = []
        self.received: list[Any] = []
        self._draws = draws
        self._parameters: list[Any] = []
        self._weights: list[Any] = []
        self._restored: tuple[object, ...] = ()
        self._seen: list[tuple[float, list[Any]]] = []

    # --- What the hooks see of a turn ---------------------------------------------------

    @property
    def is_trained(self) -> bool:
        """Whether the batch of this turn, or a part of it, was trained on."""
        return bool(self._seen)

    def trained(self, loss: Any) -> None:
        """Note that a batch of a question went forward and backward."""
        self._seen.append((float(loss), self._gradients()))

    def went_backward(self) -> None:
        """Called after each backward pass of a question: ranks average their gradients there."""
        place = len(self.backwards)
        if place < REPLAYED:
            self.backwards.append(self._gradients())
        if place < len(self.averaged):
            for parameter, gradient in zip(self._parameters, self.averaged[place], strict=True):
                parameter.grad = None if gradient is None else gradient.clone()

    def gathered(self, value: Any, *, reduction: str = "") -> Any:
        """What a rank gets if all ranks exchange values: its own, or those of all parts."""
        if not self.are_on:
            return value
        place = len(self.sent)
        self.sent.append((reduction, value))
        received = self.received[place] if place < len(self.received) else None
        return value if received is None else received

    def _gradients(self) -> list[Any]:
        return [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]

    # --- What a question trains on ------------------------------------------------------

    def of(
        self,
        batches: Sequence[Any],
        samples: int,
        *,
        share: float = 1.0,
        factor: float = 1.0,
        seed: int = SEED,
    ) -> Trains:
        """Batches together, each from the same state; None if one of them was not trained on."""
        loss, largest = 0.0, 0.0
        gradient: list[Any] | None = None
        for number, part in enumerate(batches):
            turn = yield from self.alone(
                part, samples, factor=factor, seed=seed, first=number * samples
            )
            if turn is None:
                return None
            loss += share * turn.loss
            largest = max(largest, turn.norm)
            gradient = plus(gradient, turn.gradients, share)
        return Turn(loss, gradient or [], share * largest * len(batches))

    def alone(
        self, batch: Any, samples: int, *, factor: float = 1.0, seed: int = SEED, first: int = 0
    ) -> Trains:
        """One batch, whose state is restored. ``first``: the place of its first sample."""
        with as_before(*self._restored):
            return (yield from self._once(batch, samples, factor=factor, seed=seed, first=first))

    def in_a_row(
        self, *batches: tuple[Any, int]
    ) -> Generator[tuple[object, float], None, list[Turn | None]]:
        """Batches, each with its samples, one with the state that the one before has left."""
        turns = []
        with as_before(*self._restored):
            for batch, samples in batches:
                turns.append((yield from self._once(batch, samples)))
        return turns

    def _once(
        self, batch: Any, samples: int, *, factor: float = 1.0, seed: int = SEED, first: int = 0
    ) -> Trains:
        self._seen.clear()
        self.backwards, self.sent = [], []
        for parameter in self._parameters:
            parameter.grad = None
        with self._draws.alike(samples, seed=seed, first=first if self.is_spread else None):
            yield batch, factor
        with sys.modules["torch"].no_grad():  # a step may move the weights, and back (SAM)
            for parameter, kept in zip(self._parameters, self._weights, strict=True):
                parameter.copy_(kept)
        if not self._seen:
            return None
        total, gradient = 0.0, []
        for loss, gradients in self._seen:
            total += loss
            gradient += gradients
        return Turn(total, gradient, norm(gradient))

    # --- The weights --------------------------------------------------------------------

    def move_weights(self) -> None:
        """Move every weight a little. The training does not continue with them."""
        torch = sys.modules["torch"]
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.add_(
                    torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * MOVED
                )
        self._weights = [parameter.detach().clone() for parameter in self._parameters]

    @contextlib.contextmanager
    def apart(
        self, parameters: list[Any], optimizers: Sequence[Any], *restored: object
    ) -> Iterator[None]:
        """Within, turns may be taken: no optimizer steps. Gradients and weights are put back.

        ``restored``: what a turn may change beside the parameters.
        """
        torch = sys.modules["torch"]
        gradients = [parameter.grad for parameter in parameters]
        weights = [parameter.detach().clone() for parameter in parameters]
        self._parameters, self._weights, self._restored = parameters, weights, restored
        steps = [(optimizer, vars(optimizer).get("step")) for optimizer in optimizers]
        for optimizer, _ in steps:
            optimizer.step = lambda *_, **__: None
        self.are_on = True
        try:
            yield
        finally:
            self.are_on = False
            for optimizer, step in steps:
                if step is None:
                    del optimizer.step
                else:
                    optimizer.step = step
            with torch.no_grad():
                for parameter, kept in zip(parameters, weights, strict=True):
                    parameter.copy_(kept)
            self._weights = []
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
