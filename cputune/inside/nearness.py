"""How far two turns of a model differ in loss and gradients."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


# Of fp32, relative.
ROUNDING = 1e-7

# Turns that differ by less differ by rounding only.
ALIKE = 1e-4

# A loss is compared with at least this: one near zero (GRPO's) is a difference of larger ones.
LEAST_LOSS = 1.0


class Turn(NamedTuple):
    """What a model makes of a batch, or of its parts together.

    Attributes:
        loss: of the batch.
        gradients: of each parameter, after each loss of the batch.
        norm: of the gradients; of parts that of the largest one, scaled to the whole.
    """

    loss: float
    gradients: Sequence[Any]
    norm: float


def norm(gradients: Sequence[Tensor | None]) -> float:
    """The norm of gradients together, in fp64."""
    torch, squares = sys.modules["torch"], 0.0
    for gradient in gradients:
        if gradient is not None:
            if gradient.is_sparse:
                held = gradient.coalesce().values()
            else:
                held = gradient
            squares += float(torch.linalg.vector_norm(held, dtype=torch.float64)) ** 2
    if math.isfinite(squares):
        return math.sqrt(squares)
    return math.nan


def plus(sums: list[Any] | None, other: Sequence[Any], share: float) -> list[Any]:
    """Gradients and a share of others, in fp64."""
    if sums is None:
        sums = [None] * len(other)
    return [sum_of(total, value, share) for total, value in zip(sums, other, strict=False)]


def sum_of(total: Any, value: Any, share: float) -> Any:
    if value is None:
        return total
    part = value * share
    if total is None:
        return part
    return total + part


def gradients_apart(one: Turn, other: Turn) -> float:
    """The norm of the difference of two gradients, relative."""
    scale = max(norm(one.gradients), other.norm)
    return norm(plus(list(one.gradients), other.gradients, -1.0)) / scale if scale else 0.0


def distance(one: Turn, other: Turn) -> float:
    """The larger relative difference of loss and gradient."""
    if len(one.gradients) != len(other.gradients):
        return math.inf
    loss = abs(one.loss - other.loss) / max(abs(one.loss), abs(other.loss), LEAST_LOSS)
    return max(loss, gradients_apart(one, other))


def differ(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-30)
