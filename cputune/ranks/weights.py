"""How far the weights of two shortened trainings are apart (``cputune.inside.trained_weights``)."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Of the way that weights go: rounding alone stays below it in fp32, and what ranks compute from
# their own samples does not.
SAME = 1e-3

# How many times as far as weights that began 1e-7 apart they may be.
ROUNDED = 3

# The same of a buffer: running figures, counters.
SAME_BUFFER = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A parameter or a buffer: how many numbers it has, and some of them at start and end."""

    kind: str
    numbers: int
    start: array[float]
    end: array[float]

    @property
    def way(self) -> float:
        """How far it goes."""
        return math.dist(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What rank 0 of a rehearsal has trained, by model and name, in a number of steps."""

    steps: int
    tensors: Mapping[str, Tensor]


def read(folder: Path) -> Weights | None:
    """What rank 0 has left in a folder; None if it has trained nothing that was seen."""
    try:
        header, _, content = (folder / "trained-0").read_bytes().partition(b"\n")
    except OSError:
        return None
    described = json.loads(header)
    numbers = array("d", content)
    tensors: dict[str, Tensor] = {}
    at = 0
    for model, held in enumerate(described["models"]):
        size = sum(taken for *_, taken in held)
        place = at
        for name, kind, count, taken in held:
            tensors[f"{model}.{name}"] = Tensor(
                kind=kind,
                numbers=count,
                start=numbers[place : place + taken],
                end=numbers[place + size : place + size + taken],
            )
            place += taken
        at += 2 * size
    return Weights(steps=described["steps"], tensors=tensors)


def comparable(typed: Weights | None, plan: Weights | None) -> bool:
    """Whether both have trained the same tensors from the same start in as many steps."""
    if typed is None or plan is None or typed.steps != plan.steps or not typed.tensors:
        return False
    if typed.tensors.keys() != plan.tensors.keys():
        return False
    pairs = [(tensor, plan.tensors[name]) for name, tensor in typed.tensors.items()]
    return all(
        len(one.start) == len(other.start)
        and math.dist(one.start, other.start) <= 1e-6 * math.hypot(*one.start) + 1e-12
        for one, other in pairs
    )


def apart(typed: Weights, plan: Weights) -> float:
    """How far the parameters are apart at the end, as a share of their way.

    The median over all numbers of the model: a few parameters have gradients that are rounding
    alone (the bias of keys in attention), and Adam makes them large.
    """
    shares = sorted(_shares(typed, plan, "parameter"))
    half = sum(numbers for _, numbers, _ in shares) / 2
    for share, numbers, _ in shares:
        half -= numbers
        if half <= 0:
            return share
    return 0.0


def farthest_buffer(typed: Weights, plan: Weights) -> tuple[float, str]:
    """The buffer that is farthest apart, and how far; 0 and no name if none has changed."""
    shares = ((share, name) for share, _, name in _shares(typed, plan, "buffer"))
    return max(shares, default=(0.0, ""))


def _shares(typed: Weights, plan: Weights, kind: str) -> Iterator[tuple[float, int, str]]:
    """For each tensor that moves: how far apart, its numbers, and its name."""
    for name, tensor in typed.tensors.items():
        distance = math.dist(tensor.end, plan.tensors[name].end)
        if tensor.kind == kind and (tensor.way or distance):
            share = distance / tensor.way if tensor.way else math.inf
            yield share, tensor.numbers, name.partition(".")[2]
