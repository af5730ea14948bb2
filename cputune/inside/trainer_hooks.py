"""Hooks on ``transformers.Trainer``, for transformers 4.38 to 5.x.

A trial writes nothing, reports to nobody and does not end by itself: that is set on every
``TrainingArguments`` before its own ``__post_init__``. What a plan sets is in ``carry``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cputune.inside.carry import Original, Patch, around
from cputune.inside.meter import Meter, samples_of

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import Trainer, TrainingArguments

ENDLESS = 1_000_000
"""Steps that a trial would train for; whoever measures ends it long before."""

_OFF = (
    "do_eval", "do_predict", "eval_on_start", "load_best_model_at_end", "logging_first_step",
    "push_to_hub", "auto_find_batch_size",
)  # fmt: skip
_STRATEGIES = ("eval_strategy", "evaluation_strategy", "save_strategy", "logging_strategy")
QUIET: Mapping[str, object] = {
    **dict.fromkeys(_OFF, False),
    **dict.fromkeys(_STRATEGIES, "no"),
    "resume_from_checkpoint": None,
    "report_to": "none",
    "disable_tqdm": True,
    "max_steps": ENDLESS,
}
"""No evaluation, saving, logging, hub and end of training, by the arguments of every version."""

_SILENT_METHODS = (
    "save_model", "_save_checkpoint", "save_state", "save_metrics", "push_to_hub",
    "create_model_card", "init_hf_repo", "init_git_repo",
)  # fmt: skip


def patches(meter: Meter) -> list[tuple[str, Patch]]:
    """What to do with each module of transformers once it is loaded."""
    return [
        ("transformers.training_args", lambda m: _patch_arguments(m, meter)),
        ("transformers.trainer", lambda m: _patch_trainer(m, meter)),
        ("transformers.modeling_utils", lambda m: silence(m.PreTrainedModel, "save_pretrained")),
    ]


def _patch_arguments(module: ModuleType, meter: Meter) -> None:
    @around(module.TrainingArguments, "__post_init__")
    def post_init(original: Original, self: TrainingArguments) -> None:
        if not hasattr(self, "_cputune_asked"):
            self._cputune_asked = TypedArguments(
                steps=self.max_steps,
                epochs=self.num_train_epochs,
                parsed=meter.flags >= {f.name for f in fields(self) if f.init},
            )
            _quiet(self, meter.output)
        original(self)


@dataclass(frozen=True, kw_only=True)
class TypedArguments:
    """What a script says in its TrainingArguments, before a trial changes them.

    Attributes:
        parsed: whether they come from the command line: every parser that makes flags of them
            (HfArgumentParser, TRL's own) knows all their names.
    """

    steps: int = 0
    epochs: float = 0
    parsed: bool = False


def asked_by(args: object) -> TypedArguments:
    """The script's arguments behind these; nothing is known of unpickled ones."""
    return getattr(args, "_cputune_asked", None) or TypedArguments()


def _quiet(args: TrainingArguments, output: str) -> None:
    """Set what this version has of ``QUIET``, and lead what is written elsewhere."""
    for name, value in {**QUIET, "output_dir": output, "logging_dir": output}.items():
        if hasattr(args, name):
            setattr(args, name, value)
    if hasattr(args, "evaluation_strategy") and hasattr(args, "eval_strategy"):
        args.evaluation_strategy = None  # from 4.41 to 4.45 the older name is a warning
    scheduler = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if scheduler in ("reduce_lr_on_plateau", "greedy"):
        args.lr_scheduler_type = "constant"  # these two settings require an evaluation


def _patch_trainer(module: ModuleType, meter: Meter) -> None:
    cls = module.Trainer
    base: Any = module.TrainerCallback

    class StepClock(base):  # type: ignore[misc]
        def on_step_end(self, *args: object, optimizer: object = None, **kwargs: object) -> None:
            meter.step(mean_loss=False, optimizer=optimizer)

    @around(cls, "__init__")
    def init(original: Original, self: object, *args: object, **kwargs: object) -> None:
        meter.seen.add("Trainer")
        original(self, *args, **kwargs)

    @around(cls, "train")
    def train(
        original: Original, self: Trainer, resume: object = None, *args: object, **kwargs: object
    ) -> None:
        kwargs.pop("resume_from_checkpoint", None)
        for callback in list(self.callback_handler.callbacks):
            if type(callback).__name__ == "EarlyStoppingCallback":
                self.remove_callback(callback)  # it requires an evaluation (on_train_begin)
        self.add_callback(StepClock)
        _watch_training_step(self, meter)
        _see(self, meter)
        meter.begin("trainer")
        original(self, None, *args, **kwargs)
        meter.end()
        meter.leave(0)

    @around(cls, "create_scheduler")
    def create_scheduler(
        original: Original, self: object, num_training_steps: int, *args: object, **kwargs: object
    ) -> object:
        return original(self, _asked_steps(self) or num_training_steps, *args, **kwargs)

    cls.evaluate = lambda self, *args, **kwargs: _NoMetrics()
    silence(cls, *_SILENT_METHODS)


def _see(trainer: Trainer, meter: Meter) -> None:
    """Note what this trainer trains; other arguments may have been made since."""
    args, facts, data = trainer.args, meter.facts, trainer.train_dataset
    asked, steps = asked_by(args), _asked_steps(trainer)
    facts["parses_arguments"] = asked.parsed
    facts["batch"] = args.per_device_train_batch_size
    facts["accumulation"] = args.gradient_accumulation_steps
    facts["learning_rate"] = args.learning_rate
    facts["dataset"], facts["dataset_samples"] = type(data).__name__, samples_of(data)
    facts["steps_to_end"] = steps or 0
    facts.pop("epochs", None)
    if asked.steps <= 0:
        facts["epochs"] = asked.epochs
    meter.first.facts["steps"] = steps or ENDLESS


def _watch_training_step(trainer: Trainer, meter: Meter) -> None:
    """Wrap the methods of this one object, so that a subclass's own are measured too."""
    original = trainer.training_step

    def training_step(model: Module, inputs: object, *args: object, **kwargs: object) -> object:
        meter.watch(model)
        samples = meter.see_batch(inputs)
        loss = original(model, inputs, *args, **kwargs)
        meter.micro_step(samples, loss)
        return loss

    trainer.training_step = training_step


def _asked_steps(trainer: Trainer) -> int | None:
    """The steps that the script would train for: its learning rates depend on them."""
    asked, samples = asked_by(trainer.args), samples_of(trainer.train_dataset)
    if asked.steps > 0 or samples is None:
        return asked.steps if asked.steps > 0 else None
    args = trainer.args
    each = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return max(1, math.ceil(float(samples / each * asked.epochs)))


class _NoMetrics(dict[str, float]):
    """The metrics of an evaluation that was not made: any of them is 0."""

    def __missing__(self, key: str) -> float:
        return 0.0


def silence(cls: object, *methods: str) -> None:
    """Let these methods do nothing, where this version has them."""
    for name in methods:
        if hasattr(cls, name):
            setattr(cls, name, lambda *args, **kwargs: None)
