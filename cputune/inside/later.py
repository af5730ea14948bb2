"""A Trainer as it is later in its training: what a loss makes of the number of steps is asked now.

A loss that changes after a warm-up (``self.state.global_step >= 500``) is the same as ever in the
updates that a model is asked at. With the counters of a later step it is not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the training: at the last step of each the loss is asked."""


def later_steps(trainer: Any, steps: int | None) -> list[int]:
    """The steps of a Trainer at which its loss is asked; none if its length is not known."""
    now = getattr(getattr(trainer, "state", None), "global_step", None)
    if not isinstance(now, int) or now < 1 or not steps:
        return []
    return [at for share in SHARES if (at := int(share * steps) - 1) > now]


@contextlib.contextmanager
def at_step(trainer: Any, step: int) -> Iterator[None]:
    """Let a Trainer have the counters of this step; it has taken one at least."""
    state = trainer.state
    kept = state.global_step, state.epoch
    state.global_step = step
    if state.epoch is not None:
        state.epoch = state.epoch / kept[0] * step
    try:
        yield
    finally:
        state.global_step, state.epoch = kept
