"""Hooks on ``accelerate.Accelerator``, for scripts with a training loop of their own."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from cputune.inside.carry import Patch
from cputune.inside.loop import Loop
from cputune.inside.meter import Meter, samples_of

_SILENT_METHODS = ("save", "save_state", "save_model", "init_trackers", "log")


def patches(meter: Meter, scratch: str | None) -> list[tuple[str, Patch]]:
    """What to do with each module of accelerate once it is loaded."""
    loop = _Loop(meter)
    return [
        ("accelerate.accelerator", lambda m: _patch_accelerator(m, loop, scratch)),
        ("accelerate.optimizer", lambda m: _patch_optimizer(m, loop)),
        ("accelerate.data_loader", lambda m: _patch_loaders(m, loop)),
    ]


class _Loop(Loop):
    """A loop over what an Accelerator has prepared."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter, "accelerate")
        self.batch_seen = False

    @property
    def idle(self) -> bool:
        """Whether a Trainer drives accelerate here; its own hooks measure then."""
        return self.meter.framework == "trainer"


def _patch_accelerator(module: ModuleType, loop: _Loop, scratch: str | None) -> None:
    cls = module.Accelerator
    meter = loop.meter
    original_init, original_backward = cls.__init__, cls.backward
    original_model, original_loader = cls.prepare_model, cls.prepare_data_loader

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        meter.seen.add("Accelerator")
        kwargs.pop("log_with", None)
        if scratch is not None and kwargs.get("project_dir") is not None:
            kwargs["project_dir"] = os.path.join(scratch, "output")
        original_init(self, *args, **kwargs)

    @functools.wraps(original_backward)
    def backward(self: Any, loss: Any, **kwargs: Any) -> Any:
        done = original_backward(self, loss, **kwargs)
        if not loop.idle:
            loop.backward(loss)
        return done

    @functools.wraps(original_model)
    def prepare_model(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original_model(self, model, *args, **kwargs)
        if not loop.idle:
            meter.watch(prepared)
        return prepared

    @functools.wraps(original_loader)
    def prepare_data_loader(self: Any, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original_loader(self, data_loader, *args, **kwargs)
        if not loop.idle and not loop.batch_seen and "Trainer" not in meter.seen:
            loop.batch_seen = True
            _see_batch(self, data_loader, meter)
        return prepared

    cls.__init__, cls.backward = init, backward
    cls.prepare_model, cls.prepare_data_loader = prepare_model, prepare_data_loader
    for name in _SILENT_METHODS:
        if hasattr(cls, name):
            setattr(cls, name, lambda self, *args, **kwargs: None)


def _see_batch(accelerator: Any, loader: Any, meter: Meter) -> None:
    """The batch of the first loader that is prepared, the one that is trained on."""
    batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(batch, int):
        return
    if getattr(accelerator, "split_batches", False):
        batch //= accelerator.num_processes
    meter.facts["batch"] = batch
    data = getattr(loader, "dataset", None)
    meter.facts["dataset"] = type(data).__name__
    meter.facts["dataset_samples"] = samples_of(data)


def _patch_optimizer(module: ModuleType, loop: _Loop) -> None:
    cls = module.AcceleratedOptimizer
    original = cls.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(self, *args, **kwargs)
        if not loop.idle and self.gradient_state.sync_gradients and not self.step_was_skipped:
            loop.stepped(self)
        return done

    cls.step = step


def _patch_loaders(module: ModuleType, loop: _Loop) -> None:
    for name in ("DataLoaderShard", "DataLoaderDispatcher"):
        cls = getattr(module, name, None)
        if cls is not None:
            _patch_iter(cls, loop)


def _patch_iter(cls: Any, loop: _Loop) -> None:
    original = cls.__iter__

    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[Any]:
        if loop.idle:
            iterator: Iterator[Any] = original(self)
            return iterator
        return loop.batches(lambda: original(self))

    cls.__iter__ = iterate
