"""Measures the Trainer of Lightning, as a loop over torch alone.

Its DataLoader and optimizer are watched in ``loops``. Here it is made endless, and it evaluates,
saves and reports nothing. Ranks, precision and batch are the script's own. Source: lightning 2.6
(``lightning/pytorch/loops/fit_loop.py``, ``training_epoch_loop.py``).
"""

from __future__ import annotations

import sys
from typing import Any

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.meter import Meter

# Two names of one framework.
PACKAGES = ("lightning.pytorch", "pytorch_lightning")

# Callbacks that write, end the training, or need a logger.
_LEFT_OUT = (
    "BatchSizeFinder",
    "Checkpoint",
    "EarlyStopping",
    "LearningRateFinder",
    "LearningRateMonitor",
    "ProgressBar",
)


class Fitting:
    """Lets ``Trainer.fit`` train until the trial is over, and do nothing else."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._fits = False

    def hooks(self) -> list[Hook]:
        """What is hooked in Lightning, by each of its names."""
        hooks: list[Hook] = []
        for package in PACKAGES:
            epoch = f"{package}.loops.training_epoch_loop"
            hooks += [
                (f"{package}.trainer.trainer", "Trainer.fit", self._fit),
                (f"{package}.loops.fit_loop", "_is_max_limit_reached", self._limit),
                (epoch, "_is_max_limit_reached", self._limit),
                (epoch, "_TrainingEpochLoop._update_learning_rates", _without_metrics),
            ]
        return hooks

    def _fit(self, original: Original, trainer: Any, *args: object, **kwargs: object) -> None:
        meter, facts = self.meter, self.meter.facts
        meter.seen.add("Trainer")
        if trainer.max_steps > 0:
            facts["steps_to_end"] = trainer.max_steps
        elif trainer.max_epochs and trainer.max_epochs > 0:
            facts["epochs"] = trainer.max_epochs
        self._quiet(trainer)
        self._fits = True
        kwargs.pop("ckpt_path", None)
        original(trainer, *args, **kwargs)
        meter.end()
        meter.leave(0)

    def _quiet(self, trainer: Any) -> None:
        """No validation, checkpoints or loggers."""
        loggers = sys.modules[f"{_package_of(trainer)}.loggers.logger"]
        trainer.limit_val_batches = 0
        trainer.num_sanity_val_steps = 0
        trainer.loggers = [loggers.DummyLogger()]
        trainer.callbacks = [
            callback
            for callback in trainer.callbacks
            if not any(base.__name__ in _LEFT_OUT for base in type(callback).__mro__)
        ]
        trainer._default_root_dir = self.meter.output

    def _limit(self, original: Any, *args: object, **kwargs: object) -> bool:
        """Whether a number of steps or epochs is reached at which the training ends."""
        if self._fits:
            return False
        return bool(original(*args, **kwargs))


def _package_of(trainer: object) -> str:
    """The name under which this Trainer, or its base class, was imported."""
    modules = [base.__module__ for base in type(trainer).__mro__]
    return next(name for name in PACKAGES if f"{name}.trainer.trainer" in modules)


def _without_metrics(
    original: Original, loop: object, interval: str, update_plateau_schedulers: bool
) -> None:
    """Leave out ReduceLROnPlateau, whose metric of a validation is missing."""
    if not update_plateau_schedulers:
        original(loop, interval=interval, update_plateau_schedulers=False)
