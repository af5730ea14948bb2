"""Whether a batch trains the same without its padding: loss and gradients of the model."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.unchanged import as_before

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

# What a model makes of a batch: a loss, or what has it, or outputs.
Run = Callable[[Any, Any], object]

# Relative differences of fp32 sums in another order; those of another loss are larger.
SAME_LOSS, SAME_GRADIENT = 1e-4, 1e-3

# How much larger they are if products are rounded to bf16.
COARSE = 50

FAILS = "the model fails without it"

OUTSIDE = "its loss is computed outside of the model, from an output for each token"


def difference(
    model: Module, uncut: object, shorter: object, run: Run, beside: object = None
) -> str | None:
    """Why the two batches do not train the same; None if loss and gradients are equal.

    ``beside`` computes the loss, if the model alone does not: its state (the queue of MoCo, a
    counter) is restored.
    """
    torch = sys.modules["torch"]
    try:
        with _quiet(torch, model) as coarse:
            with as_before(model, uncut, shorter, beside):
                loss, its_gradients, shapes = _figures(torch, model, run(model, uncut))
            with as_before(model, uncut, shorter, beside):
                other, gradients, own_shapes = _figures(torch, model, run(model, shorter))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{FAILS} ({type(error).__name__}: {lines[0][:120]})"
    if shapes != own_shapes:
        return OUTSIDE
    slack = COARSE if coarse else 1
    if not abs(loss - other) <= slack * SAME_LOSS * max(abs(loss), 1e-3):
        return f"the loss counts it: {loss:.4f}, and {other:.4f} without"
    apart = math.dist(its_gradients, gradients)
    if not apart <= slack * SAME_GRADIENT * max(math.hypot(*its_gradients), 1e-6):
        return f"the gradient changes by {apart / math.hypot(*its_gradients):.1%} without it"
    return None


def _figures(torch: Any, model: Any, outcome: Any) -> tuple[float, list[float], list[Any]]:
    """The loss, the norm of each parameter's gradient, and the shapes of what has no loss.

    Outputs without a loss are replaced by a weighted sum.
    """
    shapes: list[Any] = []
    loss: Any = outcome.get("loss") if isinstance(outcome, Mapping) else outcome
    loss = loss[0] if isinstance(loss, (tuple, list)) and loss else loss
    if not torch.is_tensor(loss) or loss.numel() != 1:
        outputs = outcome.items() if isinstance(outcome, Mapping) else enumerate(_all(outcome))
        generator, loss = torch.Generator().manual_seed(0), 0.0
        for name, value in outputs:
            for tensor in _all(value) if name != "past_key_values" else ():
                if torch.is_tensor(tensor) and tensor.requires_grad:
                    shapes.append(tensor.shape)
                    loss = loss + (tensor * torch.rand(tensor.shape, generator=generator)).sum()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, learnt, allow_unused=True)
    return float(loss.detach()), list(map(_norm, gradients)), shapes


def _norm(gradient: Tensor | None) -> float:
    if gradient is None:
        return 0.0
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return float(values.norm())


def _all(outcome: object) -> Iterator[Tensor]:
    if isinstance(outcome, (tuple, list)):
        for value in outcome:
            yield from _all(value)
    else:
        yield outcome


@contextlib.contextmanager
def _quiet(torch: ModuleType, model: Module) -> Iterator[bool]:
    """Dropout off, fp32 where the weights are; whether it is not."""
    training = [module for module in model.modules() if module.training]
    own_forward = model.__dict__.get("forward")  # accelerate's, under its autocast
    plain_forward = getattr(model, "_original_forward", None)
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    coarse = getattr(matmul, "fp32_precision", None) == "bf16"
    coarse |= any(parameter.dtype != torch.float32 for parameter in model.parameters())
    with contextlib.ExitStack() as held:
        held.enter_context(torch.enable_grad())
        if not coarse:
            held.enter_context(torch.autocast("cpu", enabled=False))
            if own_forward is not None and plain_forward is not None:
                model.forward = plain_forward
        model.eval()
        try:
            yield coarse
        finally:
            for module in training:
                module.training = True
            if own_forward is not None:
                model.forward = own_forward
