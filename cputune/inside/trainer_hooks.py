"""Hooks on ``transformers.Trainer``, for transformers 4.38 to 5.x.

Everything is set on ``TrainingArguments`` before its own ``__post_init__``, which checks
the values and starts torch.distributed; subclasses (Seq2SeqTrainingArguments, TRL's
configs) all pass through it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from cputune.inside.force import Force
from cputune.inside.meter import Meter, samples_in

ENDLESS = 1_000_000
"""Steps that a trial would train for; whoever measures ends it long before."""

_SILENT_METHODS = (
    "save_model", "_save_checkpoint", "save_state", "save_metrics", "push_to_hub",
    "create_model_card", "init_hf_repo", "init_git_repo",
)  # fmt: skip


def patches(
    meter: Meter, force: Force | None, scratch: str | None
) -> dict[str, Callable[[ModuleType], None]]:
    """What to do with each module of transformers once it is loaded."""
    return {
        "transformers.training_args": lambda m: _patch_arguments(m, meter, force, scratch),
        "transformers.hf_argparser": lambda m: _patch_parser(m, meter),
        "transformers.trainer": lambda m: _patch_trainer(m, meter),
        "transformers.loss.loss_utils": lambda m: _patch_loss(m, meter),
        "transformers.modeling_utils": lambda m: _silence(m.PreTrainedModel, "save_pretrained"),
    }


def _patch_arguments(
    module: ModuleType, meter: Meter, force: Force | None, scratch: str | None
) -> None:
    cls = module.TrainingArguments
    original = cls.__post_init__

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        if not hasattr(self, "_cputune_asked"):
            self._cputune_asked = (self.max_steps, self.num_train_epochs)
            parses = meter.parses_arguments or meter.facts.get("parses_arguments", False)
            meter.facts["parses_arguments"] = parses
            _quiet(self, scratch)
            if force is not None:
                try:
                    _apply(self, force)
                except ValueError as error:
                    meter.refuse(str(error))
            meter.facts["batch"] = self.per_device_train_batch_size
            meter.facts["accumulation"] = self.gradient_accumulation_steps
            meter.facts["learning_rate"] = self.learning_rate
        original(self)

    cls.__post_init__ = post_init


def _quiet(args: Any, scratch: str | None) -> None:
    """No evaluation, saving, logging or hub; and training that does not end by itself."""
    _set(args, eval_strategy="no", do_eval=False, do_predict=False, eval_on_start=False)
    if hasattr(args, "evaluation_strategy"):
        # The older name; from 4.41 to 4.45 beside the new one, as a warning.
        args.evaluation_strategy = None if hasattr(args, "eval_strategy") else "no"
    _set(args, save_strategy="no", load_best_model_at_end=False, resume_from_checkpoint=None)
    _set(args, logging_strategy="no", logging_first_step=False, report_to="none", disable_tqdm=True)
    _set(args, push_to_hub=False, auto_find_batch_size=False, max_steps=ENDLESS)
    if str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)) in (
        "reduce_lr_on_plateau",
        "greedy",
    ):
        args.lr_scheduler_type = "constant"  # those two insist on an evaluation
    if scratch is not None:
        elsewhere = os.path.join(scratch, "output")
        _set(args, output_dir=elsewhere, logging_dir=elsewhere)


def _apply(args: Any, force: Force) -> None:
    _set(args, use_cpu=True, fp16=False, bf16_full_eval=False, fp16_full_eval=False)
    _set(args, **force.arguments)
    if getattr(args, "per_gpu_train_batch_size", None):
        args.per_device_train_batch_size = args.per_gpu_train_batch_size
        args.per_gpu_train_batch_size = None
    args.per_device_train_batch_size, args.gradient_accumulation_steps = force.batch(
        args.per_device_train_batch_size, args.gradient_accumulation_steps
    )


def _set(args: Any, **values: Any) -> None:
    """Set those that this version of transformers has."""
    for name, value in values.items():
        if hasattr(args, name):
            setattr(args, name, value)


def _patch_parser(module: ModuleType, meter: Meter) -> None:
    cls = module.HfArgumentParser
    original = cls.parse_args_into_dataclasses

    @functools.wraps(original)
    def parse_args_into_dataclasses(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter.parses_arguments = True
        try:
            return original(self, *args, **kwargs)
        finally:
            meter.parses_arguments = False

    cls.parse_args_into_dataclasses = parse_args_into_dataclasses


def _patch_trainer(module: ModuleType, meter: Meter) -> None:
    cls = module.Trainer
    callback = _callback_class(module.TrainerCallback, meter)
    original_init, original_train = cls.__init__, cls.train
    original_scheduler = cls.create_scheduler

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        meter.seen.add("Trainer")
        original_init(self, *args, **kwargs)

    @functools.wraps(original_train)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        _drop_early_stopping(self)
        self.add_callback(callback)
        _watch_training_step(self, meter)
        meter.facts["dataset"] = type(self.train_dataset).__name__
        meter.begin("trainer")
        original_train(self, None, *args, **kwargs)
        meter.end()
        meter.leave(0)

    @functools.wraps(original_scheduler)
    def create_scheduler(self: Any, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        return original_scheduler(self, _asked_steps(self, num_training_steps), *args, **kwargs)

    cls.__init__, cls.train, cls.create_scheduler = init, train, create_scheduler
    cls.evaluate = lambda self, *args, **kwargs: _NoMetrics()
    _silence(cls, *_SILENT_METHODS)


def _callback_class(base: type, meter: Meter) -> type:
    class StepClock(base):  # type: ignore[misc]
        def on_step_end(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
            meter.step(mean_loss=False, optimizer=optimizer)

    return StepClock


def _watch_training_step(trainer: Any, meter: Meter) -> None:
    """Wrap the method of this one object, so that a subclass's own is measured too."""
    original = trainer.training_step

    def training_step(
        model: Any, inputs: Any, num_items_in_batch: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        meter.watch(model)
        samples = samples_in(inputs)
        meter.items_counted = False
        if num_items_in_batch is not None:
            kwargs["num_items_in_batch"] = num_items_in_batch
        loss = original(model, inputs, *args, **kwargs)
        counted = meter.items_counted
        scale = 1 if counted or num_items_in_batch is None else _loss_scale(trainer)
        meter.micro_step(samples, loss / scale)
        return loss

    trainer.training_step = training_step


def _loss_scale(trainer: Any) -> int:
    """By how much a loss is too large when the model paid no heed to num_items_in_batch.

    Since 4.46 Trainer takes every model whose forward has ``**kwargs`` for one that
    divides its loss by the items of the whole step, and then neither divides it by the
    accumulation steps nor leaves out the number of ranks (``Trainer.compute_loss``,
    ``training_step``). Models that do not (BERT's classifier) then report, and train
    with, a loss that grows with the ranks: no two plans could be compared by it.
    """
    if not getattr(trainer, "model_accepts_loss_kwargs", False):
        return 1
    if getattr(trainer, "compute_loss_func", None) is not None:
        return 1
    ranks = (
        trainer.accelerator.num_processes
        if getattr(trainer.args, "average_tokens_across_devices", False)
        else 1
    )
    return int(trainer.args.gradient_accumulation_steps) * int(ranks)


def _patch_loss(module: ModuleType, meter: Meter) -> None:
    """Learn whether a model divides its loss by the items of the whole step."""
    original = module.fixed_cross_entropy

    @functools.wraps(original)
    def fixed_cross_entropy(
        source: Any, target: Any, num_items_in_batch: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if num_items_in_batch is not None:
            meter.items_counted = True
        return original(source, target, num_items_in_batch, *args, **kwargs)

    module.fixed_cross_entropy = fixed_cross_entropy  # type: ignore[attr-defined]


def _asked_steps(trainer: Any, endless: int) -> int:
    """The steps that the script would train for, so that its learning rates stay its own."""
    args = trainer.args
    steps, epochs = getattr(args, "_cputune_asked", (0, 0))
    if steps > 0:
        return int(steps)
    try:
        samples = len(trainer.train_dataset)
    except TypeError:
        return endless
    per_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return max(1, math.ceil(float(samples / per_step * epochs)))


def _drop_early_stopping(trainer: Any) -> None:
    """It insists on an evaluation (``on_train_begin`` of EarlyStoppingCallback)."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "EarlyStoppingCallback":
            trainer.remove_callback(callback)


class _NoMetrics(dict[str, float]):
    """The metrics of an evaluation that was not made: any of them is 0."""

    def __missing__(self, key: str) -> float:
        return 0.0


def _silence(cls: Any, *methods: str) -> None:
    for name in methods:
        if hasattr(cls, name):
            setattr(cls, name, lambda self, *args, **kwargs: None)
