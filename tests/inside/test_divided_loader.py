"""The loader that a loop of the script's own trains on gets the batch of one rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cputune.inside.carry import Carrier, Force


class RefusedError(Exception):
    pass


def refuse(reason: str) -> Any:
    raise RefusedError(reason)


def divided(own: Any, steps: int, **force: Any) -> int:
    """The batch of a loader of two ranks."""
    loader = SimpleNamespace(batch_size=own, batch_sampler=SimpleNamespace(batch_size=own))
    carrier = Carrier(Force(world_size=2, **force), refuse)
    carrier.divide_loader(loader, steps)
    assert loader.batch_size == loader.batch_sampler.batch_size, "a stream is read by the former"
    return int(loader.batch_size)


def test_a_step_of_all_ranks_takes_what_it_took() -> None:
    assert divided(8, 2, samples_per_rank=8) == 4


def test_batches_that_the_script_counts_by_hand_are_known_by_the_trial() -> None:
    """The framework is told of one, and the script takes four."""
    assert divided(8, 1, samples_per_rank=16, accumulation=4) == 4


def test_the_accumulation_of_a_loop_stays() -> None:
    with pytest.raises(RefusedError, match="4 samples of a rank cannot be cut into the script's 8"):
        divided(1, 8, samples_per_rank=4)


def test_a_batch_that_cannot_be_seen_is_refused_on_several_ranks() -> None:
    with pytest.raises(RefusedError, match="cannot be seen, nor divided"):
        divided(None, 1, samples_per_rank=4)
