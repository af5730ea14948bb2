"""A Trainer as it is later in its training: a loss that depends on the step is checked now.

A loss may change after a warm-up (``self.state.global_step >= 500``), so it is computed with the
counters of later steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# Of the training: the loss is computed at the last step of each share.
SHARES = (0.25, 0.5, 0.75, 1.0)


def later_steps(trainer: Any, steps: int | None) -> list[int]:
    """Empty if the length of the training is not known."""
    now = getattr(getattr(trainer, "state", None), "global_step", None)
    if not isinstance(now, int) or now < 1 or not steps:
        return []
    return [at for share in SHARES if (at := int(share * steps) - 1) > now]


@contextlib.contextmanager
def at_step(trainer: Any, step: int) -> Iterator[None]:
    """Give a Trainer, which has taken a step, the counters of this step."""
    state = trainer.state
    kept = state.global_step, state.epoch
    state.global_step = step
    if state.epoch is not None:
        state.epoch = state.epoch / kept[0] * step
    try:
        yield
    finally:
        state.global_step, state.epoch = kept
