"""Keeps the scale of a Trainer's losses if a plan has other ranks or batches of a step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.shared import Setting
from cputune.inside.applying.unchanged import as_before

if TYPE_CHECKING:
    from transformers import Trainer


def keep_scale(setting: Setting, trainer: Trainer) -> None:
    """Let the losses of this trainer have the scale of the current launch.

    Since 4.46 Trainer takes every model whose forward has ``**kwargs`` for one that divides its
    loss by the items of the whole step, multiplies it by the ranks, and does not divide it by the
    batches of a step. The gradient of models that do not divide (BERT's classifier) grows with
    both.
    """
    args, accepts = trainer.args, getattr(trainer, "model_accepts_loss_kwargs", None)
    typed, steps = args.per_device_train_batch_size.typed, args.gradient_accumulation_steps
    changed = setting.force.rescales or typed != steps
    if accepts is None or not changed or "compute_loss" in vars(trainer):
        return
    if setting.force.typed_ranks == 1 and hasattr(args, "average_tokens_across_devices"):
        if not args.average_tokens_across_devices:
            setting.note("trainer", "average_tokens_across_devices")
        args.average_tokens_across_devices = True  # the items are those of all ranks
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)  # of late releases
    if scaled is None:
        scaled = accepts or getattr(trainer, "compute_loss_func", None) is not None
    original = trainer.compute_loss
    ignores: list[bool] = []

    def compute_loss(model: Any, inputs: Any, *others: object, **kwargs: object) -> Any:
        items = kwargs.get("num_items_in_batch")
        if items is None:
            return original(model, inputs, *others, **kwargs)
        if not ignores:
            with as_before(model, inputs, trainer):
                ignored = _ignores(original, model, inputs, items)
            ignores.append(ignored)
        if not ignores[0]:
            return original(model, inputs, *others, **kwargs)
        setting.pretends = True
        try:
            loss = original(model, inputs, *others, **kwargs)
        finally:
            setting.pretends = False
        scale = args.per_device_train_batch_size.typed / args.gradient_accumulation_steps
        if scaled and scale != 1:
            setting.note("trainer", "the scale of its losses")
        return loss * scale if scaled and model.training else loss

    trainer.compute_loss = compute_loss


def _ignores(compute_loss: Any, model: Any, inputs: Any, items: Any) -> bool:
    """Whether a loss stays the same for twice as many items, checked with a batch.

    Autocast keeps the weights that it rounds, and those that it rounds here have no gradient.
    """
    torch, training = sys.modules["torch"], model.training
    model.eval()
    try:
        with torch.no_grad():
            once, twice = (
                float(compute_loss(model, dict(inputs), num_items_in_batch=number))
                for number in (items, 2 * items)
            )
    finally:
        model.train(training)
        torch.clear_autocast_cache()
    return abs(twice - once) < 0.1 * abs(once)
