"""What would pay and was not tried, in the order of what it brings.

The doctor, the tuner and the report have it from here: what it brings, and whether one command does
it, or somebody has to decide. The factors are those that were read where the lever
lives, with their sources in ``cputune.plans.knobs`` and ``docs/measuring.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cputune.text.documents import Amount

if TYPE_CHECKING:
    from cputune.plans.knobs.record import LeftOut
    from cputune.plans.workload import Padding

GAINS = {
    "bf16-native": (1.72, 2.22),
    "allocator-missing": (1.12, 1.30),
    "allocator-default": (1.12, 1.30),
}
"""By the code of a finding how many times as fast its cure made training, at least and at most of
what was read (docs/knobs.md); of others nobody knows a figure."""

READ_ON = "on 2 cores"
"""What the factors that were read are of: another machine may gain more, or less."""

SLOWER = frozenset(
    {
        *("affinity-gomp", "affinity-shrinks", "bound-twice", "file-bound-twice", "pin-mask"),
        *("threads-affinity", "threads-limit", "threads-malformed", "threads-mkl", "threads-one"),
        *("ranks-oversubscribed", "quota-threads", "quota-throttled", "script-threads"),
        *("loader-threads", "tokenizer-threads", "file-openmpi-one-core", "one-core"),
        *("cpu-steal", "machine-busy", "isa-capped", "isa-old", "ipex-ignored", "debug-left-on"),
        *("isa-hidden", "priority-low", "memory-remote", "memory-high", "frequency-capped"),
        *("threads-serial", "srun-one-cpu", "hosts-cpu", "hosts-cores"),
    }
)
"""Warnings with which training is right and takes longer; other warnings are not about speed."""

Takes = Literal["one command", "your decision"]


def in_words(low: float, high: float, takes: Takes) -> str:
    """``×1.12–1.30 on 2 cores; one command``."""
    return f"{times(low, high)}; {takes}"


def times(low: float, high: float) -> str:
    """``×1.12–1.30 on 2 cores``; a single factor is counted in the script itself."""
    return f"×{low:.2f}–{high:.2f} {READ_ON}" if high > low else f"×{low:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One lever that pays, and what it would bring.

    Attributes:
        what: the lever, in words.
        low: how many times as fast it makes a step, at least where it was read.
        high: and at most.
        takes: whether one command does it, or somebody has to decide.
        do: the command, the option or the flag.
    """

    what: str
    low: Amount
    high: Amount
    takes: Takes
    do: str

    @property
    def brings(self) -> str:
        """``tcmalloc is not installed: ×1.12–1.30 on 2 cores``."""
        return f"{self.what}: {times(self.low, self.high)}"

    @property
    def words(self) -> str:
        """What it brings, and ``; one command: apt-get install …``."""
        return f"{self.what}: {in_words(self.low, self.high, self.takes)}: {self.do}"


_BRINGS = {
    "precision": ("bf16, which this CPU multiplies in hardware", *GAINS["bf16-native"]),
    "allocator": ("tcmalloc", *GAINS["allocator-default"]),
    "dropout": ("dropout masks of bytes", 1.10, 1.36),
    "optimizer": ("a fused AdamW, where the script's is a loop", 1.10, 1.28),
}
"""Of knobs what pays, and the factors that were read of it."""

LEAST_SHARE = 0.1
"""Of tokens that are padding: less is not worth a decision."""


def untried(
    left_out: Iterable[LeftOut],
    padding: Padding | None,
    cure: str | None = None,
) -> tuple[Lever, ...]:
    """Of what was left out, that which is known to pay; what would bring the most comes first.

    ``cure`` is the command that installs tcmalloc, where the doctor misses it.
    """
    found = [
        Lever(what=words, low=low, high=high, takes="your decision", do=f"tune {out.option}")
        for out in left_out
        if out.option is not None and out.what in _BRINGS
        for words, low, high in (_BRINGS[out.what],)
    ]
    if cure is not None:
        low, high = GAINS["allocator-missing"]
        what = "tcmalloc is not installed"
        found.append(Lever(what=what, low=low, high=high, takes="one command", do=cure))
    if padding is not None and padding.share >= LEAST_SHARE:
        of_padding = [out for out in left_out if out.what in ("padding", "order", "order=length")]
        left_so = next((out.option for out in of_padding if out.option), None)
        tried = padding.left == 1 and not of_padding  # batches of like length
        if left_so is not None or (padding.kept is not None and not tried):
            found.append(_of_padding(padding, left_so))
    return tuple(sorted(found, key=lambda lever: (-lever.high, -lever.low)))


def _of_padding(padding: Padding, option: str | None) -> Lever:
    """What shorter batches would bring: a step takes at least as much less as it has tokens less.

    Where no column is padding in all samples of a batch, only samples of like length help.
    """
    share = f"{padding.share:.0%} of the tokens that you compute are padding"
    shorter = padding.left < 1
    factor = round(1 / max(padding.left if shorter else 1 - padding.share, 0.01), 2)
    if option is not None:
        do = f"tune {option}"
    elif padding.mend is not None:
        do = f"start the script {padding.mend}"
    elif shorter:
        do = "pad each batch to its own longest sample (DataCollatorWithPadding)"
    else:
        do = "batches of like length (train_sampling_strategy or group_by_length of a Trainer)"
    why = "" if padding.kept is None or option else f", and {padding.kept}"
    return Lever(what=share + why, low=factor, high=factor, takes="your decision", do=do)
