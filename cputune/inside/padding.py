"""Columns of a batch that are padding in all of its samples: cut off before they are computed.

``carry.py`` loads this file from beside itself, in trials and in emitted launches, and puts it
around the training steps of a Trainer, or around the data loader of a loop of the script's own. It
needs Python 3.9 and torch 2.0 or later.

Whether a batch may be cut is asked of the model itself, once: the first batch that has such columns
goes through it with and without them, dropout off, nothing updated. Where loss and gradient are
equal but for rounding, this batch and those after it are cut, to a multiple of ``MULTIPLE``. Not
equal are losses that run over positions (question answering), models that mix positions without
a mask (FNet), and those that need one length.

Where the plan says ``order=length``, a Trainer takes the samples of a step of like length, so that
fewer columns are padding: each pass in another order, the same on every rank. Only a Trainer that
draws its samples at random does. Its own ``group_by_length`` (``train_sampling_strategy``) sorts 50
batches by the length of their tokens, which of padded samples is one length.

What is seen as padding is what a mask of samples × tokens says, whose name holds
``attention_mask``; each mask speaks for all tensors of its length. Labels of a token that are not
-100 are none, and stay.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor
    from torch.nn import Module
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from transformers import BatchEncoding, Trainer, TrainingArguments

    Run = Callable[[Module, Any], object]
    """What a model makes of a batch: a loss, or what has it, or outputs."""

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
    """Asks once whether batches may be cut, and cuts them.

    Attributes:
        allowed: whether they may; None while no batch had anything to cut.
        why: why they may not, or are not so far.
        cuts: whether they are cut where they may; else it is only asked.
        on_asked: told when the question began, once it is answered: no part of a step.
    """

    def __init__(self) -> None:
        self.cuts = False
        self.allowed: bool | None = None
        self.why = NO_TAIL
        self.on_asked: Callable[[float], None] = lambda since: None
        self._say: Callable[[str], None] = lambda text: None
        self._has_trainer = False
        self._called = self._together = False
        self._last_data: object = None
        self._data: object = None

    def patches(
        self, how: str, say: Callable[[str], None]
    ) -> list[tuple[str, Callable[[ModuleType], None]]]:
        """What to do with which module: ``how`` is ``cut``, or ``ask`` where that is all."""
        self.cuts, self._say = how == "cut", say
        return [
            ("transformers.trainer", self._patch_trainer),
            ("torch.nn.modules.module", self._patch_calls),
            ("torch.utils.data.dataloader", self._patch_loaders),
        ]

    def said(self) -> dict[str, str]:
        """What a rank shows: ``cut``, ``may be cut``, or ``full`` and why."""
        if self.allowed is None:
            return {"padding_unknown": self.why}
        if not self.allowed:
            return {"padding": f"full, for {self.why}"}
        return {"padding": "cut" if self.cuts else "may be cut"}

    def _patch_trainer(self, module: ModuleType) -> None:
        """A Trainer has its loss computed by itself, from the whole batch."""
        cls = module.Trainer
        original = cls.training_step

        @functools.wraps(original)
        def training_step(
            trainer: Trainer, model: Module, inputs: object, *args: object, **kw: object
        ) -> object:
            self._has_trainer = True
            if self.allowed is None:
                kind = type(trainer)
                self._together = kind.__module__.startswith("trl.")
                self.ask(
                    model,
                    inputs,
                    # The class's own: a method of the object may be somebody's who measures.
                    lambda inner, batch: kind.compute_loss(trainer, inner, copy.copy(batch)),
                )
            return original(trainer, model, self.shortened(inputs), *args, **kw)

        cls.training_step = training_step

    def _patch_calls(self, module: ModuleType) -> None:
        """The first module that is called to train is asked, with what it is called with."""
        cls = module.Module
        original = cls.__call__

        @functools.wraps(original)
        def call(model: Module, *args: object, **kwargs: object) -> object:
            if self.allowed is not None:
                if cls.__call__ is call:
                    cls.__call__ = original
            elif not self._called and not self._has_trainer and _trains(model):
                self._called = True
                try:
                    self._ask_called(model, args, kwargs)
                    return original(model, *args, **kwargs)
                finally:
                    self._called = False
            return original(model, *args, **kwargs)

        cls.__call__ = call

    def _ask_called(
        self, model: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        self._data = self._last_data
        self.ask(
            model,
            given,
            lambda inner, batch: inner(
                *(batch[at] for at in range(len(args))),
                **{name: value for name, value in batch.items() if not isinstance(name, int)},
            ),
        )

    def _patch_loaders(self, module: ModuleType) -> None:
        """Batches of the data that the model was asked with, whoever iterates them."""
        cls = module._BaseDataLoaderIter
        original = cls.__next__

        @functools.wraps(original)
        def following(iterator: _BaseDataLoaderIter) -> object:
            batch = original(iterator)
            self._last_data = iterator._dataset
            if self._data is not None and self._data is self._last_data:
                return self.shortened(batch)
            return batch

        cls.__next__ = following

    def shortened(self, batch: object) -> object:
        """The batch as it is trained on."""
        return cut(batch, lengths(batch)) if self.allowed and self.cuts else batch

    def ask(self, model: Module, batch: object, run: Run) -> None:
        """Find out whether this batch may be cut, where it has anything to cut."""
        if self.allowed is not None:
            return
        since, columns = time.perf_counter(), lengths(batch)
        if columns and all(length == left for length, left in columns.items()):
            return
        why = self._why_not(model, batch, columns, run)
        self.allowed, self.why = why is None, why or ""
        if self.cuts:
            self._say(
                "columns that are padding in every sample of a batch are cut off"
                if why is None
                else f"padding is not cut off: {why}"
            )
        self.on_asked(since)

    def _why_not(
        self, model: Module, batch: Any, columns: Mapping[int, int], run: Run
    ) -> str | None:
        if not columns:
            return NO_MASK
        if self._together:
            return TOGETHER
        inner = getattr(model, "module", model)  # DistributedDataParallel
        if hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None):
            return COMPILED
        return difference(inner, batch, cut(batch, columns), run)


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
    """Has a Trainer take samples of like length; ``why`` it does not, None where it does."""

    def __init__(self) -> None:
        self.why: str | None = "no Trainer has asked for an order of its samples"

    def patches(self, say: Callable[[str], None]) -> list[tuple[str, Callable[[ModuleType], None]]]:
        """What to do with which module."""

        def patch(module: ModuleType) -> None:
            original = module.Trainer._get_train_sampler

            @functools.wraps(original)
            def sampler(trainer: Trainer, *args: object, **kwargs: object) -> object:
                own = original(trainer, *args, **kwargs)
                data = next(iter((*args, *kwargs.values())), None) or trainer.train_dataset
                ordered = self._ordered(trainer.args, own, data)
                said = "samples of a step are of like length, in another order than as typed"
                say(said if self.why is None else f"samples stay in their order: {self.why}")
                return own if ordered is None else ordered

            module.Trainer._get_train_sampler = sampler

        return [("transformers.trainer", patch)]

    def said(self) -> dict[str, str]:
        """What a rank shows."""
        return {"order": "length"} if self.why is None else {"order": f"as found, for {self.why}"}

    def _ordered(self, args: TrainingArguments, own: object, data: Dataset) -> OfLikeLength | None:
        if type(own).__name__ != "RandomSampler":
            self.why = "the script draws them by itself, and not at random"
            return None
        lengths = token_lengths(data)
        self.why = lengths if isinstance(lengths, str) else None
        if isinstance(lengths, str):
            return None
        step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return OfLikeLength(lengths, step, args.seed if args.data_seed is None else args.data_seed)


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


CUTTER, ORDER = Cutter(), Order()
