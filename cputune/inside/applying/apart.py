"""Each rank draws its own random numbers for its samples."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.shared import Setting

APART = 0x9E3779B97F4A7C15
"""Between the seeds of two ranks: odd, and without a pattern."""


class DrawsPart:
    """Draws separately in each rank after the first, from the first batch on.

    A script seeds every rank alike, so two ranks would draw the same timestep, noise or mask for
    different samples. The first rank draws as it would alone. What ranks draw together (the order
    of the samples) comes from the first rank, or from the seed of the script, which stays. A script
    that draws once for a whole batch gets no other number of ranks (``inside.asking``).
    """

    name = "draws"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._begun = False
        self._loading: tuple[Any, Any, Any] | None = None
        self._pid = 0

    def hooks(self) -> list[Hook]:
        """The functions that load batches, and those with which a script seeds."""
        fetch, loader = "torch.utils.data._utils.fetch", "torch.utils.data.dataloader"
        return [
            (fetch, "_MapDatasetFetcher.fetch", self._fetch),
            (fetch, "_IterableDatasetFetcher.fetch", self._fetch),
            (loader, "_BaseDataLoaderIter.__next__", self._begin),
            # Of a stream the first rank alone loads batches, and sends them to the others.
            ("accelerate.data_loader", "DataLoaderDispatcher.__iter__", self._begin),
            ("torch.nn.parallel.distributed", "DistributedDataParallel.forward", self._begin),
            ("torch.random", "manual_seed", self._seed),
            ("torch", "manual_seed", self._seed),
        ]

    def report(self) -> dict[str, str]:
        """Nothing: the first steps of a rank show its draws."""
        return {}

    def _begin(self, original: Original, *args: object, **kwargs: object) -> object:
        """Before the first batch: earlier draws make the model and the data."""
        if not self._begun:
            self._begun = True
            draw_apart(rank_of_this())
        return original(*args, **kwargs)

    def _seed(self, original: Original, *args: object, **kwargs: object) -> object:
        """A script may seed in each step, too."""
        generator = original(*args, **kwargs)
        if self._begun:
            self._setting.note("apart", "seeds that it sets while it trains")
            draw_apart(rank_of_this())
        return generator

    def _fetch(self, original: Original, fetcher: object, *args: object) -> object:
        """Samples are augmented and masked with numbers that no other rank draws.

        Other draws with Python or numpy (which task comes next) stays alike.
        """
        rank = rank_of_this()
        if rank == 0:
            before = _state()
            fetched = original(fetcher, *args)
            if not _alike(before, _state()):
                self._setting.note("apart", "numbers that are drawn for its samples")
            return fetched
        if self._loading is None or self._pid != os.getpid():  # a worker has its own seed
            self._pid = os.getpid()
            self._loading = _seeded(seed_of(rank) & 0xFFFFFFFF)
        outside = _state()
        _put(self._loading)
        try:
            return original(fetcher, *args)
        finally:
            self._loading = _state()
            _put(outside)


def rank_of_this() -> int:
    """The number of this rank in the job."""
    number = os.environ.get("RANK", "")
    if number.isdigit():
        return int(number)
    ranks = sys.modules["torch"].distributed
    return int(ranks.get_rank()) if ranks.is_available() and ranks.is_initialized() else 0


def seed_of(rank: int) -> int:
    """Another seed for each rank, from the script's own."""
    return (int(sys.modules["torch"].initial_seed()) ^ rank * APART) & (1 << 63) - 1


def draw_apart(rank: int) -> None:
    """Let torch draw numbers of this rank; the seed that it reports stays the script's.

    The state of torch's generator begins with its seed, from which samplers are made.
    """
    if rank == 0:
        return
    torch = sys.modules["torch"]
    state = torch.Generator().manual_seed(seed_of(rank)).get_state()
    state[:8] = torch.get_rng_state()[:8]
    torch.set_rng_state(state)


def _seeded(seed: int) -> tuple[Any, Any, Any]:
    """The states of all generators with this seed; the generators are restored."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.RandomState(seed).get_state()
    return random.Random(seed).getstate(), torch.Generator().manual_seed(seed).get_state(), drawn


def _state() -> tuple[Any, Any, Any]:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state()
    return random.getstate(), torch.get_rng_state(), drawn


def _alike(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    if one[0] != other[0] or not bool((one[1] == other[1]).all()):
        return False
    if one[2] is None or other[2] is None:
        return one[2] is other[2]
    return bool((one[2][1] == other[2][1]).all()) and one[2][2:] == other[2][2:]


def _put(state: tuple[Any, Any, Any]) -> None:
    random.setstate(state[0])
    sys.modules["torch"].set_rng_state(state[1])
    if state[2] is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state[2])
