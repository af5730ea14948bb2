"""Hooks on training loops that scripts write themselves, over an Accelerator or torch alone.

A batch is what a loader gives, a step is one of the first optimizer that steps. What cannot be
measured so ends at its first step, before it has cost the user anything: it would train to its
end, and write its checkpoints where it always does.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cputune.inside.carry import Original, Patch, around
from cputune.inside.messages import Framework
from cputune.inside.meter import Meter, samples_of

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.nn import Module
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.hooks import RemovableHandle


class Loop:
    """Which data loader a loop iterates, and which optimizer is its clock.

    Attributes:
        samples: of the batch that was taken last; 0 once its loss went backward.
    """

    def __init__(self, meter: Meter, framework: Framework) -> None:
        self.meter = meter
        self.framework: Framework = framework
        self.samples = 0
        self._running = 0
        self._clock: int | None = None

    def batches(self, iterate: Callable[[], Iterator[object]]) -> Iterator[object]:
        """The batches of a loader; those of the loader that is trained on, without end.

        A script evaluates and saves when its training loader is exhausted. A loader that
        is iterated inside another one's loop is an evaluation: its time does not count.
        """
        nested = self._running > 0
        since, trained = self.meter.pause(), self.meter.backwards
        if not nested or self.meter.framework is None:
            self.meter.begin(self.framework)
        self._running += 1
        try:
            while True:
                before = self.meter.backwards
                for batch in iterate():
                    self.samples = self.meter.see_batch(batch)
                    yield batch
                if self.meter.backwards == before:
                    return
        finally:
            self._running -= 1
            if nested and self.meter.backwards == trained:
                self.meter.resume(since)

    @property
    def idle(self) -> bool:
        """Whether a framework trains here whose own hooks measure."""
        raise NotImplementedError

    def over(self, loader: object, iterate: Callable[[], Iterator[object]]) -> Iterator[object]:
        """The batches of a loader, as often as the script trains on them."""
        return self.batches(iterate)

    def backward(self, loss: object) -> None:
        """A loss went backward; a batch with several losses is one batch.

        The batches of the first step are counted: a script that accumulates by hand tells
        nobody how many it takes.
        """
        facts = self.meter.facts
        if self.meter.steps == 0 and self.samples and "batch" in facts:
            facts["accumulation"] = facts.get("accumulation", 0) + 1
        self.meter.micro_step(self.samples, loss.detach() if hasattr(loss, "detach") else loss)
        self.samples = 0

    def stepped(self, optimizer: object) -> None:
        """An optimizer has stepped; the first one that ever did is the clock."""
        if self._clock is None:
            self._clock = id(optimizer)
        if self._clock == id(optimizer):
            self.meter.step(mean_loss=True, optimizer=optimizer)


_SILENT_METHODS = ("save", "save_state", "save_model", "init_trackers", "log")


def accelerate_patches(meter: Meter, scratch: str | None) -> list[tuple[str, Patch]]:
    """What to do with each module of accelerate once it is loaded."""
    loop = _PreparedLoop(meter)
    return [
        ("accelerate.accelerator", lambda m: _patch_accelerator(m, loop, scratch)),
        ("accelerate.optimizer", lambda m: _patch_optimizer(m, loop)),
        ("accelerate.data_loader", lambda m: _patch_prepared_loaders(m, loop)),
    ]


class _PreparedLoop(Loop):
    """A loop over what an Accelerator has prepared."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter, "accelerate")
        self.prepared: list[tuple[object, object]] = []

    @property
    def idle(self) -> bool:
        """Whether a Trainer drives accelerate here; its own hooks measure then."""
        return self.meter.framework == "trainer"


def _patch_accelerator(module: ModuleType, loop: _PreparedLoop, scratch: str | None) -> None:
    cls = module.Accelerator
    meter = loop.meter

    @around(cls, "__init__")
    def init(original: Original, self: object, *args: object, **kwargs: object) -> None:
        meter.seen.add("Accelerator")
        kwargs.pop("log_with", None)
        if scratch is not None and kwargs.get("project_dir") is not None:
            kwargs["project_dir"] = os.path.join(scratch, "output")
        original(self, *args, **kwargs)

    @around(cls, "backward")
    def backward(original: Original, self: object, loss: object, **kwargs: object) -> object:
        done = original(self, loss, **kwargs)
        if not loop.idle:
            if meter.steps == 0 and meter.backwards == 0:
                _see_batch(self, loop, meter)
            loop.backward(loss)
        return done

    @around(cls, "prepare_model")
    def prepare_model(
        original: Original, self: object, model: object, *args: object, **kwargs: object
    ) -> object:
        prepared = original(self, model, *args, **kwargs)
        if not loop.idle:
            meter.watch(prepared)
        return prepared

    @around(cls, "prepare_data_loader")
    def prepare_data_loader(
        original: Original, self: object, data_loader: object, *args: object, **kwargs: object
    ) -> object:
        prepared = original(self, data_loader, *args, **kwargs)
        if not loop.idle and "Trainer" not in meter.seen:
            loop.prepared.append((prepared, data_loader))
        return prepared

    for name in _SILENT_METHODS:
        if hasattr(cls, name):
            setattr(cls, name, lambda self, *args, **kwargs: None)


def _see_batch(accelerator: Accelerator, loop: _PreparedLoop, meter: Meter) -> None:
    """The batch of the loader that is trained on: the one whose batch goes backward first."""
    trained = accelerator.gradient_state.active_dataloader
    places = [place for place, (one, _) in enumerate(loop.prepared) if one is trained]
    if not places:
        return
    meter.first.facts["loader"] = places[0]
    prepared, loader = loop.prepared[places[0]]
    batch = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(batch, int):
        return
    meter.see_loader(loader)
    if getattr(accelerator, "split_batches", False):
        meter.facts["batch"] = batch // accelerator.num_processes
    first, steps, epochs = (
        meter.first.facts,
        meter.facts.get("steps_to_end"),
        meter.facts.get("epochs"),
    )
    epoch = samples_of(prepared)
    if epoch is not None:
        first["epoch_steps"] = each = -(-epoch // accelerator.gradient_accumulation_steps)
        steps = steps or (math.ceil(each * epochs) if epochs else None)
    if steps is not None:
        first["steps"] = steps
    first["cadence"] = meter.cadence
    others = {at: getattr(one, "dataset", None) for at, (_, one) in enumerate(loop.prepared)}
    del others[places[0]]
    if others:  # such loops evaluate after each pass where no argument says otherwise
        meter.cadence = {"evaluation": "epoch", **meter.cadence}
    meter.see_beside(steps, epochs, samples_of(others))


def _patch_optimizer(module: ModuleType, loop: _PreparedLoop) -> None:
    @around(module.AcceleratedOptimizer, "step")
    def step(original: Any, self: Any, *args: object, **kwargs: object) -> Any:
        done = original(self, *args, **kwargs)
        if not loop.idle and self.gradient_state.sync_gradients and not self.step_was_skipped:
            loop.stepped(self)
        return done


def _patch_prepared_loaders(module: ModuleType, loop: _PreparedLoop) -> None:
    for name in ("DataLoaderShard", "DataLoaderDispatcher"):
        cls = getattr(module, name, None)
        if cls is not None:
            _patch_loaders(cls, loop)


def torch_patches(meter: Meter, scratch: str | None) -> list[tuple[str, Patch]]:
    """What to do with torch's loaders, losses and optimizers, and with torch.save."""
    loop = _PlainLoop(meter)
    silent = [] if scratch is None else [("torch", lambda module: _keep_from_saving(module, meter))]
    return [
        *silent,
        ("torch._tensor", lambda module: _patch_backward(module.Tensor, loop)),
        ("torch.nn.modules.module", loop.models_of),
        (
            "torch.utils.data.dataloader",
            lambda module: _patch_loaders(module.DataLoader, loop),
        ),
        ("torch.optim.optimizer", lambda module: _patch_optimizers(module, loop)),
        ("torch.optim.lr_scheduler", _let_schedules_end),
    ]


class _PlainLoop(Loop):
    """A loop over torch's own loaders and optimizers."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter, "pytorch")
        self._loader: object = None
        self._watch_models: Callable[..., object] | None = None
        self._watching: RemovableHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether a framework trains here, whose own hooks measure."""
        return not self.meter.seen.isdisjoint(("Trainer", "Accelerator"))

    def models_of(self, module: ModuleType) -> None:
        """Where the calls of every model can be seen."""
        self._watch_models = getattr(module, "register_module_forward_pre_hook", None)

    def over(self, loader: object, iterate: Callable[[], Iterator[object]]) -> Iterator[object]:
        """The batches of a loader, as often as the script trains on them."""
        if self._watching is None and self._watch_models is not None and self.meter.steps == 0:
            self._watching = self._watch_models(self._called)
        for batch in self.batches(iterate):
            self._loader = loader
            yield batch

    def backward(self, loss: object) -> None:
        """The loader whose batch goes backward first is the one that is trained on."""
        if self.meter.steps == 0 and self.samples:
            self.meter.see_loader(self._loader)
        super().backward(loss)

    def stepped(self, optimizer: object) -> None:
        """The first optimizer that ever did is the clock."""
        super().stepped(optimizer)
        if self._watching is not None:
            self._watching.remove()
            self._watching = None

    def _called(self, model: Module, *args: object) -> None:
        """The first model that is called to train shows the precision: before its layers."""
        if not self.idle and model.training and sys.modules["torch"].is_grad_enabled():
            self.meter.watch(model)


def _patch_loaders(cls: type, loop: Loop) -> None:
    @around(cls, "__iter__")
    def iterate(original: Callable[..., Iterator[object]], self: object) -> Iterator[object]:
        if loop.idle:
            return original(self)
        return loop.over(self, lambda: original(self))


def _patch_backward(cls: type, loop: _PlainLoop) -> None:
    @around(cls, "backward")
    def backward(original: Original, self: object, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if not loop.idle:
            loop.backward(self)


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
    meter.refuse_a_child()
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

    @around(module.OneCycleLR, "step")
    def step(original: Original, self: LRScheduler, *args: object, **kwargs: object) -> None:
        if self.last_epoch + 1 < self.total_steps:
            original(self, *args, **kwargs)


def _keep_from_saving(module: ModuleType, meter: Meter) -> None:
    """Once training has begun, files are not saved: checkpoints of a trial are nobody's."""

    @around(module, "save")
    def save(original: Original, obj: object, f: object, *args: object, **kwargs: object) -> None:
        if meter.framework is None or not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)
