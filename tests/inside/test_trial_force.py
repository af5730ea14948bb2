"""The batch of a rank: the global batch stays, whatever the number of ranks."""

import json

import pytest
from hypothesis import given, strategies as st

from cputune.inside.applying.force import Force

small = st.integers(1, 64)


@given(batch=small, accumulation=st.integers(1, 8), ranks=st.integers(1, 16))
def test_the_global_batch_of_a_script_is_kept(batch: int, accumulation: int, ranks: int) -> None:
    force = Force(world_size=ranks)
    if batch * accumulation % ranks:
        with pytest.raises(ValueError, match="cannot be divided"):
            force.batch(batch, accumulation)
    else:
        each, steps = force.batch(batch, accumulation)
        assert each * steps * ranks == batch * accumulation


@given(samples=small, batch=small, accumulation=st.integers(1, 8))
def test_a_given_number_of_samples_is_met_exactly(
    samples: int, batch: int, accumulation: int
) -> None:
    each, steps = Force(world_size=2, samples_per_rank=samples).batch(batch, accumulation)
    assert each * steps == samples
    assert accumulation % steps == 0


def test_batch_per_rank_leaves_accumulation_alone() -> None:
    assert Force(world_size=4, batch_per_rank=6).batch(32, 4) == (6, 4)


def test_it_survives_the_way_into_a_rank() -> None:
    force = Force(world_size=2, arguments={"bf16": True, "use_cpu": True}, samples_per_rank=4)
    assert Force(**json.loads(force.to_json())) == force


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"bf16": True}, "bf16"), ({"bf16": False, "fp16": True}, "fp16"), ({}, "no")],
)
def test_an_accelerator_gets_the_precision_of_the_arguments(
    arguments: dict[str, bool], word: str
) -> None:
    assert Force(world_size=1, arguments=arguments).precision == word
