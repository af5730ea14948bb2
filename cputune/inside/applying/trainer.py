"""Sets a plan in the TrainingArguments of a script, and divides their batch over the ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.scale import keep_scale
from cputune.inside.applying.shared import Setting

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments


class Divided(int):
    """A batch that was divided over the ranks, recognizable in arguments that are made of others.

    ``typed`` are the batches of a step of the current launch.
    """

    typed: int

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Saved (``training_args.bin`` of a checkpoint) it is a number: __main__ is the script."""
        return int, (int(self),)

    def __deepcopy__(self, memo: object) -> Divided:
        return self


class TrainerPart:
    """Sets every TrainingArguments of a script, and the scale of a Trainer's losses."""

    name = "trainer"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._own: tuple[int, int] | None = None

    def hooks(self) -> list[Hook]:
        """Subclasses (Seq2SeqTrainingArguments, TRL's configs) all pass through the first."""
        trainer = "transformers.trainer"
        return [
            ("transformers.training_args", "TrainingArguments.__post_init__", self._post_init),
            (trainer, "Trainer.__init__", self._trainer_init),
            (trainer, "Trainer.train", self._train),
        ]

    def report(self) -> dict[str, str]:
        """Nothing: a rank shows its arguments by itself."""
        return {}

    def _post_init(self, original: Original, args: TrainingArguments) -> None:
        """Before ``__post_init__`` checks the values and starts torch.distributed."""
        for name, value in self._setting.force.arguments.items():
            self._setting.set(args, name, value)
        self._divide(args)
        original(args)

    def _divide(self, args: TrainingArguments) -> None:
        batch, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        if isinstance(batch, Divided):  # arguments that were made of others, as TRL does
            return
        script_batch = (batch, accumulation)
        force = self._setting.force
        first = self._own is None or (self._own == script_batch and not force.by_flags)
        self._own = self._own or script_batch
        if not first:  # what was asked for as the global batch is that of the first arguments
            force = replace(force, samples_per_rank=None)
        typed = accumulation
        try:
            if first and force.by_flags and batch * accumulation == force.samples_per_rank:
                typed = force.typed_accumulation or accumulation
            else:
                batch, accumulation = force.batch(batch, accumulation)
        except ValueError as error:
            args._cannot_divide = str(error)  # it matters where a Trainer trains with it
            return
        self._setting.set(args, "per_device_train_batch_size", batch)
        self._setting.set(args, "gradient_accumulation_steps", accumulation)
        args.per_device_train_batch_size = divided = Divided(batch)
        divided.typed = typed

    def _trainer_init(self, original: Original, *args: object, **kwargs: object) -> None:
        self._setting.has_trainer = True
        original(*args, **kwargs)

    def _train(self, original: Original, trainer: Trainer, *args: object, **kw: object) -> object:
        self._divide(trainer.args)  # the script may have changed its batch by itself
        if not isinstance(trainer.args.per_device_train_batch_size, Divided):
            self._setting.refuse(trainer.args._cannot_divide)
        keep_scale(self._setting, trainer)
        self._setting.tell()
        return original(trainer, *args, **kw)
