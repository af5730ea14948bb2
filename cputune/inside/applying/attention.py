"""Attention with dropout, multiplied in the type of its inputs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Attention:
    """Computes ``scaled_dot_product_attention`` with dropout.

    torch's fused kernel for CPUs has no dropout. If there is dropout, torch multiplies in fp32,
    whatever the type of the inputs. Here the factors of all matrix products have the type of the
    inputs. As in the fused kernel, logits, softmax and their gradients are fp32, and probabilities
    are rounded to that type before they are multiplied by the values. ``kept(count, p)`` draws the
    mask: ``count`` whole numbers, each of which is 1 with probability p, else 0.

    Attributes:
        used: how often attention was computed here.
    """

    def __init__(self, torch: Any, kept: Callable[[int, float], Tensor]) -> None:
        self.used = 0
        self._torch = torch
        self._kept = kept
        self._function = _function_of(torch)

    def fits(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool
    ) -> bool:
        """Whether attention of these inputs can be computed here."""
        torch = self._torch
        tensors = (query, key, value)
        if any(type(tensor) is not torch.Tensor or tensor.dim() != 4 for tensor in tensors):
            return False
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return False
        dtypes = {self._dtype(tensor) for tensor in tensors}
        if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float32}:
            return False
        if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
            return False
        if attn_mask is None:
            return True
        return not is_causal and not attn_mask.requires_grad

    def _dtype(self, tensor: Tensor) -> Any:
        """The type in which this tensor is multiplied: autocast's, if it is on."""
        torch = self._torch
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return tensor.dtype
        if hasattr(torch, "get_autocast_dtype"):
            lowered = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        else:  # before torch 2.4
            lowered = torch.is_autocast_cpu_enabled() and torch.get_autocast_cpu_dtype()
        return lowered or tensor.dtype

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
    ) -> Tensor:
        """The attention of inputs that fit: (samples, heads, queries, numbers of a value)."""
        self.used += 1
        torch = self._torch
        dtype = self._dtype(query)
        if scale is None:
            scale = 1 / math.sqrt(query.shape[3])
        mask = self._added(attn_mask)
        if is_causal:
            mask = torch.full((query.shape[2], key.shape[2]), -math.inf).triu_(1)
        with torch.autocast("cpu", enabled=False):
            attended: Tensor = self._function.apply(
                query.to(dtype), key.to(dtype), value.to(dtype), mask, self._kept, dropout_p, scale
            )
        return attended

    def _added(self, attn_mask: Tensor | None) -> Tensor | None:
        """The mask as numbers in fp32 that are added to the logits."""
        torch = self._torch
        if attn_mask is None:
            return None
        if attn_mask.dtype != torch.bool:
            return attn_mask.to(torch.float32)
        return torch.zeros(attn_mask.shape).masked_fill_(~attn_mask, -math.inf)


def _function_of(torch: Any) -> Any:
    """The function of autograd; torch is loaded by now."""

    @contextlib.contextmanager
    def exact_in_bf16(dtype: Any) -> Iterator[None]:
        """Allow oneDNN to multiply by bf16 instructions: the fp32 factors are bf16 numbers.

        So nothing is rounded, and the sums are fp32. oneDNN may still take its fp32 kernel.
        """
        matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
        if dtype != torch.bfloat16 or not hasattr(matmul, "fp32_precision"):
            yield
            return
        before = matmul.fp32_precision
        matmul.fp32_precision = "bf16"
        try:
            yield
        finally:
            matmul.fp32_precision = before

    class DroppedAttention(torch.autograd.Function):  # type: ignore[misc]
        """With P the probabilities, M the mask and d = 1 - p:

        O = (P M / d) V, dV = (P M)' dO / d, dS = P (M (dO / d) V' - rowsum(dO O)).
        """

        @staticmethod
        def forward(
            ctx: Any,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            mask: Tensor | None,
            draw: Callable[[int, float], Tensor],
            p: float,
            scale: float,
        ) -> Tensor:
            samples, heads, queries, _ = query.shape
            keys, dtype = key.shape[2], query.dtype
            # Copies, head after head: products of strided matrices take twice as long.
            query, key, value = (x.reshape(-1, *x.shape[2:]) for x in (query, key, value))
            wide, later = query.float(), scale
            if math.frexp(scale)[0] == 0.5:  # a power of two scales without rounding
                wide, later = query.float() * scale, 1.0
            with exact_in_bf16(dtype):
                logits = torch.bmm(wide, key.float().transpose(1, 2))
            if later != 1.0:
                logits.mul_(later)
            by_head = logits.view(samples, heads, queries, keys)
            if mask is not None:
                by_head.add_(mask)
            torch.softmax(logits, -1, out=logits)
            if mask is not None:
                # torch lets a query that sees no key attend to nothing.
                blind = (mask == -math.inf).all(-1, keepdim=True)
                if blind.any():
                    by_head.masked_fill_(blind, 0)
            shares = logits.to(dtype)
            kept = draw(shares.numel(), 1 - p).view(shares.shape)
            dropped = torch.empty_like(shares).copy_(kept).mul_(shares)
            attended = torch.bmm(dropped, value * (1 / (1 - p)))
            ctx.save_for_backward(query, key, value, attended, shares, dropped)
            ctx.p, ctx.scale = p, scale
            return attended.view(samples, heads, queries, -1)

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            query, key, value, attended, shares, dropped = ctx.saved_tensors
            leading, dtype = gradient.shape[:2], query.dtype
            with torch.autocast("cpu", enabled=False):
                gradient = gradient.reshape(attended.shape)
                scaled = gradient * (1 / (1 - ctx.p))
                of_value = torch.bmm(dropped.transpose(1, 2), scaled)
                along = (gradient.float() * attended.float()).sum(-1, keepdim=True)
                with exact_in_bf16(dtype):
                    of_shares = torch.bmm(scaled.float(), value.float().transpose(1, 2))
                # Operands of one type: with two, torch converts them number by number.
                of_shares.mul_(dropped.float()).addcmul_(shares.float(), along, value=-1)
                of_logits = of_shares.to(dtype)
                of_query = torch.bmm(of_logits, key * ctx.scale)
                of_key = torch.bmm(of_logits.transpose(1, 2), query * ctx.scale)
            gradients = (x.view(*leading, *x.shape[1:]) for x in (of_query, of_key, of_value))
            return *gradients, None, None, None, None

    return DroppedAttention
