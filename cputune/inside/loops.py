"""Hooks on training loops that scripts write themselves, over an Accelerator or torch alone.

A batch is what a loader gives. A step is one of the optimizer that steps first. A script that
cannot be measured so is ended at its first step: otherwise it would train to its end, and write its
checkpoints to their usual place.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cputune.inside.carry import Original, Patch, around
from cputune.inside.messages import Framework
from cputune.inside.meter import Meter, samples_of
from cputune.inside.trainer_hooks import silence

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.nn import Module
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.hooks import RemovableHandle

_SILENT_METHODS = ("save", "save_state", "save_model", "init_trackers", "log")


def patches(meter: Meter) -> list[tuple[str, Patch]]:
    """What to do with the loaders, losses and optimizers of accelerate and of torch."""
    loop = Loop(meter)

    def prepared(module: ModuleType) -> None:
        for cls in (module.DataLoaderShard, module.DataLoaderDispatcher):
            _patch_loaders(cls, loop, "accelerate")

    return [
        ("torch", lambda module: _keep_from_saving(module, meter)),
        ("accelerate.accelerator", lambda module: _patch_accelerator(module, loop)),
        ("accelerate.data_loader", prepared),
        (
            "torch.utils.data.dataloader",
            lambda module: _patch_loaders(module.DataLoader, loop, "pytorch"),
        ),
        ("torch._tensor", lambda module: _patch_backward(module.Tensor, loop)),
        ("torch.optim.optimizer", lambda module: _patch_optimizers(module, loop)),
        ("torch.optim.lr_scheduler", _let_schedules_end),
    ]


class Loop:
    """Which data loader a loop iterates, and which optimizer is its clock.

    Attributes:
        prepared: the loaders that an Accelerator has prepared, each with the script's own.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.prepared: list[tuple[object, object]] = []
        self._samples = 0
        self._loader: object = None
        self._running = 0
        self._clock: int | None = None
        self._watching: RemovableHandle | None = None

    def trains_by(self, framework: Framework) -> bool:
        """Whether a loop over this framework is what trains here; false beside a Trainer."""
        own = "accelerate" if "Accelerator" in self.meter.seen else "pytorch"
        return framework == own and self.meter.framework != "trainer"

    def over(
        self, loader: object, framework: Framework, iterate: Callable[[], Iterator[object]]
    ) -> Iterator[object]:
        """The batches of a loader; those of the loader that is trained on never end.

        A script evaluates and saves when its training loader is exhausted. A loader that is
        iterated inside another one's loop is an evaluation: its time does not count.
        """
        meter, nested = self.meter, self._running > 0
        since, trained = time.perf_counter(), meter.backwards
        if not nested or meter.framework is None:
            meter.begin(framework)
        if self._watching is None and meter.steps == 0:
            modules = sys.modules["torch.nn.modules.module"]
            self._watching = modules.register_module_forward_pre_hook(self._called)
        self._running += 1
        try:
            while True:
                before = meter.backwards
                for batch in iterate():
                    self._samples, self._loader = meter.see_batch(batch), loader
                    yield batch
                if meter.backwards == before:
                    return
        finally:
            self._running -= 1
            if nested and meter.backwards == trained:
                meter.resume(since)

    def _called(self, model: Module, *args: object) -> None:
        """Let the first model that is called to train report its precision, before its layers run.

        Later calls are not looked at: what is compiled would be compiled with the hook.
        """
        trains = model.training and sys.modules["torch"].is_grad_enabled()
        if trains and self.meter.watch(model) and self._watching is not None:
            self._watching.remove()

    def backward(self, loss: object, accelerator: Accelerator | None = None) -> None:
        """Note that a loss went backward; a batch with several losses is one batch.

        The loader whose batch goes backward first is the one that is trained on. The batches of the
        first step are counted, since a script that accumulates by hand does not say how many it
        takes.
        """
        meter = self.meter
        if meter.steps == 0 and self._samples:
            if accelerator is None:
                meter.see_loader(self._loader)
            elif meter.backwards == 0:
                self._see_prepared(accelerator)
            if "batch" in meter.facts:
                meter.facts["accumulation"] = meter.facts.get("accumulation", 0) + 1
        meter.micro_step(self._samples, loss.detach() if hasattr(loss, "detach") else loss)
        self._samples = 0

    def _see_prepared(self, accelerator: Accelerator) -> None:
        """Note the loader that is trained on, and how long the training is."""
        loaders = [one for one, _ in self.prepared]
        if self._loader not in loaders:
            return
        meter, first = self.meter, self.meter.first.facts
        first["loader"] = place = loaders.index(self._loader)
        meter.see_loader(self.prepared[place][1])
        if "batch" not in meter.facts:
            return
        if getattr(accelerator, "split_batches", False):
            meter.facts["batch"] //= accelerator.num_processes
        steps, epochs = meter.facts.get("steps_to_end"), meter.facts.get("epochs")
        epoch = samples_of(self._loader)
        if epoch is not None:
            first["epoch_steps"] = each = -(-epoch // accelerator.gradient_accumulation_steps)
            steps = steps or (math.ceil(each * epochs) if epochs else None)
        if steps is not None:
            first["steps"] = steps

    def about_to_step(self) -> None:
        """Called before an optimizer steps: what cannot be measured by now ends here."""
        meter = self.meter
        if meter.framework is not None and (
            meter.framework == "trainer" or self.trains_by(meter.framework)
        ):
            return
        meter.refuse_a_child()
        if "Accelerator" in meter.seen:
            meter.refuse(
                "it has an Accelerator, but steps an optimizer outside a data loader that the "
                "Accelerator has prepared: give the loader to accelerator.prepare()",
                hopeless=True,
            )
        meter.refuse(
            "it trains by a loop of its own that takes no batch from a "
            "torch.utils.data.DataLoader, so its samples cannot be counted: iterate a DataLoader",
            hopeless=True,
        )

    def stepped(self, optimizer: object) -> None:
        """Note that an optimizer has stepped; the first one that ever did is the clock."""
        if self.meter.framework == "trainer":
            return
        if self._clock is None:
            self._clock = id(optimizer)
        if self._clock == id(optimizer):
            if self.meter.steps == 0 and self._watching is not None:
                self._watching.remove()
            self.meter.step(mean_loss=True, optimizer=optimizer)


def _patch_accelerator(module: ModuleType, loop: Loop) -> None:
    cls = module.Accelerator

    @around(cls, "__init__")
    def init(original: Original, self: object, *args: object, **kwargs: object) -> None:
        loop.meter.seen.add("Accelerator")
        kwargs.pop("log_with", None)
        if kwargs.get("project_dir") is not None:
            kwargs["project_dir"] = loop.meter.output
        original(self, *args, **kwargs)

    @around(cls, "backward")
    def backward(original: Original, self: Any, loss: object, **kwargs: object) -> object:
        done = original(self, loss, **kwargs)
        if loop.trains_by("accelerate"):
            loop.backward(loss, self)
        return done

    @around(cls, "prepare_data_loader")
    def prepare_data_loader(
        original: Original, self: object, data_loader: object, *args: object, **kwargs: object
    ) -> object:
        prepared = original(self, data_loader, *args, **kwargs)
        if "Trainer" not in loop.meter.seen:
            loop.prepared.append((prepared, data_loader))
        return prepared

    silence(cls, *_SILENT_METHODS)


def _patch_loaders(cls: type, loop: Loop, framework: Framework) -> None:
    @around(cls, "__iter__")
    def iterate(original: Callable[..., Iterator[object]], self: object) -> Iterator[object]:
        if not loop.trains_by(framework):
            return original(self)
        return loop.over(self, framework, lambda: original(self))


def _patch_backward(cls: type, loop: Loop) -> None:
    @around(cls, "backward")
    def backward(original: Original, self: object, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if loop.trains_by("pytorch"):
            loop.backward(self)


def _patch_optimizers(module: ModuleType, loop: Loop) -> None:
    module.register_optimizer_step_pre_hook(lambda *_: loop.about_to_step())
    module.register_optimizer_step_post_hook(lambda optimizer, *_: loop.stepped(optimizer))


def _let_schedules_end(module: ModuleType) -> None:
    """Let OneCycleLR go on after its last step, where it would raise: trials have no end."""

    @around(module.OneCycleLR, "step")
    def step(original: Original, self: LRScheduler, *args: object, **kwargs: object) -> None:
        if self.last_epoch + 1 < self.total_steps:
            original(self, *args, **kwargs)


def _keep_from_saving(module: ModuleType, meter: Meter) -> None:
    """Save no files once training has begun: nobody needs the checkpoints of a trial."""

    @around(module, "save")
    def save(original: Original, obj: object, f: object, *args: object, **kwargs: object) -> None:
        if meter.framework is None or not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)
