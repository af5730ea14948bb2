"""Hooks on torch itself, for scripts that have no Trainer and no Accelerator.

A batch is what a ``DataLoader`` gives, a step is one of the first optimizer that steps. What
cannot be measured so ends at its first step, before it has cost the user anything: it would
train to its end, and write its checkpoints where it always does.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from cputune.inside.carry import Patch
from cputune.inside.loop import Loop
from cputune.inside.meter import Meter, samples_of


def patches(meter: Meter, scratch: str | None) -> list[tuple[str, Patch]]:
    """What to do with torch's loaders, losses and optimizers, and with torch.save."""
    loop = _PlainLoop(meter)
    silent = [] if scratch is None else [("torch", lambda module: _keep_from_saving(module, meter))]
    return [
        *silent,
        ("torch._tensor", lambda module: _patch_backward(module.Tensor, loop)),
        ("torch.nn.modules.module", loop.models_of),
        ("torch.utils.data.dataloader", lambda module: _patch_loaders(module.DataLoader, loop)),
        ("torch.optim.optimizer", lambda module: _patch_optimizers(module, loop)),
        ("torch.optim.lr_scheduler", _let_schedules_end),
    ]


class _PlainLoop(Loop):
    """A loop over torch's own loaders and optimizers."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter, "pytorch")
        self._loader: Any = None
        self._watch_models: Callable[..., Any] | None = None
        self._watching: Any = None

    @property
    def idle(self) -> bool:
        """Whether a framework trains here, whose own hooks measure."""
        return not self.meter.seen.isdisjoint(("Trainer", "Accelerator", "Lightning"))

    def models_of(self, module: ModuleType) -> None:
        """Where the calls of every model can be seen."""
        self._watch_models = getattr(module, "register_module_forward_pre_hook", None)

    def over(self, loader: Any, iterate: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of a loader, as often as the script trains on them."""
        if self._watching is None and self._watch_models is not None and self.meter.steps == 0:
            self._watching = self._watch_models(self._called)
        for batch in self.batches(iterate):
            self._loader = loader
            yield batch

    def backward(self, loss: Any) -> None:
        """The loader whose batch goes backward first is the one that is trained on."""
        if self.meter.steps == 0 and self.samples:
            self._see_loader()
        super().backward(loss)

    def stepped(self, optimizer: Any) -> None:
        """The first optimizer that ever did is the clock."""
        super().stepped(optimizer)
        if self._watching is not None:
            self._watching.remove()
            self._watching = None

    def _called(self, model: Any, *args: Any) -> None:
        """The first model that is called to train shows the precision: before its layers."""
        if not self.idle and model.training and sys.modules["torch"].is_grad_enabled():
            self.meter.watch(model)

    def _see_loader(self) -> None:
        facts, data = self.meter.facts, getattr(self._loader, "dataset", None)
        facts["dataset"] = type(data).__name__
        facts["dataset_samples"] = samples_of(data)
        batch = getattr(getattr(self._loader, "batch_sampler", None), "batch_size", None)
        if isinstance(batch, int):
            facts["batch"] = batch


def _patch_loaders(cls: Any, loop: _PlainLoop) -> None:
    original = cls.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        if loop.idle:
            iterator: Iterator[Any] = original(self)
            return iterator
        return loop.over(self, lambda: original(self))

    cls.__iter__ = iterate


def _patch_backward(cls: Any, loop: _PlainLoop) -> None:
    original = cls.backward

    @functools.wraps(original)
    def backward(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not loop.idle:
            loop.backward(self)

    cls.backward = backward


def _patch_optimizers(module: ModuleType, loop: _PlainLoop) -> None:
    before = getattr(module, "register_optimizer_step_pre_hook", None)  # torch 2.0 and later
    after = getattr(module, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        return
    before(lambda *_: _refuse_what_is_not_measured(loop))
    after(lambda optimizer, *_: None if loop.idle else loop.stepped(optimizer))


def _refuse_what_is_not_measured(loop: _PlainLoop) -> None:
    meter = loop.meter
    if meter.framework is not None and not (loop.idle and meter.framework == "pytorch"):
        return
    if "Accelerator" in meter.seen:
        meter.refuse(
            "it has an Accelerator, but steps an optimizer outside a data loader that the "
            "Accelerator has prepared: give the loader to accelerator.prepare()",
            hopeless=True,
        )
    meter.refuse(
        "it trains by a loop of its own that takes no batch from a torch.utils.data.DataLoader, "
        "so its samples cannot be counted: iterate a DataLoader",
        hopeless=True,
    )


def _let_schedules_end(module: ModuleType) -> None:
    """A trial trains without end, and OneCycleLR raises a ValueError after its last step."""
    cls = module.OneCycleLR
    original = cls.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.last_epoch + 1 < self.total_steps:
            original(self, *args, **kwargs)

    cls.step = step


def _keep_from_saving(module: ModuleType, meter: Meter) -> None:
    """Once training has begun, files are not saved: checkpoints of a trial are nobody's."""
    original = module.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if meter.framework is None or not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)

    module.save = save  # type: ignore[attr-defined]
