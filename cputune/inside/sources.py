"""Checks what the data set and the collator of a script do with samples.

A worker of the loader is another process, and batches that were accumulated may be joined. Both
train the same only if a batch is a function of its samples: each row depends on its own sample
only, and nothing is left behind for the next batch. For ranks it is not asked: rank 0 loads the
batches of all. What a model makes of a batch is checked in ``equivalence_check``.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cputune.inside.applying.unchanged import as_before
from cputune.inside.contents import contents_of, rows_of
from cputune.inside.data_functions import changes_outside, refers_to_model
from cputune.inside.draws import SEED, Draws

MIXED = "its collator makes each row of a batch out of several samples: {how}"
PARTLY = "a row differs if other samples come with it"
STATE = (
    "its data set or collator changes with each sample that it is asked for, and each rank would"
    " ask for its own samples alone"
)
CHANGES = "its data set or collator gives other batches later in the training"
LEARNS = "its data set or collator depends on the weights that are trained"

# Samples in which rare values are looked for.
LOOKED_AT = 512

# To look for them.
MOST_SECONDS = 2.0

# Another seed than that of the questions.
OTHER_SEED = SEED + 17


@dataclass(frozen=True)
class Taken:
    """What a batch was made of: by which collator, of which samples of which data set.

    ``index``: None for samples without numbers, which are then in ``samples``, if they were seen.
    """

    data: Any
    collate: Callable[[list[Any]], Any]
    index: list[Any] | None
    samples: list[Any] | None = None


class Sources:
    """The sources of the loader that is trained on.

    ``drawn``: the same samples differ with other random numbers; None: not known.
    """

    def __init__(self, draws: Draws) -> None:
        self.drawn: bool | None = None
        self._draws = draws
        self._latest: Taken | None = None
        self._taken: Taken | None = None
        self._first: tuple[Taken, object] | None = None
        self._streamed: list[Any] | None = None

    def stream(self, original: Callable[..., object], fetcher: Any, index: object) -> object:
        """Replaces the fetch of a stream, whose samples have no numbers."""
        collate = fetcher.collate_fn

        def seen(samples: Any) -> object:
            with contextlib.suppress(Exception):  # what cannot be copied is not asked about
                self._streamed = copy.deepcopy(samples) if isinstance(samples, list) else None
            return collate(samples)

        fetcher.collate_fn = seen
        try:
            return original(fetcher, index)
        finally:
            fetcher.collate_fn = collate

    def asked(self, iterator: Any, index: object) -> None:
        """Note the numbers of the samples of a batch, as a loader asks for them."""
        iterator.__dict__.setdefault("_cputune_indices", deque(maxlen=1024)).append(index)

    def fetched(self, iterator: Any) -> None:
        """Note what the batch that a loader gives is made of."""
        waiting = iterator.__dict__.get("_cputune_indices")
        index = None
        if waiting:
            index = waiting.popleft()
        is_list = isinstance(index, (list, tuple)) and None not in index
        self._latest = Taken(
            data=iterator._dataset,
            collate=iterator._collate_fn,
            index=list(index) if is_list else None,  # type: ignore[arg-type]
            samples=self._streamed,
        )

    def trained(self) -> None:
        """Note that what was fetched last is trained on."""
        self._taken = self._latest or self._taken

    @property
    def size(self) -> int | None:
        """Samples of the batch; None if they were not seen."""
        taken = self._taken
        if taken is None or (taken.index is None and taken.samples is None):
            return None
        return len(taken.samples or [] if taken.index is None else taken.index)

    def ask(self) -> Iterator[tuple[str, str]]:
        """What does not train the same elsewhere: the question, and why."""
        taken = self._taken
        if taken is None or self.size is None:
            return
        for question, ask_question in (
            ("samples", self._state),
            ("collator", self._mixes),
            ("workers", self._changes),
        ):
            try:
                reason = ask_question(taken)
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                reason = f"they cannot be asked again ({type(error).__name__}: {lines[0][:120]})"
            yield question, reason

    def depends_on_weights(self, before: object) -> str:
        """Why workers, which have the weights of their start, would give other batches."""
        if before != self.figure():
            return LEARNS
        return ""

    def figure(self) -> object:
        """A number for the batch that these samples make now; None if it is not known."""
        if self._taken is None or self.size is None:
            return None
        with contextlib.suppress(Exception), as_before(self._taken.data, self._taken.collate):
            return self._contents(self._taken)
        return None

    def of_rare_samples(self) -> tuple[Any, int] | None:
        """A batch that begins with a sample of a rare value, and its samples, or None.

        A class, or a missing label, that few samples have may not be in any batch that is seen.
        """
        taken, size = self._taken, self.size
        if taken is None or size is None or size < 2 or taken.index is None:
            return None
        with contextlib.suppress(Exception), as_before(taken.data, taken.collate):
            with self._draws.alike(0):
                rare, usual = _rare(taken.data, MOST_SECONDS)
            if not rare:
                return None
            # Without the rare ones in the other parts of the batch: there they would hide.
            index = [*rare[:1], *itertools.islice(itertools.cycle(usual), size - 1)]
            return self._made(taken, self._samples(taken, index)), size
        return None

    # The questions

    def _state(self, taken: Taken) -> str:
        """Whether the same samples give another batch the second time."""
        with as_before(taken.data, taken.collate):
            once, again = self._contents(taken), self._contents(taken)
        with as_before(taken.data, taken.collate):
            other = self._contents(taken, seed=OTHER_SEED)
        self.drawn = None if once is None else other != once
        if once != again:
            return STATE
        return ""

    def _mixes(self, taken: Taken) -> str:
        """Whether a row of the batch depends on more than its own sample.

        The first half is compared in the batch and alone, then the second half in a batch that
        begins with it, so that draws per sample are the same.
        """
        with as_before(taken.data, taken.collate):
            samples = self._samples(taken, taken.index)
        half = len(samples) // 2
        if half == 0:
            return ""
        for first, rest in ((samples[:half], samples[half:]), (samples[half:], samples[:half])):
            together, alone = self._made(taken, [*first, *rest]), self._made(taken, first)
            reason = _how_mixed(together, alone, len(samples), len(first))
            if reason:
                other = self._made(taken, rest)
                figures = [contents_of(batch) for batch in (together, alone, other)]
                if None in figures or (figures[1] + figures[2] - figures[0]) % (1 << 64):  # type: ignore[operator]
                    return reason
        return ""

    def _changes(self, taken: Taken) -> str:
        """Why another process, which starts with a copy, would prepare other batches."""
        if taken.index is None:
            return ""
        if self._first is None:
            self._first = taken, self.figure()
        else:
            first, before = self._first
            with as_before(first.data, first.collate):
                if before is not None and self._contents(first) != before:
                    return CHANGES
        return changes_outside(taken.data, taken.collate) or refers_to_model(
            taken.data, taken.collate
        )

    # What they are made of

    def _samples(self, taken: Taken, index: Sequence[Any] | None) -> list[Any]:
        if index is None:
            return taken.samples or []
        with self._draws.alike(0):
            many = getattr(taken.data, "__getitems__", None)
            if many:
                return list(many(list(index)))
            return [taken.data[n] for n in index]

    def _made(self, taken: Taken, samples: Sequence[Any], seed: int = SEED) -> Any:
        with (
            as_before(taken.data, taken.collate),
            self._draws.alike(len(samples), seed=seed, rows=seed),
        ):
            return taken.collate(copy.deepcopy(list(samples)))

    def _contents(self, taken: Taken, seed: int = SEED) -> object:
        """A number for the batch, made without anything put back."""
        samples = taken.samples
        count = self.size or 0
        with self._draws.alike(0, seed=seed):
            if taken.index is not None:
                many = getattr(taken.data, "__getitems__", None)
                if many:
                    samples = many(taken.index)
                else:
                    samples = [taken.data[n] for n in taken.index]
        with self._draws.alike(count, seed=seed, rows=seed):
            return contents_of(taken.collate(copy.deepcopy(list(samples or []))))


def _how_mixed(together: Any, alone: Any, samples: int, part: int) -> str:
    """How the first rows of a batch differ from those of its first samples alone; empty: they do
    not.
    """
    rows, alone_rows = rows_of(together), rows_of(alone)
    if not rows or len(rows) % samples or len(alone_rows) * samples != len(rows) * part:
        return MIXED.format(
            how=f"{samples} samples make {len(rows)} rows, {part} make {len(alone_rows)}"
        )
    each = len(rows) // samples
    # The rows of a sample follow each other, or each block has a row of every sample.
    in_blocks = []
    for block in range(each):
        in_blocks += rows[block * samples : block * samples + part]
    for first in (rows[: len(alone_rows)], in_blocks):
        if all(map(_alike, first, alone_rows)):
            return ""
    return MIXED.format(how=PARTLY)


def _alike(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    torch = sys.modules["torch"]
    if row.keys() != other.keys():
        return False
    for name, value in row.items():
        against = other[name]
        if not torch.is_tensor(value):
            if value != against:
                return False
            continue
        if value.shape != against.shape or value.dtype != against.dtype:
            return False
        if not torch.allclose(value, against, rtol=1e-5, atol=1e-6, equal_nan=True):
            return False
    return True


def _rare(data: Any, seconds: float) -> tuple[list[int], list[int]]:
    """Samples with the rarest value of a field, and those with usual ones."""
    length, until = len(data), time.perf_counter() + seconds
    count = min(LOOKED_AT, length)
    values_of: dict[str, dict[int, str]] = {}
    for n in range(count):
        number = n * length // count
        for name, value in _values_of(data[number], ""):
            values_of.setdefault(name, {})[number] = value
        if time.perf_counter() > until:
            break
    fewest: tuple[int, list[int], list[int]] | None = None
    for values in values_of.values():
        counts = Counter(values.values())
        rarest, times = min(counts.items(), key=lambda item: item[1])
        if 1 < len(counts) <= 64 and 10 * times < len(values):
            rare = [number for number, value in values.items() if value == rarest]
            usual = [number for number, value in values.items() if value != rarest]
            if fewest is None or times < fewest[0]:
                fewest = times, rare, usual
    if fewest is None:
        return ([], [])
    return fewest[1:]


def _values_of(sample: Any, name: str) -> Iterator[tuple[str, str]]:
    """The fields of a sample that hold one value; of others whether values are missing."""
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from _values_of(value, f"{name}.{key}")
    elif isinstance(sample, (bool, int, str, type(None))):
        yield name, str(sample)[:64]
    elif isinstance(sample, tuple):
        for number, value in enumerate(sample):
            yield from _values_of(value, f"{name}.{number}")
    elif hasattr(sample, "shape") and hasattr(sample, "dtype"):
        torch = sys.modules["torch"]
        values = torch.as_tensor(sample)
        if values.numel() == 1 and not values.is_floating_point():
            yield name, str(values.item())
        else:
            if values.is_floating_point():
                missing = values.isnan()
            else:
                missing = values < 0
            yield name, f"missing: {bool(missing.any())}"
