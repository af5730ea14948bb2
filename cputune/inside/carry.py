#!/usr/bin/env python3
"""Run a training script with the part of a plan that its command line cannot say.

    python carry.py PLAN train.py --its-arguments
    python carry.py PLAN -m package.train --its-arguments

PLAN is JSON: ``{"world_size": 2, "samples_per_rank": 4, "arguments": {"bf16": true}}``.
The script stays as it is. When it has loaded transformers or accelerate, this sets

- in every ``TrainingArguments``: the fields in ``arguments``, and the batch of one rank;
- in every ``Accelerator``: the CPU, the precision and the kind of AdamW that ``arguments`` say;
- in the data loader that a loop over an Accelerator trains on: the batch of one rank;
- in torch, whatever trains with it: what ``torch`` says (``in_torch.py``; it lies beside this
  file where it is needed);
- in the batches that are trained on: whether their padding is cut, and whether their samples are
  of like length (``padding.py``, likewise);
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
import ctypes
import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import io
import json
import math
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.utils.data import Sampler
    from transformers import Trainer, TrainingArguments

Patch = Callable[[ModuleType], None]
Original = Callable[..., object]
"""A function of a library, in whose place one of ours stands."""


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
        torch: what is set in torch itself, see ``in_torch``; and ``padding``: ``cut``, or ``ask``
            where it is only found out whether it may be; and ``order``: ``length``.
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


def around(cls: object, name: str) -> Callable[[Original], None]:
    """Put a function in the place of a method; it is given the method before its arguments."""
    original = getattr(cls, name)

    def put(function: Original) -> None:
        @functools.wraps(original)
        def method(*args: object, **kwargs: object) -> object:
            return function(original, *args, **kwargs)

        setattr(cls, name, method)

    return put


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
        self._prepared: list[object] = []
        self._trains = self._pretends = False

    def patches(self) -> list[tuple[str, Patch]]:
        """What to do with which module once it is loaded."""
        patches: list[tuple[str, Patch]] = []
        settings = dict(self.force.torch)
        padding, order = settings.pop("padding", None), settings.pop("order", None)
        if settings:
            patches.append(("torch", lambda module: self._set_in_torch(module, settings)))
        if padding is not None:
            patches += beside("padding").CUTTER.patches(padding, self._say)
        if order is not None:
            patches += beside("padding").ORDER.patches(self._say)
        if not self.force.world_size:
            return patches
        patches.append(("transformers.training_args", self._patch_arguments))
        patches.append(("transformers.trainer", self._patch_trainer))
        if self.force.find_unused and self.force.world_size > 1:
            patches.append(("torch.nn.parallel.distributed", self._patch_distributed))
        if self.force.other_ranks:
            patches.append(("accelerate.scheduler", self._patch_schedules))
            patches.append(("accelerate.accelerator", self._patch_number_of_ranks))
        if not self.force.by_flags:
            patches.append(("accelerate.accelerator", self._patch_accelerator))
        return patches

    def _set_in_torch(self, module: ModuleType, settings: Mapping[str, str]) -> None:
        said = beside("in_torch").set_in(module, settings)
        self._say("set for the plan: " + "; ".join(said))

    def _patch_arguments(self, module: ModuleType) -> None:
        """Before ``__post_init__``, which checks the values and starts torch.distributed.

        Subclasses (Seq2SeqTrainingArguments, TRL's configs) all pass through it.
        """

        @around(module.TrainingArguments, "__post_init__")
        def post_init(original: Original, args: TrainingArguments) -> None:
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

    def _patch_trainer(self, module: ModuleType) -> None:
        @around(module.Trainer, "__init__")
        def init(original: Original, *args: object, **kwargs: object) -> None:
            self._has_trainer = True
            original(*args, **kwargs)

        @around(module.Trainer, "train")
        def train(original: Original, trainer: Trainer, *args: object, **kwargs: object) -> object:
            self._divide(trainer.args)  # the script may have changed its batch by itself
            if not isinstance(trainer.args.per_device_train_batch_size, Divided):
                self.refuse(trainer.args._cannot_divide)
            self._keep_scale(trainer)
            self.tell()
            return original(trainer, *args, **kwargs)

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

    def _patch_distributed(self, module: ModuleType) -> None:
        """One rank needs no word of parameters that a step leaves out; several have to look."""

        @around(module.DistributedDataParallel, "__init__")
        def init(original: Original, model: Module, *args: object, **kwargs: object) -> None:
            if not kwargs.get("static_graph"):
                kwargs["find_unused_parameters"] = True
            original(model, *args, **kwargs)

    def _patch_schedules(self, module: ModuleType) -> None:
        """AcceleratedScheduler steps once for each rank: it takes the batch to grow with them."""
        ranks = SimpleNamespace(num_processes=self.force.typed_ranks)
        module.AcceleratorState = lambda: ranks  # type: ignore[attr-defined]

    def _patch_number_of_ranks(self, module: ModuleType) -> None:
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

    def _patch_accelerator(self, module: ModuleType) -> None:
        cls = module.Accelerator
        signature = inspect.signature(cls.__init__)

        @around(cls, "__init__")
        def init(original: Any, accelerator: Any, *args: object, **kwargs: object) -> None:
            given = dict(signature.bind_partial(accelerator, *args, **kwargs).arguments)
            del given["self"]
            before = str(given.get("mixed_precision"))
            if not self._has_trainer and before not in ("None", self.force.precision):
                precision = self.force.precision
                self.changes["mixed_precision"] = f"mixed_precision={precision} (was {before})"
            given.update(mixed_precision=self.force.precision, cpu=True)
            original(accelerator, **given)

        @around(cls, "prepare_data_loader")
        def prepare_data_loader(
            original: Any, accelerator: Any, loader: Any, *args: object, **kwargs: object
        ) -> Any:
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

        @around(cls, "backward")
        def backward(original: Any, accelerator: Any, *args: object, **kwargs: object) -> Any:
            if not self._has_trainer:
                self._trains = True
                self._refuse_other_loader(accelerator)
            return original(accelerator, *args, **kwargs)

        @around(cls, "prepare_optimizer")
        def prepare_optimizer(
            original: Any, accelerator: Any, optimizer: Any, *args: object, **kwargs: object
        ) -> Any:
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


def beside(name: str) -> Any:
    """The file of this name that lies beside this one, as the module ``cputune_NAME``."""
    known = sys.modules.get(f"cputune_{name}")
    if known is not None:
        return known
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    loader = importlib.machinery.SourceFileLoader(f"cputune_{name}", path)
    sys.modules[loader.name] = module = ModuleType(loader.name)
    loader.exec_module(module)
    return module


def watch(patches: Sequence[tuple[str, Patch]]) -> None:
    """Call each patch when its module is loaded; at once where that has happened."""
    waiting: dict[str, list[Patch]] = {}
    for name, patch in patches:
        if name in sys.modules:
            patch(sys.modules[name])
        else:
            waiting.setdefault(name, []).append(patch)
    sys.meta_path.insert(0, _Watcher(waiting))


class _Watcher(importlib.abc.MetaPathFinder):
    """Lets the other finders find, and patches what they load."""

    def __init__(self, waiting: Mapping[str, Sequence[Patch]]) -> None:
        self._waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Asked for more than once: who only looks whether a module is there (is_ipex_available)
        # asks here too, and loads nothing.
        patches = self._waiting.get(name)
        if patches is None:
            return None
        # Those behind it alone: two watchers (a launch that is observed) must not ask each other.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _patch_after(spec.loader, name, patches)
                return spec
        return None


def _patch_after(loader: object, name: str, patches: Sequence[Patch]) -> None:
    """An archive has one loader for all of its modules: this one alone is patched."""

    @around(loader, "exec_module")
    def load(original: Original, module: ModuleType) -> None:
        original(module)
        if module.__name__ == name:
            for patch in patches:
                patch(module)


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


def keep_process_groups(module: ModuleType) -> None:
    """Let no process group be freed before the process ends.

    DistributedDataParallel holds its group after ``destroy_process_group``, and frees it with
    the interpreter's lock held; the group then waits for gloo's threads, and a thread that
    frees its last tensors waits for that lock: for ever (pytorch/pytorch#56297, torch 2.13).
    """
    original = module.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(*args: object, **kwargs: object) -> None:
        for group in list(module._world.pg_map):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            _kept.append(group)
        original(*args, **kwargs)

    module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


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
    patches = Carrier(Force(**plan), refuse, say).patches() if plan else []
    watch([*patches, ("torch.distributed.distributed_c10d", keep_process_groups)])
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file, which the script would not search
    run(sys.argv[2:])


if __name__ == "__main__":
    main()
