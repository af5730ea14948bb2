"""What torch does on these cores is tried, and the training draws what it would have drawn."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_a_training_draws_the_same_numbers_after_it() -> None:
    import torch

    from cputune.inside.observations import bf16_time, mask_seconds

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    seconds, ratio = mask_seconds(torch), bf16_time(torch)
    assert torch.equal(torch.rand(3), expected)
    assert min(seconds, ratio) > 0
