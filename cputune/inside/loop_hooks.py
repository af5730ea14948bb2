"""Training that nobody measures ends at its first step, before it has cost the user anything.

A script without Trainer and Accelerator would train to its end, and write its checkpoints
where it always does: the hooks that lead output elsewhere are those of the frameworks.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from cputune.inside.carry import Patch
from cputune.inside.meter import Meter

LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def patches(meter: Meter, scratch: str | None) -> list[tuple[str, Patch]]:
    """What to do with torch's optimizers, with the Trainer of Lightning, and with torch.save."""
    silent = [] if scratch is None else [("torch", lambda module: _keep_from_saving(module, meter))]
    return [
        *silent,
        ("torch.optim.optimizer", lambda module: _patch_optimizers(module, meter)),
        *((name, lambda module: _patch_lightning(module, meter)) for name in LIGHTNING),
    ]


def _patch_optimizers(module: ModuleType, meter: Meter) -> None:
    register = getattr(module, "register_optimizer_step_pre_hook", None)  # torch 2.0 and later
    if register is not None:
        register(lambda *_: None if meter.framework is not None else _refuse(meter))


def _refuse(meter: Meter) -> None:
    if "Accelerator" in meter.seen:
        meter.refuse(
            "it has an Accelerator, but steps an optimizer outside a data loader that the "
            "Accelerator has prepared: give the loader to accelerator.prepare()",
            hopeless=True,
        )
    meter.refuse(
        "it trains by a loop of its own, and cputune measures transformers.Trainer and "
        "accelerate.Accelerator: accelerator.prepare() and accelerator.backward() make it one",
        hopeless=True,
    )


def _patch_lightning(module: ModuleType, meter: Meter) -> None:
    cls = module.Trainer

    @functools.wraps(cls.fit)
    def fit(*args: Any, **kwargs: Any) -> None:
        meter.refuse(
            "it trains with Lightning, and cputune measures transformers.Trainer and "
            "accelerate.Accelerator",
            hopeless=True,
        )

    cls.fit = fit


def _keep_from_saving(module: ModuleType, meter: Meter) -> None:
    """Once training has begun, files are not saved: checkpoints of a trial are nobody's."""
    original = module.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if meter.framework is None or not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)

    module.save = save  # type: ignore[attr-defined]
