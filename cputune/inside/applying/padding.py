"""Cuts columns off a batch that are padding in all of its samples, if the model allows it."""

from __future__ import annotations

import copy
import functools
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.padding_check import FAILS, Run, difference
from cputune.inside.applying.trimming import cut, encodings_of, has_tail

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from transformers import Trainer

NO_MASK = "the batches have no attention mask of samples × tokens"

NO_NAMES = "the batches of the script's loader have no names, so no mask is known in them"

NO_TAIL = "no batch so far ended in columns that are padding, without labels, in all its samples"

COMPILED = "the model is compiled, and each new length would compile it anew"

TOGETHER = "its loss asks all ranks for their figures (TRL), so it cannot be asked of one alone"


class Cutter:
    """Cuts columns that are padding in all samples of a batch off before they are computed.

    The model is checked once: the first batch with such columns goes through it with and without
    them, without dropout or updates. If loss and gradient are equal but for rounding, this batch
    and later ones are cut, to a multiple of ``MULTIPLE``. They differ if the loss covers positions
    (question answering), if the model mixes positions without a mask (FNet) or needs one length.

    A mask has ``attention_mask`` in its name and tokens in its last dimension; it applies to the
    tensors of its length with a similar name. Tokens with labels other than -100 stay.

    Attributes:
        cuts: cut if possible; else only check.
        allowed: None while no batch had anything to cut.
        why: why they may not be cut, or are not so far.
        on_asked: gets the start of the check once it is over: it does not belong to a step.
    """

    name = "padding"

    def __init__(self, say: Callable[[str], None], *, cuts: bool = True) -> None:
        self.cuts, self._say = cuts, say
        self.allowed: bool | None = None
        self.why = NO_TAIL
        self.on_asked: Callable[[float], None] = lambda since: None
        self._has_trainer = self._called = False
        self._last_data: object = None
        self._last_batch: object = None
        self._data: object = None

    def hooks(self) -> list[Hook]:
        """A Trainer computes its loss from the whole batch; of a loop the loader's is cut."""
        return [
            ("transformers.trainer", "Trainer.training_step", self._training_step),
            ("torch.nn.modules.module", "", self._watch_calls),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", self._next_batch),
        ]

    def report(self) -> dict[str, str]:
        """``cut``, ``may be cut``, or ``full`` and why."""
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
            beside=trainer,
        )
        return original(trainer, model, self.shortened(inputs), *args, **kwargs)

    def _watch_calls(self, module: ModuleType) -> None:
        """The first module that is called to train is checked, with its arguments."""
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
                    self.ask(
                        model,
                        given,
                        lambda inner, batch: _call(inner, len(args), batch),
                        loaded=self._last_batch,
                    )
                    return original(model, *args, **kwargs)
                finally:
                    self._called = False
            return original(model, *args, **kwargs)

        cls.__call__ = call

    def _next_batch(self, original: Original, iterator: _BaseDataLoaderIter) -> object:
        """Batches of the data that the model was checked with."""
        batch = original(iterator)
        self._last_data = iterator._dataset
        self._last_batch = batch if self.allowed is None else None
        is_checked = self._data is not None and self._data is self._last_data
        return self.shortened(batch) if is_checked else batch

    def shortened(self, batch: object) -> object:
        """The batch as it is trained on."""
        return cut(batch) if self.allowed and self.cuts else batch

    def ask(
        self,
        model: Module,
        batch: object,
        run: Run,
        *,
        together: bool = False,
        loaded: object = None,
        beside: object = None,
    ) -> None:
        """Check whether this batch may be cut, if it has anything to cut.

        ``together``: the loss needs figures of all ranks. ``loaded``: the output of the loader, if
        the model is called with something made of it. ``beside``: what computes the loss, if the
        model alone does not.
        """
        if self.allowed is not None:
            return
        since, encodings = time.perf_counter(), list(encodings_of(batch))
        if encodings and not has_tail(batch):
            return
        inner = getattr(model, "module", model)  # DistributedDataParallel
        reason: str | None
        if not encodings:
            reason = NO_MASK
        elif loaded is not None and not any(encodings_of(loaded)):
            reason = NO_NAMES
        elif together:
            reason = TOGETHER
        elif hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None):
            reason = COMPILED
        else:
            # To the last column that is used: what looks beyond a token (a convolution) sees it.
            reason = difference(inner, batch, cut(batch, 1), run, beside)
            if reason is not None and reason.startswith(FAILS):
                reason = difference(inner, batch, cut(batch), run, beside)
        self.allowed, self.why = reason is None, reason or ""
        if self.cuts:
            message = "columns that are padding in every sample of a batch are cut off"
            self._say(f"padding is not cut off: {reason}" if reason else message)
        self.on_asked(since)


def _call(model: Module, positional: int, given: Mapping[Any, Any]) -> object:
    """Call a model with arguments by position and by name."""
    named = {name: value for name, value in given.items() if not isinstance(name, int)}
    return model(*(given[at] for at in range(positional)), **named)


def _trains(model: Module) -> bool:
    torch = sys.modules["torch"]
    return (
        model.training
        and torch.is_grad_enabled()
        and any(parameter.requires_grad for parameter in model.parameters())
    )
