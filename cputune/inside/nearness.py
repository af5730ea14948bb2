"""How far two turns of a model differ in loss and gradients."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


# A loss is compared with at least this: one near zero (GRPO's) is a difference of larger ones.
LEAST_LOSS = 1.0


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


def gradients_apart(one: Any, other: Any) -> float:
    """The norm of the difference of two gradients, relative."""
    scale = max(norm(one[1]), other[2])
    return norm(plus(list(one[1]), other[1], -1.0)) / scale if scale else 0.0


def distance(one: Any, other: Any) -> float:
    """The larger relative difference of loss and gradient."""
    if len(one[1]) != len(other[1]):
        return math.inf
    loss: float = abs(one[0] - other[0]) / max(abs(one[0]), abs(other[0]), LEAST_LOSS)
    return max(loss, gradients_apart(one, other))


def differ(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), abs(other), 1e-30)
