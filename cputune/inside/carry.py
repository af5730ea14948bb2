#!/usr/bin/env python3
"""Run a training script with the part of a plan that its command line cannot say.

    python carry.py PLAN train.py --its-arguments
    python carry.py PLAN -m package.train --its-arguments

PLAN is JSON: ``{"world_size": 2, "samples_per_rank": 4, "arguments": {"bf16": true}}``.
The script stays as it is. When it has loaded transformers or accelerate, this sets

- in every ``TrainingArguments``: the fields in ``arguments``, and the batch of one rank;
- in every ``Accelerator``: the CPU, the precision and the kind of AdamW that ``arguments`` say;
- in the data loader that a loop over an Accelerator trains on: the batch of one rank;
- whatever trains: what ``torch`` says. ``padding`` cuts off the columns of a batch that are padding
  in all of its samples (``Cutter``), ``order`` takes samples of like length (``Order``), and
  ``dropout`` draws masks on all threads (``Masks``);
- and so that it trains the same as typed, on ``typed_ranks``: the steps of its schedules, what a
  loop over an Accelerator is told of the number of ranks before it trains, and the scale of a
  Trainer's losses, which grows with the ranks for models that ignore ``num_items_in_batch``;

and the first rank says in one line on stderr what it has changed. ``samples_per_rank`` are
the samples of one rank in a step of the optimizer; without them the script's own batch is
what all ranks take together. A batch that cannot be divided ends the job with exit status 3.
Where PLAN has no ``world_size`` the script's objects stay as they are; in ``{}`` nothing is set.

When the script has ended well, its ranks wait for each other, and leave together.

It needs Python 3.9 and nothing else, and is made for transformers 4.38 to 5.x, accelerate
0.26 to 1.x and torch 2.x. Trials of cputune are run with this very file.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import copy
import ctypes
import functools
import importlib.abc
import importlib.machinery
import inspect
import io
import itertools
import json
import math
import os
import random
import runpy
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from accelerate import Accelerator
    from datasets import Dataset
    from torch import Generator, Tensor
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader, Sampler
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from transformers import BatchEncoding, Trainer, TrainingArguments

    Run = Callable[[Module, Any], object]
    """What a model makes of a batch: a loss, or what has it, or outputs."""

Original = Callable[..., object]
"""A function of a library, in whose place one of ours stands."""

Hook = tuple[str, str, Callable[..., object]]
"""A module; what of it (``Trainer.train``); and what is called in its place, with the original
before the arguments. Without a name: what is called with the module, once it is loaded."""


@dataclass(frozen=True)
class Force:
    """What is set in the script's own objects.

    Attributes:
        world_size: ranks of the job; 0 leaves the script's objects as they are.
        arguments: fields of TrainingArguments, by their names in today's transformers.
        samples_per_rank: samples of one rank per optimizer step; None takes the script's
            own batch for the global batch, and divides it over the ranks.
        batch_per_rank: the batch of every rank whatever their number; None: see above.
        accumulation: batches of one step that the plan says, or that a loop of the script's
            own takes; None where its framework knows, and they stay.
        torch: what is set whatever trains: ``dropout``: ``bytes``; ``padding``: ``cut``, or ``ask``
            where it is only found out whether it may be; ``order``: ``length``.
        typed_ranks: ranks of the launch as it was typed; what it trains hangs on them.
        typed_accumulation: batches of one of its steps, where flags have changed them.
        by_flags: flags have set the arguments, and the batch of those that are parsed.
        loader: which of the loaders that an Accelerator prepares is trained on, from 0.
        find_unused: whether the model has parameters that a step does not use.
    """

    world_size: int = 0
    arguments: Mapping[str, object] = field(default_factory=dict)
    samples_per_rank: int | None = None
    batch_per_rank: int | None = None
    accumulation: int | None = None
    torch: Mapping[str, str] = field(default_factory=dict)
    typed_ranks: int = 1
    typed_accumulation: int | None = None
    by_flags: bool = False
    loader: int = 0
    find_unused: bool = False

    def to_json(self) -> str:
        """PLAN; what is as by default is left out."""
        usual = Force()
        said = ((one.name, getattr(self, one.name)) for one in fields(self))
        return json.dumps({name: v for name, v in said if v != getattr(usual, name)})

    @property
    def other_ranks(self) -> bool:
        """Whether the plan has another number of ranks than the launch as typed."""
        return self.batch_per_rank is None and self.world_size != self.typed_ranks

    @property
    def precision(self) -> str:
        """In the words of accelerate."""
        return next((name for name in ("bf16", "fp16") if self.arguments.get(name)), "no")

    def batch(self, batch: int, accumulation: int) -> tuple[int, int]:
        """Batch and accumulation steps of one rank, from those of the script.

        The script's accumulation steps stay where they divide the rank's samples, else
        their greatest common divisor does. Raises ValueError where the script's global
        batch cannot be divided over the ranks.
        """
        if self.batch_per_rank is not None:
            return self.batch_per_rank, accumulation
        samples = self.samples_per_rank
        if samples is None:
            whole = batch * accumulation * self.typed_ranks
            samples, rest = divmod(whole, self.world_size)
            if rest:
                raise ValueError(
                    f"a global batch of {whole} cannot be divided over {self.world_size} ranks"
                )
        accumulation = math.gcd(self.accumulation or accumulation, samples)
        return samples // accumulation, accumulation


def set_hooks(hooks: Iterable[Hook]) -> None:
    """Set each hook when its module is loaded; at once where that has happened."""
    waiting: dict[str, list[Hook]] = {}
    for module, what, called in hooks:
        if module in sys.modules:
            put(sys.modules[module], what, called)
        else:
            waiting.setdefault(module, []).append((module, what, called))
    sys.meta_path.insert(0, _Watcher(waiting))


def put(owner: object, what: str, called: Callable[..., object]) -> None:
    """Set one hook in a module that is loaded, or in a class or an object."""
    *outer, name = what.split(".")
    owner = functools.reduce(getattr, outer, owner)
    if not name:
        called(owner)
    elif called is not nothing or hasattr(owner, name):
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*args: object, **kwargs: object) -> object:
            return called(original, *args, **kwargs)

        setattr(owner, name, method)


def nothing(*_: object, **__: object) -> None:
    """In the place of what is not to happen; not every version has it."""


class _Watcher(importlib.abc.MetaPathFinder):
    """Lets the other finders find, and sets hooks in what they load."""

    def __init__(self, waiting: Mapping[str, Sequence[Hook]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Asked for more than once: who only looks whether a module is there (is_ipex_available)
        # asks here too, and loads nothing.
        hooks = self._waiting.get(name)
        if hooks is None:
            return None
        # Those behind it alone: two watchers (a launch that is observed) must not ask each other.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _put_after(spec.loader, name, hooks)
                return spec
        return None


def _put_after(loader: object, name: str, hooks: Sequence[Hook]) -> None:
    def load(original: Original, module: ModuleType) -> None:
        original(module)
        if module.__name__ == name:  # an archive has one loader for all of its modules
            for _, what, called in hooks:
                put(module, what, called)

    put(loader, "exec_module", load)


class Divided(int):
    """A batch that was divided over the ranks: it says so in arguments that are made of others.

    ``typed`` are the batches of a step of the launch as typed.
    """

    typed: int

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Saved (``training_args.bin`` of a checkpoint) it is a number: __main__ is the script."""
        return int, (int(self),)

    def __deepcopy__(self, memo: object) -> Divided:
        return self


class Carrier:
    """Sets a ``Force`` in the objects of a script, as the script makes them.

    ``refuse`` is told why the script cannot be run as the plan asks, and ends the process.
    ``changes`` are what was set and not yet told, in words.
    """

    def __init__(
        self,
        force: Force,
        refuse: Callable[[str], NoReturn],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.force = force
        self.refuse = refuse
        self._say = say
        self.changes: dict[str, str] = {}
        self._own: tuple[int, int] | None = None
        self._has_trainer = False
        self.cutter: Cutter | None = None
        self.order: Order | None = None
        self.masks: Masks | None = None
        self._prepared: list[object] = []
        self._trains = self._pretends = False

    def hooks(self) -> list[Hook]:
        """What is set where; whoever observes the rank finds this carrier (``the_carrier``)."""
        sys.modules["cputune_carrier"] = module = ModuleType("cputune_carrier")
        module.carrier = self  # type: ignore[attr-defined]
        force, trainer, accelerator = self.force, "transformers.trainer", "accelerate.accelerator"
        hooks: list[Hook] = []
        if "dropout" in force.torch:
            hooks.append(("torch", "", self._draw_masks))
        if "padding" in force.torch:
            self.cutter = Cutter(force.torch["padding"] == "cut", self._say)
            hooks += self.cutter.hooks()
        if "order" in force.torch:
            self.order = Order(self._say)
            hooks.append((trainer, "Trainer._get_train_sampler", self.order.sampler))
        if not force.world_size:
            return hooks
        hooks += [
            # Subclasses (Seq2SeqTrainingArguments, TRL's configs) all pass through it.
            ("transformers.training_args", "TrainingArguments.__post_init__", self._post_init),
            (trainer, "Trainer.__init__", self._trainer_init),
            (trainer, "Trainer.train", self._train),
        ]
        if force.find_unused and force.world_size > 1:
            distributed = "torch.nn.parallel.distributed"
            hooks.append((distributed, "DistributedDataParallel.__init__", _find_unused))
        if force.other_ranks:
            hooks.append(("accelerate.scheduler", "", self._keep_schedules))
            hooks.append((accelerator, "", self._keep_number_of_ranks))
        if not force.by_flags:
            hooks += [
                (accelerator, "Accelerator.__init__", self._accelerator_init),
                (accelerator, "Accelerator.prepare_data_loader", self._prepare_loader),
                (accelerator, "Accelerator.backward", self._backward),
                (accelerator, "Accelerator.prepare_optimizer", self._prepare_optimizer),
            ]
        return hooks

    def said(self) -> dict[str, str]:
        """What a rank shows of what is set whatever trains."""
        found = {"dropout": "bytes"} if self.masks is not None and self.masks.drawn else {}
        for part in (self.cutter, self.order):
            found.update({} if part is None else part.said())
        return found

    def _draw_masks(self, torch: ModuleType) -> None:
        self.masks = Masks(torch)
        self._say(
            "set for the plan: dropout masks are drawn from random bytes, on all threads: "
            "others than torch's for the same seed"
        )

    def _post_init(self, original: Original, args: TrainingArguments) -> None:
        """Before ``__post_init__`` checks the values and starts torch.distributed."""
        for name, value in self.force.arguments.items():
            self._set(args, name, value)
        self._divide(args)
        original(args)

    def _set(self, args: object, name: str, value: object) -> None:
        before = getattr(args, name, value)  # a field that this version does not have is left
        if before != value:
            setattr(args, name, value)
            self.changes[name] = f"{name}={value} (was {before})"

    def _divide(self, args: TrainingArguments) -> None:
        own = (args.per_device_train_batch_size, args.gradient_accumulation_steps)
        if isinstance(own[0], Divided):  # arguments that were made of others, as TRL does
            return
        first = self._own is None or (self._own == own and not self.force.by_flags)
        self._own = self._own or own
        # What was asked for as the global batch is that of the first arguments.
        force = self.force if first else replace(self.force, samples_per_rank=None)
        typed = own[1]
        try:
            if first and force.by_flags and own[0] * own[1] == force.samples_per_rank:
                (batch, accumulation), typed = own, force.typed_accumulation or own[1]
            else:
                batch, accumulation = force.batch(*own)
        except ValueError as error:
            args._cannot_divide = str(error)  # it matters where a Trainer trains with it
            return
        self._set(args, "per_device_train_batch_size", batch)
        self._set(args, "gradient_accumulation_steps", accumulation)
        args.per_device_train_batch_size = divided = Divided(batch)
        divided.typed = typed

    def _trainer_init(self, original: Original, *args: object, **kwargs: object) -> None:
        self._has_trainer = True
        original(*args, **kwargs)

    def _train(self, original: Original, trainer: Trainer, *args: object, **kw: object) -> object:
        self._divide(trainer.args)  # the script may have changed its batch by itself
        if not isinstance(trainer.args.per_device_train_batch_size, Divided):
            self.refuse(trainer.args._cannot_divide)
        self._keep_scale(trainer)
        self.tell()
        return original(trainer, *args, **kw)

    def _keep_scale(self, trainer: Trainer) -> None:
        """Let the losses of this trainer have the scale of the launch as typed.

        Since 4.46 Trainer takes every model whose forward has ``**kwargs`` for one that divides
        its loss by the items of the whole step, multiplies it by the ranks, and does not divide
        it by the batches of a step. The gradient of models that do not divide (BERT's classifier)
        grows with both.
        """
        args, accepts = trainer.args, getattr(trainer, "model_accepts_loss_kwargs", None)
        typed, steps = args.per_device_train_batch_size.typed, args.gradient_accumulation_steps
        changed = self.force.other_ranks or typed != steps
        if accepts is None or not changed or "compute_loss" in vars(trainer):
            return
        if self.force.typed_ranks == 1 and hasattr(args, "average_tokens_across_devices"):
            args.average_tokens_across_devices = True  # the items are those of all ranks
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)  # of late releases
        if scaled is None:
            scaled = accepts or getattr(trainer, "compute_loss_func", None) is not None
        original = trainer.compute_loss
        ignores: list[bool] = []

        def compute_loss(model: Any, inputs: Any, *words: object, **kwargs: object) -> Any:
            items = kwargs.get("num_items_in_batch")
            if items is None:
                return original(model, inputs, *words, **kwargs)
            if not ignores:
                ignores.append(_ignores(original, model, inputs, items))
            if not ignores[0]:
                return original(model, inputs, *words, **kwargs)
            self._pretends = True
            try:
                loss = original(model, inputs, *words, **kwargs)
            finally:
                self._pretends = False
            scale = args.per_device_train_batch_size.typed / args.gradient_accumulation_steps
            return loss * scale if scaled and model.training else loss

        trainer.compute_loss = compute_loss

    def _keep_schedules(self, module: ModuleType) -> None:
        """AcceleratedScheduler steps once for each rank: it takes the batch to grow with them."""
        ranks = SimpleNamespace(num_processes=self.force.typed_ranks)
        module.AcceleratorState = lambda: ranks  # type: ignore[attr-defined]

    def _keep_number_of_ranks(self, module: ModuleType) -> None:
        """Before it trains, a script is told the number of ranks of its launch as typed.

        By it scripts scale learning rates and count the steps of their schedules. What libraries
        ask for, and all that is asked later, is the number that there is.
        """
        cls = module.Accelerator
        real = cls.num_processes
        libraries = os.path.dirname(os.path.dirname(str(module.__file__)))

        def num_processes(accelerator: object) -> int:
            asking = sys._getframe(1)
            script = asking.f_globals.get("__name__") == "__main__"
            script |= not asking.f_code.co_filename.startswith(libraries)
            before = script and not (self._trains or self._has_trainer)
            typed = before or self._pretends
            return self.force.typed_ranks if typed else int(real.fget(accelerator))

        cls.num_processes = property(num_processes)

    def _accelerator_init(
        self, original: Original, accelerator: Accelerator, *args: object, **kwargs: object
    ) -> None:
        bound = inspect.signature(original).bind_partial(accelerator, *args, **kwargs)
        _, *given = bound.arguments.items()
        wanted = self.force.precision
        before = str(bound.arguments.get("mixed_precision"))
        if not self._has_trainer and before not in ("None", wanted):
            self.changes["mixed_precision"] = f"mixed_precision={wanted} (was {before})"
        original(accelerator, **{**dict(given), "mixed_precision": wanted, "cpu": True})

    def _prepare_loader(
        self,
        original: Original,
        accelerator: Accelerator,
        loader: DataLoader,
        *args: object,
        **kwargs: object,
    ) -> object:
        if self._has_trainer:
            return original(accelerator, loader, *args, **kwargs)
        if len(self._prepared) == self.force.loader:
            # BatchSamplerShard reads the batch of the sampler when it is made: set it before.
            self._divide_loader(accelerator, loader)
            self.tell()
        if self.force.other_ranks and not getattr(accelerator, "use_seedable_sampler", False):
            self._keep_shuffles(getattr(loader, "sampler", None))
        prepared = original(accelerator, loader, *args, **kwargs)
        self._prepared.append(prepared)
        return prepared

    def _backward(
        self, original: Original, accelerator: Accelerator, *args: object, **kwargs: object
    ) -> object:
        if not self._has_trainer:
            self._trains = True
            self._refuse_other_loader(accelerator)
        return original(accelerator, *args, **kwargs)

    def _prepare_optimizer(
        self,
        original: Original,
        accelerator: Accelerator,
        optimizer: Optimizer,
        *args: object,
        **kwargs: object,
    ) -> object:
        if not self._has_trainer:
            self._set_adamw(optimizer)
        return original(accelerator, optimizer, *args, **kwargs)

    def _keep_shuffles(self, sampler: Sampler) -> None:
        """Let a loader take its samples in the order of the launch as typed.

        Of one rank torch draws the seed of each epoch's shuffle as it begins. Of several accelerate
        draws one as it prepares the loader, the same in every rank.
        """
        if type(sampler).__name__ != "RandomSampler" or sampler.generator is not None:
            return
        torch = sys.modules["torch"]

        def draw() -> None:
            """As torch draws a seed for a shuffle: the first rank's, in every rank."""
            seed = torch.empty((), dtype=torch.int64).random_()
            ranks = torch.distributed
            if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
                ranks.broadcast(seed, 0)
            generator.manual_seed(int(seed))

        class Reseeded(type(sampler)):  # type: ignore[misc]
            def __iter__(self) -> Iterator[object]:
                draw()
                yield from super().__iter__()

        if 1 not in (self.force.world_size, self.force.typed_ranks):
            return
        sampler.generator = generator = torch.Generator()
        if self.force.world_size == 1:
            draw()
        else:
            Reseeded.__name__ = type(sampler).__name__
            sampler.__class__ = Reseeded

    def _refuse_other_loader(self, accelerator: Accelerator) -> None:
        """The batch that is trained on must be one of the loader that was divided."""
        trained = accelerator.gradient_state.active_dataloader
        divided = self._prepared[self.force.loader : self.force.loader + 1]
        if self.force.other_ranks and trained is not None and [trained] != divided:
            number = next((n for n, one in enumerate(self._prepared) if one is trained), None)
            known = "" if number is None else f" (number {number} in the order of accelerate)"
            self.refuse(
                f"the script trains on another data loader{known} than the one whose batch was "
                f"divided over the ranks (number {self.force.loader})"
            )

    def _divide_loader(self, accelerator: Accelerator, loader: object) -> None:
        """Set the batch of the loader that is trained on; with ``split_batches`` ranks share it."""
        sampler = getattr(loader, "batch_sampler", None)
        own = getattr(sampler, "batch_size", None)
        if not isinstance(own, int):
            if self.force.world_size > 1:
                self.refuse("the batch of the script's data loader cannot be seen, nor divided")
            return
        shared = getattr(accelerator, "split_batches", False)
        wanted = self.force.accumulation or accelerator.gradient_accumulation_steps
        shared_by = self.force.world_size if shared else 1
        try:
            each = own // self.force.typed_ranks if shared else own
            batch, accumulation = self.force.batch(each, wanted)
        except ValueError as error:
            self.refuse(str(error))
        if accumulation != wanted:
            self.refuse(
                f"{batch * accumulation} samples of a rank cannot be cut into the script's "
                f"{wanted} accumulation steps"
            )
        if batch * shared_by != own:
            sampler.batch_size = batch * shared_by  # type: ignore[union-attr]
            # accelerate makes the loader of a stream anew, from what is no longer to be set.
            loader.__dict__["batch_size"] = batch * shared_by
            self.changes["batch"] = f"batch of the data loader={batch * shared_by} (was {own})"

    def _set_adamw(self, optimizer: Optimizer) -> None:
        """Each parameter group of torch's AdamW says itself how it steps, from step to step."""
        kind = self.force.arguments.get("optim")
        if kind is None or type(optimizer).__name__ != "AdamW":
            return
        fused = kind == "adamw_torch_fused"
        if any(bool(group.get("fused")) != fused for group in optimizer.param_groups):
            self.changes["fused"] = f"AdamW fused={fused}"
        for group in optimizer.param_groups:
            group.update(fused=fused, foreach=False)

    def tell(self) -> None:
        if self.changes:
            self._say("set for the plan: " + ", ".join(self.changes.values()))
            self.changes.clear()
            self._say = lambda text: None


def the_carrier() -> Carrier | None:
    """The one that sets a plan in this process, if this file carries one, imported or run."""
    found: Carrier | None = getattr(sys.modules.get("cputune_carrier"), "carrier", None)
    return found


def _find_unused(original: Original, ddp: object, *args: object, **kwargs: object) -> None:
    """One rank needs no word of parameters that a step leaves out; several have to look."""
    if not kwargs.get("static_graph"):
        kwargs["find_unused_parameters"] = True
    original(ddp, *args, **kwargs)


def _ignores(compute_loss: Any, model: Any, inputs: Any, items: Any) -> bool:
    """Whether a loss stays as it is for twice as many items: asked of a batch, trained on by none.

    Autocast keeps the weights that it rounds, and those that it rounds here have no gradient.
    """
    torch, training = sys.modules["torch"], model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            one, two = (
                float(compute_loss(model, dict(inputs), num_items_in_batch=number))
                for number in (items, 2 * items)
            )
    finally:
        model.train(training)
        torch.clear_autocast_cache()
    return abs(two - one) < 0.1 * abs(one)


MULTIPLE = 8
"""Of columns that are left: 3.0 times as fast as padded where 16 was 2.9 times and 64 2.0 times;
1 was 3.3 times, within the scatter (benchmarks/padding.py, docs/measuring.md)."""

POOL = 50
"""Steps whose samples are sorted by length, as Trainer's ``group_by_length`` has it."""

AT_ONCE = 10
"""Steps that follow each other, of which each has samples of another tenth of the lengths."""

MOST_SECONDS = 30.0
"""To look at the length of every sample."""

IGNORED = -100
"""The label that torch's losses pass over."""

SAME_LOSS, SAME_GRADIENT = 1e-4, 1e-3
"""Relative differences of fp32 sums in another order; those of another loss are larger."""

COARSE = 50
"""How much larger they are where products are rounded to bf16."""

NO_MASK = "the batches have no attention mask of samples × tokens"
NO_TAIL = "no batch so far ended in columns that are padding, without labels, in all its samples"
COMPILED = "the model is compiled, and each new length would compile it anew"
OUTSIDE = "its loss is computed outside of the model, from an output for each token"
TOGETHER = "its loss asks all ranks for their figures (TRL), so it cannot be asked of one alone"


def tensors_of(batch: object) -> Iterator[Any]:
    """The tensors in a batch, however deep."""
    if hasattr(batch, "shape"):
        yield batch
        return
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, Iterable) and not isinstance(parts, (str, bytes)):
        for part in parts:
            yield from tensors_of(part)


def masks_of(batch: object) -> dict[str, Tensor]:
    """The masks of samples × tokens, by name."""
    if not isinstance(batch, Mapping):
        return {}
    return {
        str(name): value
        for name, value in batch.items()
        if "attention_mask" in str(name) and getattr(value, "ndim", 0) == 2
    }


def counted(batch: object) -> tuple[int, int, int]:
    """Tokens that are padding, all tokens, and those that are left where the batch is cut."""
    padding = tokens = left = 0
    columns = lengths(batch)
    for mask in masks_of(batch).values():
        samples, length = mask.shape
        padding += int((mask == 0).sum())
        tokens += samples * length
        left += samples * columns[length]
    return padding, tokens, left


def lengths(batch: Any) -> dict[int, int]:
    """For each length that a mask has, how many columns are left where the tail is cut.

    Labels of tokens keep their columns.
    """
    used: dict[int, int] = {}
    for mask in masks_of(batch).values():
        length = int(mask.shape[1])
        used[length] = max(used.get(length, 1), _last(mask != 0))
    for name, value in batch.items() if used else ():
        labels = "label" in str(name) and getattr(value, "ndim", 0) > 1
        if labels and not value.is_floating_point() and value.shape[1] in used:
            length = int(value.shape[1])
            used[length] = max(used[length], _last(value != IGNORED))
    return {length: min(length, -(-last // MULTIPLE) * MULTIPLE) for length, last in used.items()}


def _last(used: Tensor) -> int:
    """The columns up to the last one in which any sample has something."""
    found = used.flatten(2).any(2).any(0) if used.ndim > 2 else used.any(0)
    positions = found.nonzero()
    return int(positions[-1]) + 1 if len(positions) else 1


def cut(batch: BatchEncoding, columns: Mapping[int, int]) -> BatchEncoding:
    """The batch without its tail: every tensor that has a dimension of such a length.

    The first dimension is that of samples. Of numbers (embeddings) the last one may be as long by
    chance, so only the second is cut; of masks and tokens all of them.
    """
    if all(length == left for length, left in columns.items()):
        return batch
    shorter = copy.copy(batch)
    for name, value in batch.items():
        dimensions = getattr(value, "ndim", 0)
        if dimensions < 2:
            continue
        by_position = "mask" in str(name) or not value.is_floating_point()
        for dimension in range(1, dimensions) if by_position else (1,):
            left = columns.get(int(value.shape[dimension]), value.shape[dimension])
            value = value.narrow(dimension, 0, left)
        shorter[name] = value.contiguous()  # losses take a view of labels
    return shorter


class Cutter:
    """Cuts columns that are padding in all samples of a batch off before they are computed.

    Whether a batch may be cut is asked of the model itself, once: the first batch that has such
    columns goes through it with and without them, dropout off, nothing updated. Where loss and
    gradient are equal but for rounding, this batch and those after it are cut, to a multiple of
    ``MULTIPLE``. Not equal are losses that run over positions (question answering), models that
    mix positions without a mask (FNet), and those that need one length.

    What is seen as padding is what a mask of samples × tokens says, whose name holds
    ``attention_mask``; each mask speaks for all tensors of its length. Labels of a token that are
    not -100 are none, and stay.

    Attributes:
        cuts: whether they are cut where they may; else it is only asked.
        allowed: whether they may; None while no batch had anything to cut.
        why: why they may not, or are not so far.
        on_asked: told when the question began, once it is answered: no part of a step.
    """

    def __init__(self, cuts: bool, say: Callable[[str], None]) -> None:
        self.cuts, self._say = cuts, say
        self.allowed: bool | None = None
        self.why = NO_TAIL
        self.on_asked: Callable[[float], None] = lambda since: None
        self._has_trainer = self._called = False
        self._last_data: object = None
        self._data: object = None

    def hooks(self) -> list[Hook]:
        """A Trainer computes its loss from the whole batch; of a loop the loader's is cut."""
        return [
            ("transformers.trainer", "Trainer.training_step", self._training_step),
            ("torch.nn.modules.module", "", self._watch_calls),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", self._next_batch),
        ]

    def said(self) -> dict[str, str]:
        """What a rank shows: ``cut``, ``may be cut``, or ``full`` and why."""
        if self.allowed is None:
            return {"padding_unknown": self.why}
        if not self.allowed:
            return {"padding": f"full, for {self.why}"}
        return {"padding": "cut" if self.cuts else "may be cut"}

    def _training_step(
        self,
        original: Original,
        trainer: Trainer,
        model: Module,
        inputs: object,
        *args: object,
        **kwargs: object,
    ) -> object:
        self._has_trainer = True
        kind = type(trainer)
        self.ask(
            model,
            inputs,
            # The class's own: a method of the object may be somebody's who measures.
            lambda inner, batch: kind.compute_loss(trainer, inner, copy.copy(batch)),
            together=kind.__module__.startswith("trl."),
        )
        return original(trainer, model, self.shortened(inputs), *args, **kwargs)

    def _watch_calls(self, module: ModuleType) -> None:
        """The first module that is called to train is asked, with what it is called with."""
        cls = module.Module
        original = cls.__call__

        @functools.wraps(original)
        def call(model: Module, *args: object, **kwargs: object) -> object:
            if self.allowed is not None:
                if cls.__call__ is call:
                    cls.__call__ = original
            elif not self._called and not self._has_trainer and _trains(model):
                self._called, self._data = True, self._last_data
                given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
                try:
                    self.ask(model, given, lambda inner, batch: _call(inner, len(args), batch))
                    return original(model, *args, **kwargs)
                finally:
                    self._called = False
            return original(model, *args, **kwargs)

        cls.__call__ = call

    def _next_batch(self, original: Original, iterator: _BaseDataLoaderIter) -> object:
        """Batches of the data that the model was asked with, whoever iterates them."""
        batch = original(iterator)
        self._last_data = iterator._dataset
        asked = self._data is not None and self._data is self._last_data
        return self.shortened(batch) if asked else batch

    def shortened(self, batch: object) -> object:
        """The batch as it is trained on."""
        return cut(batch, lengths(batch)) if self.allowed and self.cuts else batch

    def ask(self, model: Module, batch: object, run: Run, *, together: bool = False) -> None:
        """Find out whether this batch may be cut, where it has anything to cut.

        ``together``: the loss asks all ranks for their figures, so it is asked of none alone.
        """
        if self.allowed is not None:
            return
        since, columns = time.perf_counter(), lengths(batch)
        if columns and all(length == left for length, left in columns.items()):
            return
        inner = getattr(model, "module", model)  # DistributedDataParallel
        why: str | None
        if not columns:
            why = NO_MASK
        elif together:
            why = TOGETHER
        elif hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None):
            why = COMPILED
        else:
            why = difference(inner, batch, cut(batch, columns), run)
        self.allowed, self.why = why is None, why or ""
        if self.cuts:
            said = "columns that are padding in every sample of a batch are cut off"
            self._say(f"padding is not cut off: {why}" if why else said)
        self.on_asked(since)


def _call(model: Module, positional: int, given: Mapping[Any, Any]) -> object:
    """Call a model with arguments by position and by name."""
    named = {name: value for name, value in given.items() if not isinstance(name, int)}
    return model(*(given[at] for at in range(positional)), **named)


def difference(model: Module, whole: object, shorter: object, run: Run) -> str | None:
    """Why the two batches do not train the same; None where loss and gradients are equal."""
    torch = sys.modules["torch"]
    try:
        with _quiet(torch, model) as coarse:
            one, its_gradients, shapes = _figures(torch, model, run(model, whole))
            other, gradients, own_shapes = _figures(torch, model, run(model, shorter))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"the model fails without it ({type(error).__name__}: {lines[0][:120]})"
    if shapes != own_shapes:
        return OUTSIDE
    slack = COARSE if coarse else 1
    if not abs(one - other) <= slack * SAME_LOSS * max(abs(one), 1e-3):
        return f"the loss counts it: {one:.4f}, and {other:.4f} without"
    apart = math.dist(its_gradients, gradients)
    if not apart <= slack * SAME_GRADIENT * max(math.hypot(*its_gradients), 1e-6):
        return f"the gradient changes by {apart / math.hypot(*its_gradients):.1%} without it"
    return None


def _figures(torch: Any, model: Any, outcome: Any) -> tuple[float, list[float], list[Any]]:
    """The loss, the norm of each parameter's gradient, and the shapes of what has no loss.

    Of outputs without a loss, some weighted sum stands for any loss of them.
    """
    shapes: list[Any] = []
    loss: Any = outcome.get("loss") if isinstance(outcome, Mapping) else outcome
    loss = loss[0] if isinstance(loss, (tuple, list)) and loss else loss
    if not torch.is_tensor(loss) or loss.numel() != 1:
        outputs = outcome.items() if isinstance(outcome, Mapping) else enumerate(_all(outcome))
        dice, loss = torch.Generator().manual_seed(0), 0.0
        for name, value in outputs:
            for one in _all(value) if name != "past_key_values" else ():
                if torch.is_tensor(one) and one.requires_grad:
                    shapes.append(one.shape)
                    loss = loss + (one * torch.rand(one.shape, generator=dice)).sum()
    learnt = [one for one in model.parameters() if one.requires_grad]
    gradients = torch.autograd.grad(loss, learnt, allow_unused=True)
    norms = [
        0.0 if one is None else float((one.coalesce().values() if one.is_sparse else one).norm())
        for one in gradients
    ]
    return float(loss.detach()), norms, shapes


def _all(outcome: object) -> Iterator[Tensor]:
    if isinstance(outcome, (tuple, list)):
        for one in outcome:
            yield from _all(one)
    else:
        yield outcome


@contextlib.contextmanager
def _quiet(torch: ModuleType, model: Module) -> Iterator[bool]:
    """Dropout off, random numbers as they were, fp32 where the weights are; whether it is not."""
    training = [module for module in model.modules() if module.training]
    own_forward = model.__dict__.get("forward")  # accelerate's, under its autocast
    plain_forward = getattr(model, "_original_forward", None)
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    coarse = getattr(matmul, "fp32_precision", None) == "bf16"
    coarse |= any(one.dtype != torch.float32 for one in model.parameters())
    with contextlib.ExitStack() as held:
        held.enter_context(torch.random.fork_rng(devices=()))
        held.enter_context(torch.enable_grad())
        if not coarse:
            held.enter_context(torch.autocast("cpu", enabled=False))
            if own_forward is not None and plain_forward is not None:
                model.forward = plain_forward
        model.eval()
        try:
            yield coarse
        finally:
            for module in training:
                module.training = True
            if own_forward is not None:
                model.forward = own_forward


def _trains(model: Module) -> bool:
    torch = sys.modules["torch"]
    return (
        model.training
        and torch.is_grad_enabled()
        and any(parameter.requires_grad for parameter in model.parameters())
    )


class OfLikeLength:
    """A sampler: samples in an order in which those of a step are of like length.

    Those of ``POOL`` steps that follow each other in a random order are sorted. Their steps come in
    a random order again, ``AT_ONCE`` of them with one of each tenth of all lengths, so that any of
    them are as long as all.
    """

    def __init__(self, lengths: Sequence[int], step: int, seed: int) -> None:
        self._lengths, self._step, self._seed, self._epoch = lengths, step, seed, 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """Told by accelerate of each pass over the data, also where a training is resumed."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        dice = random.Random(f"{self._seed} {self._epoch}")
        samples = list(range(len(self)))
        dice.shuffle(samples)
        rest = samples[len(samples) - len(samples) % self._step :]
        steps = []
        for first in range(0, len(samples) - len(rest), POOL * self._step):
            pool = samples[first : first + POOL * self._step][: len(samples) - len(rest) - first]
            pool.sort(key=self._lengths.__getitem__)
            steps += [pool[at : at + self._step] for at in range(0, len(pool), self._step)]
        steps.sort(key=lambda step: max(self._lengths[at] for at in step))
        each = -(-len(steps) // AT_ONCE) or 1
        tenths = [steps[at : at + each] for at in range(0, len(steps), each)]
        for tenth in tenths:
            dice.shuffle(tenth)
        for together in itertools.zip_longest(*tenths, fillvalue=()):
            yield from itertools.chain(*dice.sample(together, len(together)))
        yield from rest


class Order:
    """Has a Trainer take the samples of a step of like length, so that fewer columns are padding.

    Each pass over the data has another order, the same on every rank. Only a Trainer that draws its
    samples at random does. Its own ``group_by_length`` (``train_sampling_strategy``) sorts 50
    batches by the length of their tokens, which of padded samples is one length.

    Attributes:
        why: why it does not, None where it does.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.why: str | None = "no Trainer has asked for an order of its samples"

    def sampler(
        self, original: Original, trainer: Trainer, *args: object, **kwargs: object
    ) -> object:
        """In the place of ``Trainer._get_train_sampler``."""
        own, typed = original(trainer, *args, **kwargs), trainer.args
        data: Any = next(iter((*args, *kwargs.values())), None) or trainer.train_dataset
        lengths: list[int] | str = "the script draws them by itself, and not at random"
        if type(own).__name__ == "RandomSampler":
            lengths = token_lengths(data)
        self.why = lengths if isinstance(lengths, str) else None
        if isinstance(lengths, str):
            self._say(f"samples stay in their order: {lengths}")
            return own
        self._say("samples of a step are of like length, in another order than as typed")
        step = typed.train_batch_size * typed.gradient_accumulation_steps * typed.world_size
        return OfLikeLength(
            lengths, step, typed.seed if typed.data_seed is None else typed.data_seed
        )

    def said(self) -> dict[str, str]:
        """What a rank shows."""
        return {"order": "length"} if self.why is None else {"order": f"as found, for {self.why}"}


def token_lengths(data: Dataset) -> list[int] | str:
    """The tokens of each sample that are no padding; why they are not known."""
    until = time.perf_counter() + MOST_SECONDS
    names = getattr(data, "column_names", None)
    column = "attention_mask" if names is None or "attention_mask" in names else "input_ids"
    lengths = []
    try:
        if names is not None:
            data = data.select_columns([column])
        for at in range(len(data)):
            mask = data[at][column]
            lengths.append(len(mask) if column == "input_ids" else int(sum(mask)))
            if time.perf_counter() > until:
                return f"it takes more than {MOST_SECONDS:.0f} s to see how long its samples are"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"its samples do not tell their length ({type(error).__name__})"
    return lengths


_ODD, _FIRST, _SECOND = (
    factor - (1 << 64) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of SplitMix64 as torch's signed numbers (Steele, Lea and Flood 2014, "Fast
splittable pseudorandom number generators"; the mixer is Stafford's thirteenth)."""

_WORDS = 4
"""Words of 16 bits in a number of 64."""

_LEVELS = 1 << 16
"""A share is drawn as a multiple of 1/65,536."""


class Masks:
    """Draws ``Tensor.bernoulli_(p)``, of which dropout is made, from random bytes on all threads.

    torch draws it one by one on one thread, unless the processor is Intel's
    (aten/src/ATen/native/cpu/DistributionKernels.cpp, bernoulli_scalar_kernel). One number of the
    generator seeds a mask, and SplitMix64 makes the rest of it in whole tensors. So masks are
    others than torch's for the same seed, and just as repeatable: ``manual_seed`` repeats them, and
    checkpointing draws them again.

    Attributes:
        drawn: how many masks were drawn so far.
    """

    def __init__(self, torch: Any) -> None:
        """Take the place of torch's kernel on CPUs, until the process ends."""
        self.drawn = 0
        self._torch = torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that a kernel is replaced
            self._library = torch.library.Library("aten", "IMPL")  # it holds as long as this lives
            self._library.impl("bernoulli_.float", self._fill, "CPU")

    def _fill(self, mask: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
        if not 0.0 <= p <= 1.0:
            raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
        if p in (0.0, 1.0):
            return mask.fill_(p)
        self.drawn += 1
        level = min(max(round(p * _LEVELS), 1), _LEVELS - 1) - _LEVELS // 2
        count = mask.numel()
        words = self._random(-(-count // _WORDS), generator).view(self._torch.int16)
        return mask.copy_((words[:count] < level).view(mask.shape))

    def _random(self, count: int, generator: object) -> Tensor:
        """So many random numbers of 64 bits. Right shifts keep the sign, so it is masked off."""
        torch = self._torch
        seed = torch.empty((), dtype=torch.int64).random_(-(1 << 63), None, generator=generator)
        state = torch.arange(1, count + 1).mul_(_ODD).add_(seed)
        shifted = torch.empty_like(state)
        for shift, factor in ((30, _FIRST), (27, _SECOND), (31, 1)):
            torch.bitwise_right_shift(state, shift, out=shifted)
            state.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
            if factor != 1:
                state.mul_(factor)
        return state


_kept: list[object] = []
"""Process groups that were destroyed."""

_ended_well = False


def run(argv: Sequence[str]) -> None:
    """Run a script, or ``-m`` and a module, as ``python`` would; its ranks end together."""
    try:
        _run(argv)
    except SystemExit as exit_:
        if exit_.code in (None, 0):
            end_together()
        raise
    end_together()


def end_together() -> None:
    """Wait for the other ranks of a script that ended well, and take its process group down.

    Where nobody does, gloo's threads may still hold what the interpreter frees as it ends, and
    the process dies after all is done: SIGABRT, exit status 134 (pytorch/pytorch#179291). A
    rank that failed does not come here: it ends the others' wait with an error.
    """
    global _ended_well
    _ended_well = True
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    with contextlib.suppress(Exception):
        distributed.barrier()
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()


GROUPS = "torch.distributed.distributed_c10d"


def keep_process_groups(original: Original, *args: object, **kwargs: object) -> None:
    """Let no process group be freed before the process ends.

    DistributedDataParallel holds its group after ``destroy_process_group``, and frees it with
    the interpreter's lock held; the group then waits for gloo's threads, and a thread that
    frees its last tensors waits for that lock: for ever (pytorch/pytorch#56297, torch 2.13).
    """
    for group in list(sys.modules[GROUPS]._world.pg_map):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        _kept.append(group)
    original(*args, **kwargs)


def leave() -> None:
    """The last of what Python does at exit: end before it frees what gloo's threads hold."""
    if _ended_well and _kept:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(0)


def _run(argv: Sequence[str]) -> None:
    safe_path = getattr(sys.flags, "safe_path", False)  # 3.11 and later
    script = os.path.abspath(argv[0])
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        if not safe_path:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(argv)
    if not os.path.isfile(script):
        runpy.run_path(script, run_name="__main__")  # searches a folder itself
        return
    if not safe_path:  # where the script really lies, links resolved
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    # Not run_path: its __main__ goes away with it, and what is left at exit needs it.
    sys.modules["__main__"] = module = ModuleType("__main__")
    module.__dict__.update(__file__=script, __cached__=None, __builtins__=builtins)
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def main() -> None:
    def refuse(reason: str) -> NoReturn:
        sys.stderr.write(
            f"error: {reason}\nhint: tune this script, or emit a plan of fewer ranks\n"
        )
        sys.stderr.flush()
        os._exit(3)

    def say(text: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"carry.py: {text}\n")

    if len(sys.argv) < 3:
        sys.exit("usage: carry.py PLAN SCRIPT ARGUMENTS...")
    atexit.register(leave)  # the first to be registered is the last to be called
    plan = json.loads(sys.argv[1])
    hooks = Carrier(Force(**plan), refuse, say).hooks() if plan else []
    set_hooks([*hooks, (GROUPS, "destroy_process_group", keep_process_groups)])
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file, which the script would not search
    run(sys.argv[2:])


if __name__ == "__main__":
    main()
