"""Steps of ranks become steps of the job."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from cputune import Step
from cputune.ranks.gather import of_rank
from cputune.ranks.job import Gather


def step(*, seconds: float = 1.0, samples: int = 4, **more: Any) -> Step:
    return Step(seconds=seconds, samples=samples, **more)


def test_a_step_of_the_job_is_its_slowest_rank_and_all_samples() -> None:
    gather = Gather(2)
    assert gather.add(0, 1, step(seconds=1.0, loss=2.0, delayed_seconds=0.1, size=96)) is None
    whole = gather.add(1, 1, step(seconds=1.5, loss=4.0, delayed_seconds=0.3, size=64))
    assert (whole.seconds, whole.samples, whole.loss, whole.delayed_seconds) == (1.5, 8, 3.0, 0.3)
    assert whole.size == 96, "of the rank that has the most to do"
    quiet: Any = {"event": "step", "seconds": 1.0, "samples": 4, "loss": None, "delayed": 0.0}
    assert of_rank(quiet) == step(delayed_seconds=0.0)


@given(st.permutations([(rank, number) for rank in range(3) for number in range(1, 4)]))
def test_ranks_may_tell_their_steps_in_any_order(order: list[tuple[int, int]]) -> None:
    gather = Gather(3)
    whole = [gather.add(rank, number, step(seconds=number)) for rank, number in order]
    assert sorted(s.seconds for s in whole if s is not None) == [1, 2, 3]
    assert gather.count == 3


def test_the_short_batch_at_the_end_of_an_epoch_is_passed_over() -> None:
    gather = Gather(1)
    seen = [gather.add(0, n, step(samples=k)) for n, k in enumerate([8, 8, 3, 8, 3], start=1)]
    assert [s.samples if s else None for s in seen] == [8, 8, None, 8, None]
