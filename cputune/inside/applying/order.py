"""Lets a Trainer take the samples of a step of similar length."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.hooking import Hook, Original

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer


# Steps whose samples are sorted by length, as in Trainer's ``group_by_length``.
POOL = 50

# Consecutive steps, each with samples of another tenth of the lengths.
AT_ONCE = 10

# To read the length of every sample.
MOST_SECONDS = 30.0


class OfLikeLength:
    """A sampler: samples in an order in which those of a step have similar lengths.

    Samples of ``POOL`` steps in a random order are sorted. Their steps come in a random order
    again, ``AT_ONCE`` of them with one of each tenth of all lengths, so that any of them are as
    long as all.
    """

    def __init__(self, lengths: Sequence[int], step: int, seed: int) -> None:
        self._lengths, self._step, self._seed, self._epoch = lengths, step, seed, 0

    def __len__(self) -> int:
        return len(self._lengths)

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate at each pass over the data, also of a resumed training."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = random.Random(f"{self._seed} {self._epoch}")
        samples = list(range(len(self)))
        generator.shuffle(samples)
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
            generator.shuffle(tenth)
        for together in itertools.zip_longest(*tenths, fillvalue=()):
            yield from itertools.chain(*generator.sample(together, len(together)))
        yield from rest


class Order:
    """Lets a Trainer take the samples of a step of similar length, so that fewer columns are
    padding.

    Each pass over the data has another order, the same on every rank. It needs a Trainer that draws
    its samples at random. Trainer's ``group_by_length`` (``train_sampling_strategy``) sorts 50
    batches by the number of tokens, which is constant for padded samples. ``why`` it does not: None
    if it does.
    """

    name = "order"

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.why: str | None = "no Trainer has asked for an order of its samples"

    def hooks(self) -> list[Hook]:
        """If a Trainer draws its samples."""
        return [("transformers.trainer", "Trainer._get_train_sampler", self.sampler)]

    def sampler(
        self, original: Original, trainer: Trainer, *args: object, **kwargs: object
    ) -> object:
        """Replaces ``Trainer._get_train_sampler``."""
        script_sampler, typed = original(trainer, *args, **kwargs), trainer.args
        data: Any = next(iter((*args, *kwargs.values())), None) or trainer.train_dataset
        lengths: list[int] | str = "the script draws them by itself, and not at random"
        if type(script_sampler).__name__ == "RandomSampler":
            lengths = token_lengths(data)
        self.why = lengths if isinstance(lengths, str) else None
        if isinstance(lengths, str):
            self._say(f"samples stay in their order: {lengths}")
            return script_sampler
        self._say("samples of a step are of like length, in another order than as typed")
        step = typed.train_batch_size * typed.gradient_accumulation_steps * typed.world_size
        return OfLikeLength(
            lengths, step, typed.seed if typed.data_seed is None else typed.data_seed
        )

    def report(self) -> dict[str, str]:
        """What a rank shows."""
        return {"order": "length"} if self.why is None else {"order": f"as found, for {self.why}"}


def token_lengths(data: Dataset) -> list[int] | str:
    """The tokens of each sample that are not padding; or why they are not known."""
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
