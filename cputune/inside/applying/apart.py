"""Each rank draws its own random numbers for its samples."""

from __future__ import annotations

import os
import sys

from cputune.inside.applying.hooking import Hook, Original
from cputune.inside.applying.shared import Setting

# Between the seeds of two ranks: odd, and without a pattern.
APART = 0x9E3779B97F4A7C15


class DrawsPart:
    """Draws separately in each rank after the first, from the first batch on.

    A script seeds every rank alike, so two ranks would draw the same timestep, noise or mask for
    different samples. The first rank draws as it would alone, and loads all batches (``dispatch``).
    A script that draws once for a whole batch gets no other number of ranks
    (``inside.equivalence_check``).
    """

    name = "draws"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._begun = False

    def hooks(self) -> list[Hook]:
        """The functions that begin a pass, and those with which a script seeds."""
        loader = "torch.utils.data.dataloader"
        return [
            (loader, "_BaseDataLoaderIter.__next__", self._begin),
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
        """A script may seed in each step, too.

        Between two passes (for the next fold of its data) ranks draw alike until the next batch.
        """
        generator = original(*args, **kwargs)
        self._begun &= _in_a_pass()
        if self._begun:
            self._setting.note("apart", "seeds that it sets while it trains")
            draw_apart(rank_of_this())
        return generator


def _in_a_pass() -> bool:
    """Whether a loader of an Accelerator is being iterated; true without an Accelerator."""
    state = sys.modules.get("accelerate.state")
    return state is None or bool(state.GradientState().in_dataloader)


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
