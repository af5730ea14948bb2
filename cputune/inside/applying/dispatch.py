"""Rank 0 loads each batch as the script has written it, and gives every rank its rows."""

from __future__ import annotations

import copy
import io
import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cputune.inside.applying.hooking import Hook, Original, put
from cputune.inside.applying.ranks import seed_as_several
from cputune.inside.applying.shared import Setting

if TYPE_CHECKING:
    from transformers import Trainer


# Bytes before a batch: the largest size of all ranks, and that of this rank.
HEAD = 16


class Dispatch:
    """Lets the sampler, the data set and the collator run in rank 0 alone, as with one rank.

    So a batch may depend on all of its samples, on the batches before it and on random numbers, and
    a data set may be another one in each start. Of other loaders (evaluations) rank 0 gives each
    rank a whole batch, so that all ranks see the same data set.

    Attributes:
        each: samples that every rank gets of a batch; 0 before a loader is seen.
        receives: whether this rank gets its samples from another one.
    """

    name = "dispatch"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._in_trainer = False
        self._accumulates = 1.0
        self.each = 0
        self.receives = False

    def hooks(self) -> list[Hook]:
        """What makes the loaders of an Accelerator, also those of a Trainer."""
        return [
            ("transformers.trainer", "Trainer.train", self._train),
            ("accelerate.accelerator", "prepare_data_loader", self._prepare),
            ("accelerate.data_loader", "DataLoaderDispatcher.__iter__", self._iterate),
        ]

    def report(self) -> dict[str, str]:
        """Nothing: the first steps of a rank show its samples."""
        return {}

    def _train(self, original: Original, trainer: Trainer, *args: object, **kw: object) -> object:
        """Watch this trainer make its loader; a subclass may do that in its own way."""
        batch, batches = trainer.args.per_device_train_batch_size, 1.0
        if hasattr(batch, "typed"):
            batches = trainer.args.gradient_accumulation_steps / batch.typed
        self._accumulates = batches
        put(trainer, "get_train_dataloader", self._of_trainer)
        return original(trainer, *args, **kw)

    def _of_trainer(self, original: Original, *args: object, **kwargs: object) -> object:
        self._in_trainer = True
        try:
            return original(*args, **kwargs)
        finally:
            self._in_trainer = False

    def _is_trained_on(self) -> bool:
        """Whether the loader that is being prepared is one that is trained on."""
        if self._setting.has_trainer:
            return self._in_trainer
        return self._setting.prepares_trained

    def _prepare(self, original: Original, loader: Any, *args: object, **kwargs: Any) -> object:
        """Replaces ``prepare_data_loader``, which an Accelerator calls with names.

        Of a loader that is not trained on each rank gets a batch, as accelerate would give it.
        """
        sampler = getattr(loader, "batch_sampler", None)
        size = getattr(sampler, "batch_size", None)
        if not isinstance(size, int):
            return original(loader, *args, **kwargs)
        trains = self._is_trained_on()
        world, is_shared = self._setting.force.world_size, bool(kwargs.get("split_batches"))
        each = size // world if is_shared else size
        whole = each
        if trains:
            whole = size if is_shared else self._as_written(size)
        loader = copy.copy(loader)
        if not trains:
            sampler = copy.copy(sampler)  # that of a script may be used elsewhere, too
        loader.collate_fn = Collate(
            loader.collate_fn, whole, world, self._setting.refuse, by_rank=not trains
        )
        sampler.batch_size = each * world  # type: ignore[union-attr]
        # accelerate makes the loader of a stream anew, from what is no longer to be set.
        loader.__dict__.update(batch_size=each * world, batch_sampler=sampler)
        if self._setting.force.typed_ranks > 1 and not kwargs.get("use_seedable_sampler"):
            seed_as_several(getattr(loader, "sampler", None))
        kwargs.update(num_processes=1, split_batches=True, dispatch_batches=True)
        prepared = original(loader, *args, **kwargs)
        if trains:
            self.each = each
            self._setting.note("dispatch", "the ranks that load its batches")
            self._setting.say(
                f"rank 0 loads each batch of {whole} and gives each rank {each} samples"
            )
        return prepared

    def _as_written(self, size: int) -> int:
        """The batch of the script, which its ranks and its accumulation have divided into this."""
        force = self._setting.force
        whole = size * force.world_size * self._accumulates / force.typed_ranks
        if whole == int(whole) and whole % size == 0 and size * force.world_size % whole == 0:
            return int(whole)
        return size * force.world_size

    def _iterate(self, original: Any, loader: Any) -> Iterator[object]:
        """Replaces the passes of accelerate's dispatcher, which joins batches of unlike widths."""
        if not isinstance(loader.base_dataloader.collate_fn, Collate):
            yield from original(loader)
            return
        ranks = sys.modules["torch"].distributed
        self.receives = ranks.get_rank() > 0
        loader.begin()
        loader.set_epoch(loader.iteration)
        begin_epoch(loader.base_dataloader.batch_sampler, loader.iteration)
        rounds = None if self.receives else loader.base_dataloader.__iter__()
        parcels = loader.__dict__.setdefault("_cputune_parcels", Parcels(ranks))
        given, number = following(rounds, parcels), 0
        while given:
            after = following(rounds, parcels)  # as accelerate does, to know which one is the last
            if not after:
                loader.end_of_dataloader, loader.remainder = True, given[1]
            if number >= loader.skip_batches:
                yield given[0]
            given, number = after, number + 1
        loader.iteration += 1
        loader.end()


def begin_epoch(sampler: Any, epoch: int) -> None:
    """Also of a resumed training, in which accelerate has put the sampler into one that skips."""
    while sampler is not None:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)


class Collate:
    """Collates the samples of all ranks as the script does, and divides the rows.

    Of several batches of the script each is collated by itself. If a sample has several rows, the
    samples of each rank are. The last batch of an epoch is filled up, so that all ranks take as
    many samples.

    Attributes:
        by_rank: each rank gets a whole batch (an evaluation), as many as there are ``ranks``.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        whole: int,
        ranks: int,
        refuse: Callable[[str], None],
        *,
        by_rank: bool = False,
    ) -> None:
        self._collate, self._whole, self.ranks = collate, whole, ranks
        self._refuse = refuse
        self.by_rank = by_rank
        self._has_several_rows = False

    def __call__(self, samples: list[Any]) -> tuple[int, list[Any]]:
        """How many samples these are, and the batch of each rank."""
        if self.by_rank:
            return len(samples), self._of_each(samples, self.ranks, self._whole)
        groups = [samples]
        if len(samples) % self._whole == 0 and self.ranks % (len(samples) // self._whole) == 0:
            groups = [samples[at : at + self._whole] for at in range(0, len(samples), self._whole)]
        given: list[Any] = []
        for group in groups:
            given += self._divided(group, self.ranks // len(groups))
        return len(samples), given

    def _divided(self, samples: list[Any], parts: int) -> list[Any]:
        count, each = len(samples), -(-len(samples) // parts)
        if not self._has_several_rows:
            batch = self._collate(samples)
            rows = rows_in(batch)
            if rows == count:
                return [picked(batch, count, places) for places in shares(count, parts, each)]
            if not rows or rows % count:
                self._refuse(
                    f"its collator makes {rows or 'no'} rows of {count} samples, which cannot be "
                    f"divided over {parts} ranks"
                )
            self._has_several_rows = True
        return self._of_each(samples, parts, each)

    def _of_each(self, samples: list[Any], parts: int, each: int) -> list[Any]:
        given = []
        for places in shares(len(samples), parts, each):
            given.append(self._collate([samples[n] for n in places]))
        return given


def shares(count: int, parts: int, each: int) -> list[list[int]]:
    """The places of each part; those that are missing in the end are taken from the start."""
    return [[n % count for n in range(at, at + each)] for at in range(0, parts * each, each)]


def rows_in(batch: object) -> int:
    """The rows of a batch: those of its first tensor, or of its first list; 0: not known."""
    return _first_rows(batch, of_tensors=True) or _first_rows(batch, of_tensors=False)


def _first_rows(value: Any, *, of_tensors: bool) -> int:
    if hasattr(value, "shape"):
        return int(value.shape[0]) if of_tensors and len(value.shape) else 0
    if isinstance(value, list) and not of_tensors:
        return len(value)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if not isinstance(value, (list, tuple)):
        return 0
    found = (_first_rows(held, of_tensors=of_tensors) for held in value)
    return next(filter(None, found), 0)


def picked(value: Any, rows: int, places: Sequence[int]) -> Any:
    """These rows of a batch, in the same container; what is not of rows is given to all."""
    if hasattr(value, "shape"):
        return value[list(places)] if len(value.shape) and value.shape[0] == rows else value
    if isinstance(value, Mapping):
        held = {name: picked(inner, rows, places) for name, inner in value.items()}
        try:
            return type(value)(held)  # type: ignore[call-arg]
        except TypeError:
            return held
    if not isinstance(value, (list, tuple)):
        return value
    if len(value) == rows and not any(hasattr(inner, "shape") for inner in value):
        made = [value[place] for place in places]
    else:
        made = [picked(inner, rows, places) for inner in value]
    if isinstance(value, list):
        return made
    return type(value)(*made) if hasattr(value, "_fields") else tuple(made)


def following(rounds: Iterator[Any] | None, parcels: Parcels) -> tuple[Any, int] | None:
    """The next batch of this rank, and the samples of all ranks; None after the last.

    Only rank 0 has ``rounds``. Python's and numpy's generators go on in all ranks as in rank 0, so
    that a loop that draws with them (which task comes next) draws the same in each.
    """
    batches: Sequence[Any] = ()
    if rounds is not None:
        before = drawn_so_far()
        count, batches = next(rounds, (0, ()))
        drawn: bytes | None = drawn_so_far()
        if drawn == before:
            drawn = None
        batches = [(batch, count, drawn) for batch in batches]
    received = parcels.scattered(batches)
    if received is None:
        return None
    batch, count, drawn = received
    if rounds is None and drawn is not None:
        of_python, of_numpy = pickle.loads(drawn)
        random.setstate(of_python)
        if of_numpy is not None and "numpy" in sys.modules:
            sys.modules["numpy"].random.set_state(of_numpy)
    return batch, count


def drawn_so_far() -> bytes:
    """The states of the generators that a script shares with libraries, without torch's."""
    numpy = sys.modules.get("numpy")
    of_numpy = None
    if numpy is not None:
        of_numpy = numpy.random.get_state()
    return pickle.dumps((random.getstate(), of_numpy))


class Parcels:
    """What rank 0 sends the ranks, in parcels that are as large as the last ones needed.

    So one collective brings a batch; a larger one, which all ranks know by the first number of
    their parcel, takes a second.
    """

    def __init__(self, ranks: Any) -> None:
        self._ranks = ranks
        self._room = 1 << 14

    def scattered(self, batches: Sequence[Any]) -> Any:
        """The share of this rank of those that rank 0 has, one for each; None if it has none."""
        packets = [packed(batch) for batch in batches]
        most = max(map(len, packets), default=0)
        heads = [struct.pack("<qq", most, len(packet)) for packet in packets]
        if most <= self._room:
            heads = [head + packet for head, packet in zip(heads, packets, strict=True)]
        received = self._scatter(HEAD + self._room, heads)
        most, size = struct.unpack("<qq", received[:HEAD])
        content = received[HEAD : HEAD + size]
        if most > self._room:
            content = self._scatter(most, packets)[:size]
            self._room = most + most // 8
        if most == 0:
            return None
        return batches[0] if batches else unpacked(content)

    def _scatter(self, size: int, packets: Sequence[bytes | bytearray]) -> Any:
        """The bytes that rank 0 has for this rank; of a rank without one they are 0."""
        torch, ranks = sys.modules["torch"], self._ranks
        received = torch.empty(size, dtype=torch.uint8)
        sent = None
        if ranks.get_rank() == 0:
            sent = [torch.zeros(size, dtype=torch.uint8) for _ in range(ranks.get_world_size())]
            for tensor, packet in zip(sent, packets, strict=False):
                tensor[: len(packet)] = torch.frombuffer(bytearray(packet), dtype=torch.uint8)
        ranks.scatter(received, sent, src=0)
        return received.numpy().data


class _Packer(pickle.Pickler):
    """Pickles tensors by their bytes, and everything else as usual."""

    def persistent_id(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or value.requires_grad:
            return None
        if value.layout is not torch.strided or value.is_quantized or value.is_complex():
            return None
        flat = value.contiguous().reshape(-1).view(torch.uint8)
        name = str(value.dtype).removeprefix("torch.")
        return name, tuple(value.shape), pickle.PickleBuffer(flat.numpy())


class _Unpacker(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        torch, (name, shape, content) = sys.modules["torch"], pid
        dtype = getattr(torch, name)
        if not len(content):
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(content, dtype=dtype).reshape(shape)


def packed(batch: object) -> bytearray:
    """A batch as bytes, for another rank."""
    file = io.BytesIO()
    _Packer(file, protocol=5).dump(batch)
    return bytearray(file.getbuffer())


def unpacked(packet: Any) -> Any:
    """A batch from its bytes."""
    return _Unpacker(io.BytesIO(packet)).load()
