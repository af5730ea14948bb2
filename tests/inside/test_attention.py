"""Attention with dropout is that of torch with the same mask, in value and in gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = pytest.mark.torch

SAMPLES, HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 3, 20, 33, 16, 24
P = 0.1

EXACT = {"float32": 2e-6, "bfloat16": 1e-2}
"""The distance from the same in fp64, as a share of its norm: bf16 rounds each factor by 2^-9."""


def inputs(dtype: Any) -> list[Tensor]:
    import torch

    torch.manual_seed(3)
    query = torch.randn(SAMPLES, QUERIES, HEADS, WIDTH).transpose(1, 2)
    key = torch.randn(SAMPLES, HEADS, KEYS, WIDTH)
    value = torch.randn(SAMPLES, HEADS, KEYS, VALUES)
    return [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]


def mask_named(kind: str) -> Tensor | None:
    import torch

    torch.manual_seed(4)
    sees = torch.rand(SAMPLES, 1, QUERIES, KEYS) < 0.7
    masks = {
        "keys": sees[:, :, :1],
        "numbers": torch.randn(SAMPLES, 1, QUERIES, KEYS),
        "of all samples": sees[0, 0],
    }
    return masks.get(kind)


def expected(
    tensors: list[Tensor], mask: Tensor | None, causal: bool, kept: Tensor, scale: float
) -> list[Tensor]:
    """The attention and its gradients, one operation after another in fp64."""
    import torch

    query, key, value = (tensor.detach().double().requires_grad_() for tensor in tensors)
    logits = query @ key.transpose(-1, -2) * scale
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -math.inf)
    elif mask is not None:
        logits = logits + mask.double()
    if causal:
        logits = logits + torch.full((QUERIES, KEYS), -math.inf).triu(1)
    attended = (torch.softmax(logits, -1) * kept.double() / (1 - P)) @ value
    gradients = torch.autograd.grad(attended.sum(), (query, key, value))
    return [attended.detach(), *gradients]


@pytest.mark.parametrize("dtype", list(EXACT))
@pytest.mark.parametrize("kind", ["none", "keys", "numbers", "of all samples", "causal", "scaled"])
def test_value_and_gradients_are_those_of_the_formula(dtype: str, kind: str) -> None:
    import torch

    from cputune.inside.applying.attention import Attention

    drawn: list[Tensor] = []

    def kept(count: int, p: float) -> Tensor:
        drawn.append((torch.rand(count) < p).to(torch.int16))
        return drawn[-1]

    tensors, mask, causal = inputs(getattr(torch, dtype)), mask_named(kind), kind == "causal"
    scale = 0.5 if kind == "scaled" else None
    attention = Attention(torch, kept)
    assert attention.fits(*tensors, mask, causal)
    attended = attention.attend(*tensors, mask, P, causal, scale)
    assert attended.dtype == getattr(torch, dtype)
    found = [attended.detach(), *torch.autograd.grad(attended.sum(), tensors)]
    shape = SAMPLES, HEADS, QUERIES, KEYS
    wanted = expected(tensors, mask, causal, drawn[0].view(shape), scale or WIDTH**-0.5)
    for got, exact in zip(found, wanted, strict=True):
        assert got.shape == exact.shape
        assert float((got.double() - exact).norm() / exact.norm()) < EXACT[dtype]


def test_logits_are_not_rounded_to_bf16() -> None:
    """Rounded ones end 0.011 from the same in fp64: the softmax of large logits shows it."""
    import torch

    from cputune.inside.applying.attention import Attention

    torch.manual_seed(0)
    query, key = (3 * torch.randn(2, 4, 128, 64) for _ in range(2))
    tensors = [x.bfloat16().requires_grad_() for x in (query, key, torch.randn(2, 4, 128, 64))]
    attention = Attention(torch, lambda count, p: torch.ones(count, dtype=torch.int16))
    attended = attention.attend(*tensors, None, P, False, None).detach().double() * (1 - P)
    query, key, value = (x.detach().double() for x in tensors)
    exact = torch.softmax(query @ key.transpose(-1, -2) / 8, -1) @ value
    assert float((attended - exact).norm() / exact.norm()) < 0.006


def test_a_query_that_sees_no_key_attends_to_nothing_and_learns_nothing() -> None:
    import torch

    from cputune.inside.applying.attention import Attention

    tensors = inputs(torch.float32)
    mask = torch.ones(SAMPLES, 1, QUERIES, KEYS, dtype=torch.bool)
    mask[1, 0, 5] = False
    attention = Attention(torch, lambda count, p: torch.ones(count, dtype=torch.int16))
    attended = attention.attend(*tensors, mask, P, False, None)
    gradients = torch.autograd.grad(attended.sum(), tensors)
    assert not attended[1, :, 5].any()
    assert not gradients[0][1, :, 5].any()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize(
    "name", ["fp64", "three dimensions", "fewer heads of keys", "a mask that is trained", "fp16"]
)
def test_the_rest_is_left_to_torch(name: str) -> None:
    import torch

    from cputune.inside.applying.attention import Attention

    query, key, value = inputs(torch.float32)
    mask = None
    if name == "fp64":
        query, key, value = query.double(), key.double(), value.double()
    elif name == "fp16":
        query, key, value = query.half(), key.half(), value.half()
    elif name == "three dimensions":
        query, key, value = query[0], key[0], value[0]
    elif name == "fewer heads of keys":
        key, value = key[:, :1], value[:, :1]
    else:
        mask = torch.zeros(QUERIES, KEYS, requires_grad=True)
    attention = Attention(torch, lambda count, p: torch.ones(count, dtype=torch.int16))
    assert not attention.fits(query, key, value, mask, False)


def test_autocast_decides_the_type_and_gradients_have_that_of_their_inputs() -> None:
    import torch

    from cputune.inside.applying.attention import Attention

    tensors = inputs(torch.float32)
    attention = Attention(torch, lambda count, p: torch.ones(count, dtype=torch.int16))
    before = torch.backends.mkldnn.matmul.fp32_precision
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention.fits(*tensors, None, False)
        attended = attention.attend(*tensors, None, P, False, None)
        assert attended.dtype == torch.bfloat16
        attended.float().sum().backward()
    assert all(t.grad is not None and t.grad.dtype == torch.float32 for t in tensors)
    assert torch.backends.mkldnn.matmul.fp32_precision == before
