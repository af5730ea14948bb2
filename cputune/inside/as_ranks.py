"""Trains on the parts of a batch as ranks would, which average their gradients."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from cputune.inside.nearness import ALIKE, Turn, distance, plus
from cputune.inside.turns import REPLAYED, Trains, Turns


class AsRanks:
    """What ranks make of a batch.

    Attributes:
        weighs_items: each rank divides its loss by the items of all; None: not known.
    """

    def __init__(self, turns: Turns) -> None:
        self.weighs_items: bool | None = None
        self._turns = turns

    def closest(self, cuttings: Sequence[Sequence[Any]], count: int, uncut: Turn) -> Trains:
        """What comes closest to the uncut batch, of several ways to cut it."""
        turns = list[Turn]()
        for pieces in cuttings:
            turn = yield from self.together(pieces, count // len(pieces), uncut)
            if turn is None:
                return None
            turns.append(turn)
            if distance(uncut, turn) < ALIKE:
                break
        return min(turns, key=functools.partial(distance, uncut))

    def together(self, pieces: Sequence[Any], samples: int, uncut: Turn) -> Trains:
        """Parts of a batch as ranks train on them, which average after each backward pass.

        It matters if a step goes backward more than once and uses the first gradient in between
        (SAM): then the passes are repeated with the average of the earlier ones.
        """
        if self.weighs_items:
            share = 1.0
        else:
            share = 1 / len(pieces)
        turns = self._turns
        turns.averaged = []
        joined = yield from turns.of(pieces, samples, share=share)
        passes = len(turns.backwards)
        if joined is None or distance(uncut, joined) < ALIKE:
            return joined
        if turns.sent:
            return (yield from self._exchanging(pieces, samples, uncut))
        if not 1 < passes <= REPLAYED:
            return joined
        try:
            for place in range(passes - 1):
                sums: list[Any] | None = None
                for number, part in enumerate(pieces):
                    turn = yield from turns.alone(part, samples, first=number * samples)
                    if turn is None or place >= len(turns.backwards):
                        return joined
                    sums = plus(sums, turns.backwards[place], share)
                turns.averaged.append(sums or [])
            return (yield from turns.of(pieces, samples, share=share))
        finally:
            turns.averaged = []

    def _exchanging(self, pieces: Sequence[Any], samples: int, uncut: Turn) -> Trains:
        """Parts of a batch as ranks train on them that exchange values (their numbers of tokens).

        A loss that is divided by the tokens of all ranks is multiplied by their number, because
        their gradients are averaged. Here the script sees one rank, so both scales are tried.
        """
        of_parts: list[list[tuple[str, Any]]] = []
        for number, part in enumerate(pieces):
            yield from self._turns.alone(part, samples, first=number * samples)
            of_parts.append(self._turns.sent)
        self._turns.received = exchanged(of_parts)
        try:
            turns = list[Turn]()
            for share in (1 / len(pieces), 1.0):
                turn = yield from self._turns.of(pieces, samples, share=share)
                if turn is None or distance(uncut, turn) < ALIKE:
                    return turn
                turns.append(turn)
        finally:
            self._turns.received = []
        return min(turns, key=functools.partial(distance, uncut))


def exchanged(of_parts: Sequence[Sequence[tuple[str, Any]]]) -> list[Any]:
    """What every rank gets of the values of all: one after the other, their sum or their mean.

    None: it keeps its own.
    """
    torch, received = sys.modules["torch"], list[Any]()
    for together in zip(*of_parts, strict=False):
        values = [value for _, value in together]
        if not all(isinstance(value, torch.Tensor) for value in values):
            break
        reduction = together[0][0]
        if not reduction:
            rows = [value if value.ndim else value[None] for value in values]
            received.append(torch.cat(rows))
        elif reduction == "none":
            received.append(None)
        else:
            total = sum(values)
            received.append(total / len(values) if reduction == "mean" else total)
    return received
