"""The batch of a rank: the global batch stays, whatever the number of ranks."""

from cputune.inside.applying.force import Force


def test_batch_per_rank_leaves_accumulation_alone() -> None:
    assert Force(world_size=4, batch_per_rank=6).batch(32, 4) == (6, 4)
