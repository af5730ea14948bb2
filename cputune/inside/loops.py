"""Hooks on what trains: a ``Trainer``, or the script's own loop.

A Trainer (transformers 4.38 to 5.x) writes and reports nothing in a trial and does not end by
itself: that is set on every ``TrainingArguments`` before its ``__post_init__``. What a plan sets is
in ``applying``.

In a loop over an Accelerator or over torch alone, a batch is what a loader gives, and a step is one
of the optimizer that steps first. A script that cannot be measured so is ended at its first step,
before it writes its checkpoints to their usual place.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from cputune.inside.applying.hooking import Hook, Original, nothing, put
from cputune.inside.applying.parts import the_parts
from cputune.inside.by_hand import WeightsByHand
from cputune.inside.contents import end_of_epoch
from cputune.inside.first_steps import LOOKED_AT
from cputune.inside.messages import Framework
from cputune.inside.meter import Meter, samples_of

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.nn import Module
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.hooks import RemovableHandle
    from transformers import Trainer, TrainingArguments

# Steps that a trial would train for.
ENDLESS = 1_000_000

# Batches that a script may fetch before it trains on the first of them.
AHEAD = 64

# Batches of an evaluation that a script sees while its model is checked.
SEEN = 2

_OFF = (
    "do_eval",
    "do_predict",
    "eval_on_start",
    "load_best_model_at_end",
    "logging_first_step",
    "push_to_hub",
    "auto_find_batch_size",
)
_STRATEGIES = ("eval_strategy", "evaluation_strategy", "save_strategy", "logging_strategy")
# No evaluation, saving, logging, hub or end of training, for every version.
QUIET: Mapping[str, object] = {
    **dict.fromkeys(_OFF, False),
    **dict.fromkeys(_STRATEGIES, "no"),
    "resume_from_checkpoint": None,
    "report_to": "none",
    "disable_tqdm": True,
    "max_steps": ENDLESS,
}

# Methods that do nothing in a trial.
_SILENT = {
    ("transformers.trainer", "Trainer"): (
        "save_model",
        "_save_checkpoint",
        "save_state",
        "save_metrics",
        "push_to_hub",
        "create_model_card",
        "init_hf_repo",
        "init_git_repo",
    ),
    ("transformers.modeling_utils", "PreTrainedModel"): ("save_pretrained",),
    ("accelerate.accelerator", "Accelerator"): (
        "save",
        "save_state",
        "save_model",
        "init_trackers",
        "log",
    ),
}


@dataclass(frozen=True)
class TypedArguments:
    """The script's TrainingArguments, before a trial changes them.

    ``parsed``: they come from the command line. Every parser that makes flags of them
    (HfArgumentParser, TRL's own) knows all their names.
    """

    steps: int = 0
    epochs: float = 0
    parsed: bool = False


class Loops:
    """Reports batches, losses and steps to the meter, whatever trains.

    ``prepared``: the loaders that an Accelerator has prepared, each with the script's own.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.prepared: list[tuple[object, object]] = []
        self._trainer: Trainer | None = None
        self._fetched: deque[tuple[int, object]] = deque()
        self._fetched_at = 0
        self._loader: object = None
        self._running = 0
        self._clock: int | None = None
        self._watching: RemovableHandle | None = None
        self._by_hand = WeightsByHand()
        self._models: list[Module] = []

    def hooks(self) -> list[Hook]:
        """What is hooked in transformers, accelerate and torch."""
        trainer, accelerator = "transformers.trainer", "accelerate.accelerator"
        prepared = partial(self._iterate, "accelerate")
        return [
            ("transformers.training_args", "TrainingArguments.__post_init__", self._post_init),
            (trainer, "Trainer.__init__", self._trainer_init),
            (trainer, "Trainer.train", self._train),
            (trainer, "Trainer.create_scheduler", self._create_scheduler),
            (trainer, "Trainer.evaluate", lambda *_, **__: _NoMetrics()),
            ("transformers.trainer_callback", "CallbackHandler.on_step_end", self._step_end),
            (accelerator, "Accelerator.__init__", self._accelerator_init),
            (accelerator, "Accelerator.backward", self._accelerator_backward),
            (accelerator, "Accelerator.gather", self._gather),
            (accelerator, "Accelerator.reduce", self._reduce),
            (accelerator, "Accelerator.prepare_data_loader", self._prepare_data_loader),
            ("accelerate.data_loader", "DataLoaderShard.__iter__", prepared),
            ("accelerate.data_loader", "DataLoaderDispatcher.__iter__", prepared),
            ("torch", "save", self._save),
            (
                "torch.utils.data.dataloader",
                "DataLoader.__iter__",
                partial(self._iterate, "pytorch"),
            ),
            ("torch._tensor", "Tensor.backward", self._tensor_backward),
            ("torch.optim.optimizer", "", self._watch_optimizers),
            ("torch.optim.optimizer", "Optimizer.__init__", self._by_hand.optimizer_made),
            ("torch.optim.lr_scheduler", "OneCycleLR.step", _let_schedule_end),
            *(
                (module, f"{cls}.{name}", nothing)
                for (module, cls), names in _SILENT.items()
                for name in names
            ),
        ]

    # A Trainer

    def _post_init(self, original: Original, args: TrainingArguments) -> None:
        if not hasattr(args, "_cputune_asked"):
            args._cputune_asked = TypedArguments(
                steps=args.max_steps,
                epochs=args.num_train_epochs,
                parsed=self.meter.flags >= {f.name for f in fields(args) if f.init},
            )
            _quiet(args, self.meter.output)
        original(args)

    def _trainer_init(self, original: Original, *args: object, **kwargs: object) -> None:
        self.meter.seen.add("Trainer")
        original(*args, **kwargs)

    def _train(
        self,
        original: Original,
        trainer: Trainer,
        resume: object = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        kwargs.pop("resume_from_checkpoint", None)
        for callback in list(trainer.callback_handler.callbacks):
            if type(callback).__name__ == "EarlyStoppingCallback":
                trainer.remove_callback(callback)  # it requires an evaluation (on_train_begin)
        self._trainer = trainer
        put(trainer, "training_step", self._training_step)  # of this object: a subclass's own too
        self._see_trainer(trainer)
        self.meter.begin("trainer")
        original(trainer, None, *args, **kwargs)
        self.meter.end()
        self.meter.leave(0)

    def _training_step(
        self, original: Original, model: Module, inputs: object, *args: object, **kwargs: object
    ) -> object:
        self.meter.watch(model)
        samples = self.meter.see_batch(inputs)
        if isinstance(inputs, list):  # TRL hands over what it generates for several batches at once
            samples = min(samples, self.meter.facts.get("batch", samples))
        loss = original(model, inputs, *args, **kwargs)
        self.meter.micro_step(samples, loss, inputs)
        self._ask(partial(original, model), model, inputs, args, kwargs)
        return loss

    def _ask(
        self,
        original: Original,
        model: Module,
        inputs: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Check the model, if this process has questions and has come to a point."""
        asker = self.meter.asker
        if not asker.due(self.meter.steps):
            return
        keywords = {**dict(zip(("num_items_in_batch",), args, strict=False)), **kwargs}
        items = keywords.get("num_items_in_batch")
        for batch, factor in asker.batches(
            inputs,
            [model],
            beside=self._trainer,
            items=items is not None,
            size=self.meter.facts.get("batch"),
            steps=_asked_steps(self._trainer),
        ):
            if items is not None:
                keywords["num_items_in_batch"] = items * int(factor)
            with contextlib.suppress(Exception):  # the question has no answer then
                asker.turns.trained(original(batch, **keywords))

    def _step_end(
        self, original: Original, handler: Any, *args: object, **kwargs: object
    ) -> object:
        done = original(handler, *args, **kwargs)
        self.meter.step(mean_loss=False, optimizer=handler.optimizer)
        return done

    def _see_trainer(self, trainer: Trainer) -> None:
        """Note what this trainer trains; other arguments may have been made since."""
        args, facts, data = trainer.args, self.meter.facts, trainer.train_dataset
        requested, steps = asked_by(args), _asked_steps(trainer)
        facts["parses_arguments"] = requested.parsed
        facts["batch"] = args.per_device_train_batch_size
        facts["accumulation"] = args.gradient_accumulation_steps
        facts["dataset_samples"] = samples_of(data)
        facts["steps_to_end"] = steps or 0
        facts.pop("epochs", None)
        if requested.steps <= 0:
            facts["epochs"] = requested.epochs
        self.meter.first.facts["steps"] = steps or ENDLESS

    def _create_scheduler(
        self,
        original: Original,
        trainer: Trainer,
        num_training_steps: int,
        *args: object,
        **kwargs: object,
    ) -> object:
        return original(trainer, _asked_steps(trainer) or num_training_steps, *args, **kwargs)

    # A loop of the script's own

    def trains_by(self, framework: Framework) -> bool:
        """Whether a loop over this framework trains here; false if a Trainer does."""
        used = "pytorch"
        if "Accelerator" in self.meter.seen:
            used = "accelerate"
        return framework == used and self.meter.framework != "trainer"

    def _iterate(
        self, framework: Framework, original: Callable[..., Iterator[object]], loader: object
    ) -> Iterator[object]:
        if framework == "accelerate" and self.meter.framework == "trainer":
            self._see_end(loader, self.meter.facts.get("accumulation", 1))
            self.meter.asker.begin_pass()
        if not self.trains_by(framework):
            return original(loader)
        return self.over(loader, framework, partial(original, loader))

    def _see_end(self, loader: object, accumulation: int) -> None:
        """Note how many samples the last step of an epoch takes in this rank."""
        first = self.meter.first.facts
        if self.meter.steps == 0 and "last" not in first:
            sampler = getattr(loader, "batch_sampler", None)
            places = end_of_epoch(sampler, accumulation)
            if places is not None:
                sharers = 1
                if hasattr(loader, "split_batches"):  # a dispatcher, with the batches of all ranks
                    sharers = sys.modules["torch"].distributed.get_world_size()
                first["last"] = -(-len(places) // sharers)

    def over(
        self, loader: object, framework: Framework, iterate: Callable[[], Iterator[object]]
    ) -> Iterator[object]:
        """The batches of a loader; those of the loader that is trained on never end.

        A script evaluates and saves when its training loader is exhausted. A loader that is
        iterated inside another one's loop is an evaluation: its time does not count. While a model
        is checked loaders do end, since its next passes may differ; evaluations are cut short.
        """
        meter, nested = self.meter, self._running > 0
        if not nested and meter.steps:
            meter.asker.begin_pass()
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
                for number, batch in enumerate(iterate()):
                    if number == SEEN and self._is_evaluation(before):
                        return  # what follows it is to be seen, too
                    self._fetch(loader, batch)
                    done = meter.backwards
                    yield batch
                    if meter.backwards > done and meter.asker.due(meter.steps - 1):
                        yield from self._questions(batch)
                if not self._goes_on(before):
                    return
        finally:
            self._running -= 1
            if nested and meter.backwards == trained:
                meter.resume(since)

    def _fetch(self, loader: object, batch: object) -> None:
        """Note a batch that the script takes; it may take several and then train on each."""
        if loader is not self._loader or self.meter.backwards > self._fetched_at:
            self._fetched.clear()
        self._fetched.append((self.meter.see_batch(batch), batch))
        self._loader, self._fetched_at = loader, self.meter.backwards

    def _questions(self, batch: object) -> Iterator[object]:
        """The batches of questions, each again until the script trains on it."""
        asker = self.meter.asker
        for part, _ in asker.batches(batch, self._models, size=self.meter.facts.get("batch")):
            for _ in range(AHEAD):
                yield part
                if asker.turns.is_trained:
                    break

    def _is_evaluation(self, backwards: int) -> bool:
        """Whether a model that is checked has not gone backward meanwhile."""
        meter = self.meter
        looks = meter.asker.looks_at_samples
        return looks and meter.steps > 0 and meter.backwards == backwards

    def _goes_on(self, backwards: int) -> bool:
        """Whether a loader begins anew when it is exhausted."""
        meter = self.meter
        return meter.backwards > backwards and not meter.asker.looks_at_samples

    def _called(self, model: Module, *args: object) -> None:
        """The first model that is called to train reports its precision, before its layers run.

        Later calls are not hooked: the hook would be compiled, too.
        """
        trains = model.training and sys.modules["torch"].is_grad_enabled()
        if trains and not self._models:
            self._models.append(model)
        if trains and self.meter.watch(model) and self._watching is not None:
            self._watching.remove()

    def _tensor_backward(
        self, original: Original, loss: object, *args: object, **kwargs: object
    ) -> None:
        self._require_optimizer(loss)
        original(loss, *args, **kwargs)
        turns = self.meter.asker.turns
        if turns.are_on:
            turns.went_backward()
        if self.trains_by("pytorch"):
            self.backward(loss)

    def _require_optimizer(self, loss: object) -> None:
        """End a loop that changes its weights without an optimizer, because no step would be
        seen.
        """
        if self.meter.steps or self.meter.framework == "trainer":
            return
        if self._by_hand.changed(loss):
            self.meter.refuse(
                "it changes its weights itself, without an optimizer of torch, so its steps cannot "
                "be seen: let an optimizer do it, torch.optim.SGD(model.parameters(), lr=...) and "
                "optimizer.step()",
                hopeless=True,
            )

    def _accelerator_backward(
        self, original: Original, accelerator: Accelerator, loss: object, **kwargs: object
    ) -> object:
        done = original(accelerator, loss, **kwargs)
        if self.trains_by("accelerate"):
            self.backward(loss, accelerator)
        return done

    def _gather(self, original: Original, accelerator: Accelerator, tensor: object) -> object:
        return self.meter.asker.turns.gathered(original(accelerator, tensor))

    def _reduce(
        self,
        original: Original,
        accelerator: Accelerator,
        tensor: object,
        reduction: str = "sum",
        scale: float = 1.0,
    ) -> object:
        reduced = original(accelerator, tensor, reduction, scale)
        return self.meter.asker.turns.gathered(reduced, reduction=reduction)

    def backward(self, loss: object, accelerator: Accelerator | None = None) -> None:
        """Note that a loss went backward; a batch with several losses is one batch.

        The loader whose batch goes backward first is the one that is trained on. The batches of the
        first step are counted, for scripts that accumulate by hand.
        """
        meter = self.meter
        if meter.asker.turns.are_on:
            meter.asker.turns.trained(loss)
            return
        samples, batch = self._fetched.popleft() if self._fetched else (0, None)
        if meter.steps == 0 and samples:
            if accelerator is None:
                meter.see_loader(self._loader)
            elif meter.backwards == 0:
                self._see_prepared(accelerator)
            if "batch" in meter.facts:
                meter.facts["accumulation"] = meter.facts.get("accumulation", 0) + 1
        meter.micro_step(samples, loss.detach() if hasattr(loss, "detach") else loss, batch)

    def _see_prepared(self, accelerator: Accelerator) -> None:
        """Note the loader that is trained on, and how long the training is."""
        loaders = [loader for loader, _ in self.prepared]
        if self._loader not in loaders:
            return
        meter, first = self.meter, self.meter.first.facts
        first["loader"] = place = loaders.index(self._loader)
        meter.see_loader(self.prepared[place][1])
        if "batch" not in meter.facts:
            return
        if getattr(accelerator, "split_batches", False) and "dispatch" not in the_parts():
            meter.facts["batch"] //= accelerator.num_processes
        steps, epochs = meter.facts.get("steps_to_end"), meter.facts.get("epochs")
        epoch = samples_of(self._loader)
        self._see_end(self._loader, accelerator.gradient_accumulation_steps)
        if epoch is not None:
            first["epoch_steps"] = each = -(-epoch // accelerator.gradient_accumulation_steps)
            if not steps and epochs:
                steps = math.ceil(each * epochs)
        if steps is not None:
            first["steps"] = steps

    def _watch_optimizers(self, module: ModuleType) -> None:
        module.register_optimizer_step_pre_hook(self._before_step)
        module.register_optimizer_step_post_hook(lambda optimizer, *_: self._stepped(optimizer))

    def _before_step(
        self, optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A script that cannot be measured ends here, before the optimizer steps.

        The gradients of a closure are looked at when it returns.
        """
        meter = self.meter
        meter.asker.saw(optimizer)
        meter.weights.saw(optimizer)
        if not (meter.framework == "trainer" or self._sees_batches()):
            self._refuse_step()
        look = partial(meter.first.before_step, optimizer)
        if meter.steps < LOOKED_AT and any(map(callable, args)):
            return tuple(_then(arg, look) for arg in args), kwargs
        if meter.steps < LOOKED_AT and callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _then(kwargs["closure"], look)}
        look(args, kwargs)
        return None

    def _sees_batches(self) -> bool:
        """Whether what trains here takes its batches from a loader that is watched."""
        framework = self.meter.framework
        return framework is not None and self.trains_by(framework)

    def _refuse_step(self) -> NoReturn:
        meter = self.meter
        meter.refuse_a_child()
        if "Accelerator" in meter.seen:
            meter.refuse(
                "it has an Accelerator, but steps an optimizer outside a data loader that the "
                "Accelerator has prepared: give the loader to accelerator.prepare()",
                hopeless=True,
            )
        meter.refuse(
            "it has its own training loop that takes no batch from a "
            "torch.utils.data.DataLoader, so its samples cannot be counted: iterate a DataLoader",
            hopeless=True,
        )

    def _stepped(self, optimizer: object) -> None:
        """Note that an optimizer has stepped; the first one that ever did is the clock."""
        if self.meter.framework == "trainer":
            return
        if self._clock is None:
            self._clock = id(optimizer)
        if self._clock == id(optimizer):
            if self.meter.steps == 0 and self._watching is not None:
                self._watching.remove()
            self.meter.step(mean_loss=True, optimizer=optimizer)

    def _accelerator_init(
        self, original: Original, accelerator: Accelerator, *args: object, **kwargs: object
    ) -> None:
        self.meter.seen.add("Accelerator")
        kwargs.pop("log_with", None)
        if kwargs.get("project_dir") is not None:
            kwargs["project_dir"] = self.meter.output
        original(accelerator, *args, **kwargs)

    def _prepare_data_loader(
        self,
        original: Original,
        accelerator: Accelerator,
        loader: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        prepared = original(accelerator, loader, *args, **kwargs)
        if "Trainer" not in self.meter.seen:
            self.prepared.append((prepared, loader))
        return prepared

    def _save(
        self, original: Original, obj: object, f: object, *args: object, **kwargs: object
    ) -> None:
        """Save no files once training has begun."""
        if self.meter.framework is None or not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)


def _then(closure: Any, look: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> Any:
    """A closure of an optimizer, after which its gradients are looked at."""
    if not callable(closure):
        return closure

    def closed(*args: object, **kwargs: object) -> object:
        loss = closure(*args, **kwargs)
        look((), {})
        return loss

    return closed


def asked_by(args: TrainingArguments) -> TypedArguments:
    """What the script itself has said in these arguments."""
    return getattr(args, "_cputune_asked", None) or TypedArguments()


def _quiet(args: TrainingArguments, output: str) -> None:
    """Set what this version has of ``QUIET``, and redirect what is written."""
    for name, value in {**QUIET, "output_dir": output, "logging_dir": output}.items():
        if hasattr(args, name):
            setattr(args, name, value)
    if hasattr(args, "evaluation_strategy") and hasattr(args, "eval_strategy"):
        args.evaluation_strategy = None  # from 4.41 to 4.45 the older name is a warning
    scheduler = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if scheduler in ("reduce_lr_on_plateau", "greedy"):
        args.lr_scheduler_type = "constant"  # these two settings require an evaluation


def _asked_steps(trainer: Trainer) -> int | None:
    """The steps that the script would train for: its learning rates depend on them."""
    requested, samples = asked_by(trainer.args), samples_of(trainer.train_dataset)
    if requested.steps > 0 or samples is None:
        if requested.steps > 0:
            return requested.steps
        return None
    args = trainer.args
    each = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return max(1, math.ceil(float(samples / each * requested.epochs)))


class _NoMetrics(dict[str, float]):
    """Metrics of an evaluation that was not run: 0."""

    def __missing__(self, key: str) -> float:
        return 0.0


def _let_schedule_end(
    original: Original, schedule: LRScheduler, *args: object, **kwargs: object
) -> None:
    """Let OneCycleLR go on after its last step, because trials have no end."""
    if schedule.last_epoch + 1 < schedule.total_steps:
        original(schedule, *args, **kwargs)
