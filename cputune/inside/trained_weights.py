"""Keeps what a whole shortened script has trained, for another launch to be compared with.

Of each model that is trained: numbers of its parameters and buffers, when it is first called and
after the last step of an optimizer. ``cputune.ranks.weights`` reads them.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterator
from typing import Any

from cputune.inside.applying.hooking import Hook

# Of all tensors together, and of each: every n-th one.
MOST_NUMBERS, LEAST_NUMBERS = 50_000, 16

# How much weights are changed, relatively, to see what rounding alone makes of them.
NUDGE = 1e-7

FILE = "trained"


class TrainedWeights:
    """One in each process of a rehearsal. ``nudged``: its weights begin slightly changed."""

    def __init__(self, folder: str, rank: int, *, nudged: bool) -> None:
        self._path = os.path.join(folder, f"{FILE}-{rank}")
        self._nudged = nudged
        self._models: list[Any] = []
        self._starts: list[list[float]] = []
        self._root: Any = None
        self._steps = 0

    def hooks(self) -> list[Hook]:
        """Every call of a module."""
        return [("torch.nn.modules.module", "", self._watch)]

    def _watch(self, modules: Any) -> None:
        modules.register_module_forward_pre_hook(self._called)
        modules.register_module_forward_hook(self._returned)

    def _called(self, module: Any, *_: object) -> None:
        if self._root is not None:
            return
        self._root = module
        if not module.training or not sys.modules["torch"].is_grad_enabled():
            return
        model = module
        if type(module).__name__ == "DistributedDataParallel":
            model = module.module
        if any(model is noted for noted in self._models):
            return
        if self._nudged:
            _nudge(model)
        self._models.append(model)
        self._starts.append(list(_numbers(model)))

    def _returned(self, module: Any, *_: object) -> None:
        if module is self._root:
            self._root = None

    def stepped(self) -> None:
        """Write what is trained now; a later step writes it again."""
        self._steps += 1
        described, numbers = [], array("d")
        for model, start in zip(self._models, self._starts, strict=True):
            end = list(_numbers(model))
            if len(end) != len(start):  # layers were added meanwhile
                return
            described.append([[name, kind, n, taken] for name, kind, n, taken in _tensors(model)])
            numbers.extend(start)
            numbers.extend(end)
        with open(self._path + ".new", "wb") as file:
            header = {"steps": self._steps, "models": described}
            file.write(json.dumps(header).encode() + b"\n" + numbers.tobytes())
        os.replace(self._path + ".new", self._path)


def _held(model: Any) -> Iterator[tuple[str, str, Any]]:
    for name, tensor in model.named_parameters():
        yield name, "parameter", tensor
    for name, tensor in model.named_buffers():
        yield name, "buffer", tensor


def _tensors(model: Any) -> Iterator[tuple[str, str, int, int]]:
    """Name and kind of each tensor, its numbers, and how many of them are taken."""
    held = list(_held(model))
    most = max(LEAST_NUMBERS, MOST_NUMBERS // max(1, len(held)))
    for name, kind, tensor in held:
        count = int(tensor.numel())
        yield name, kind, count, min(count, most)


def _numbers(model: Any) -> Iterator[float]:
    """Those that are taken, one tensor after the other."""
    torch = sys.modules["torch"]
    for (_, _, count, taken), (_, _, tensor) in zip(_tensors(model), _held(model), strict=True):
        flat = tensor.detach().reshape(-1)
        yield from flat[:: max(1, count // max(1, taken))][:taken].to(torch.float64).tolist()


def _nudge(model: Any) -> None:
    torch = sys.modules["torch"]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.mul_((1 + NUDGE * (2 * noise - 1)).to(parameter.dtype))
