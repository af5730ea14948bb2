"""The batch of a rank: the global batch stays, whatever the number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputune.inside.force import Force, from_environment

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


def test_it_survives_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    force = Force(world_size=2, precision="bf16", samples_per_rank=4, cpus=((0,), (1,)))
    with monkeypatch.context() as patch:
        patch.setenv("CPUTUNE_TRIAL_FORCE", force.to_variable())
        told = from_environment()
    assert told is not None
    assert (told.world_size, told.precision, told.samples_per_rank) == (2, "bf16", 4)
    assert [list(cpus) for cpus in told.cpus or ()] == [[0], [1]]


def test_nothing_is_forced_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("CPUTUNE_TRIAL_FORCE", raising=False)
        assert from_environment() is None
