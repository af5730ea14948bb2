"""Hooks on the ``Trainer`` of Lightning, for lightning and pytorch_lightning 2.x.

A trial evaluates, logs and saves nothing, and does not end by itself: that is set when the
script makes its Trainer, or, where the script's own number of steps means something to its
schedules, when training starts. What a plan sets is in ``carry``.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from cputune.inside.carry import LIGHTNING, Patch, around
from cputune.inside.meter import Meter

FABRIC = ("lightning.fabric", "lightning_fabric")
"""Loops of a script's own over Fabric are loops over torch to us: ``loop_hooks`` measures them."""

_SILENT = {
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "fast_dev_run": False,
    "max_time": None,
    "profiler": None,
}

_UNWANTED = {
    "BasePredictionWriter", "BatchSizeFinder", "Checkpoint", "DeviceStatsMonitor", "EarlyStopping",
    "LearningRateFinder", "ModelSummary", "ProgressBar", "SaveConfigCallback", "Timer",
}  # fmt: skip
"""Lightning's callbacks that write, insist on an evaluation, or end the training."""


def patches(meter: Meter, scratch: str | None) -> list[tuple[str, Patch]]:
    """What to do with the modules of Trainer and Fabric, under each of their names."""
    return [
        *(
            (f"{package}.trainer.trainer", lambda module: _patch_trainer(module, meter, scratch))
            for package in LIGHTNING
        ),
        *((f"{package}.fabric", lambda module: _patch_fabric(module, meter)) for package in FABRIC),
    ]


def _patch_trainer(module: ModuleType, meter: Meter, scratch: str | None) -> None:
    package = module.__name__.partition(".trainer")[0]
    clock = _callback_class(importlib.import_module(f"{package}.callbacks").Callback, meter)
    logger = importlib.import_module(f"{package}.loggers.logger").DummyLogger
    cls = module.Trainer

    @around(cls, "__init__")
    def init(original: Any, trainer: Any, **given: object) -> None:
        meter.seen.add("Lightning")
        callbacks = given.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        saving = _saving(callbacks, enabled=given.get("enable_checkpointing"))
        given.update(_SILENT, callbacks=[one for one in callbacks if _is_wanted(one)])
        given["logger"] = False if given.get("barebones") else logger()
        if scratch is not None:
            given["default_root_dir"] = os.path.join(scratch, "output")
        original(trainer, **given)
        trainer.callbacks.append(clock(saving))
        _refuse_own_processes(trainer, meter)

    @around(cls, "fit")
    def fit(original: Any, trainer: Any, model: Any, *data: object, **kwargs: object) -> None:
        original(trainer, model, *data[:3], **{**kwargs, "ckpt_path": None})
        meter.end()
        meter.leave(0)

    for name in ("validate", "test"):
        setattr(cls, name, lambda self, *args, **kwargs: [{}])
    cls.save_checkpoint = lambda self, *args, **kwargs: None


def _patch_fabric(module: ModuleType, meter: Meter) -> None:
    @around(module.Fabric, "launch")
    def launch(original: Any, fabric: Any, *args: object, **kwargs: object) -> Any:
        _refuse_own_processes(fabric, meter)
        return original(fabric, *args, **kwargs)

    for name in ("save", "log", "log_dict"):
        setattr(module.Fabric, name, lambda self, *args, **kwargs: None)


def _is_wanted(callback: object) -> bool:
    return _UNWANTED.isdisjoint(parent.__name__ for parent in type(callback).__mro__)


def _refuse_own_processes(trainer: Any, meter: Meter) -> None:
    """Ranks that Lightning would start itself: nobody binds them, nor hears them."""
    ranks = trainer.world_size
    if ranks > 1 and trainer.strategy.launcher is not None and "LOCAL_RANK" not in os.environ:
        meter.refuse(
            f"it lets Lightning start {ranks} processes: start them with "
            f"torchrun --nproc-per-node {ranks}, or take devices=1",
            hopeless=True,
        )


def _callback_class(base: type, meter: Meter) -> type:
    class LightningStepClock(base):  # type: ignore[misc]
        """What Lightning says to its callbacks is what a step is made of."""

        def __init__(self, saving: str | float) -> None:
            self._saving = saving
            self._samples = self._batches = self._stepped = 0
            self._loss: Any = None

        def on_train_start(self, trainer: Any, model: Any) -> None:
            _see_length(trainer, self._saving, meter)
            trainer.fit_loop.max_epochs = -1  # both: without end
            trainer.fit_loop.epoch_loop.max_steps = -1
            for schedule in trainer.lr_scheduler_configs:
                schedule.strict = False  # it may wait for the metric of an evaluation
            self._stepped = trainer.global_step
            _see_loader(trainer, meter)
            meter.watch(model)
            meter.begin("lightning")

        def on_train_batch_start(
            self, trainer: object, model: object, batch: object, *args: object
        ) -> None:
            self._samples, self._loss = meter.see_batch(batch), None
            self._batches += 1

        def on_before_backward(self, trainer: Any, model: Any, loss: Any) -> None:
            if self._loss is None:  # the first, where a batch has several
                self._loss = loss.detach() * trainer.accumulate_grad_batches

        def on_before_optimizer_step(
            self, trainer: object, model: object, optimizer: object
        ) -> None:
            meter.first.before_step(optimizer)

        def on_train_batch_end(self, trainer: Any, model: Any, *args: object) -> None:
            meter.micro_step(self._samples, self._loss)
            if trainer.global_step == self._stepped:
                return
            self._stepped = trainer.global_step
            if meter.steps == 0:
                meter.facts["accumulation"] = self._batches
            meter.step(mean_loss=True, optimizer=trainer.optimizers[0])

    return LightningStepClock


def _see_loader(trainer: Any, meter: Meter) -> None:
    loader = trainer.train_dataloader
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    shuffled = getattr(sampler, "shuffled_as_several", getattr(sampler, "shuffle", False))
    meter.first.facts["shuffled"] = bool(shuffled)
    meter.see_loader(loader)


def _see_length(trainer: Any, saving: str | float, meter: Meter) -> None:
    """How long it trains and when it evaluates, before a trial lets it do neither."""
    accumulated = trainer.accumulate_grad_batches
    with contextlib.suppress(Exception):  # Lightning refuses to say it of batches that grow
        steps = trainer.estimated_stepping_batches
        if 0 < steps < math.inf:
            meter.first.facts["steps"] = meter.facts["steps_to_end"] = int(steps)
    if trainer.num_training_batches < math.inf:
        meter.first.facts["epoch_steps"] = math.ceil(trainer.num_training_batches / accumulated)
    every, epochs = trainer.val_check_interval, trainer.check_val_every_n_epoch
    evaluation: str | float
    if isinstance(every, int):
        evaluation = every / accumulated
    elif isinstance(every, float) and every != 1.0:
        evaluation = f"every {every:.3g} of an epoch"
    else:
        evaluation = "epoch" if epochs == 1 else f"every {epochs} epochs"
    meter.first.facts["cadence"] = {"evaluation": evaluation, "saving": saving}


def _saving(callbacks: Iterable[object], *, enabled: object) -> str | float:
    """When a script saves, by its own checkpoints; Lightning's own come with each epoch."""
    for callback in callbacks:
        steps = getattr(callback, "_every_n_train_steps", 0)
        if steps:
            return float(steps)
    return "no" if enabled is False else "epoch"
