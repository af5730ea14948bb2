"""Finds a loop that changes its weights without an optimizer of torch."""

from __future__ import annotations

from typing import Any

from cputune.inside.applying.hooking import Original


class WeightsByHand:
    """Compares a weight of the first loss when a later loss goes backward."""

    # Numbers of a weight that are compared; an embedding has millions.
    LOOKED_AT = 1000

    def __init__(self) -> None:
        self._optimizers = False
        self._before: tuple[Any, Any] | None = None

    def optimizer_made(
        self, original: Original, optimizer: object, *args: object, **kwargs: object
    ) -> None:
        """Note that the script has an optimizer: its steps are seen."""
        self._optimizers = True
        original(optimizer, *args, **kwargs)

    def changed(self, loss: Any) -> bool:
        """Whether a weight is another than when the first loss went backward."""
        if self._optimizers:
            return False
        if self._before is None:
            weight = weight_of(loss)
            if weight is not None:
                self._before = weight, self._look(weight).clone()
            return False
        weight, before = self._before
        return not bool((self._look(weight) == before).all())

    def _look(self, weight: Any) -> Any:
        return weight.detach().reshape(-1)[: self.LOOKED_AT]


def weight_of(loss: Any) -> Any:
    """The weight nearest to a loss; None without one."""
    nodes = [getattr(loss, "grad_fn", None)]
    visited: set[object] = set()
    for node in nodes:
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            return node.variable
        nodes += [following for following, _ in node.next_functions]
    return None
