"""What would make training faster and was not tried, the largest gain first.

The factors were measured on machines that have the knob, with their sources in
``cputune.plans.knobs`` and ``docs/measuring.md``.
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
"""How many times as fast training became after a finding was fixed, by its code: least and most
of what was measured (docs/knobs.md).
"""

READ_ON = "on 2 cores"
"""The machine on which the factors were measured."""

SLOWER = frozenset(
    (
        "affinity-gomp",
        "affinity-shrinks",
        "bound-twice",
        "file-bound-twice",
        "pin-mask",
        "threads-affinity",
        "threads-limit",
        "threads-malformed",
        "threads-mkl",
        "threads-one",
        "ranks-oversubscribed",
        "quota-threads",
        "quota-throttled",
        "script-threads",
        "loader-threads",
        "tokenizer-threads",
        "file-openmpi-one-core",
        "one-core",
        "cpu-steal",
        "machine-busy",
        "isa-capped",
        "isa-old",
        "ipex-ignored",
        "debug-left-on",
        "isa-hidden",
        "priority-low",
        "memory-remote",
        "memory-high",
        "frequency-capped",
        "threads-serial",
        "srun-one-cpu",
        "hosts-cpu",
        "hosts-cores",
    )
)
"""Warnings with which training is correct but slower."""

Takes = Literal["one command", "your decision"]


def gain_text(low: float, high: float, takes: Takes) -> str:
    """``×1.12–1.30 on 2 cores; one command``."""
    return f"{times(low, high)}; {takes}"


def times(low: float, high: float) -> str:
    """``×1.12–1.30 on 2 cores``; a single factor was computed from the script itself."""
    if high > low:
        return f"×{low:.2f}–{high:.2f} {READ_ON}"
    return f"×{low:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedGain:
    """A knob or option that may make training faster.

    Attributes:
        low: factor by which it makes a step faster, the least measured; high: the most.
        takes: whether one command does it, or you have to decide.
        do: the command, the option or the flag.
    """

    what: str
    low: Amount
    high: Amount
    takes: Takes
    do: str

    @property
    def gain(self) -> str:
        """``tcmalloc is not installed: ×1.12–1.30 on 2 cores``."""
        return f"{self.what}: {times(self.low, self.high)}"

    @property
    def text(self) -> str:
        """What it brings, and ``; one command: apt-get install …``."""
        return f"{self.what}: {gain_text(self.low, self.high, self.takes)}: {self.do}"


_KNOB_GAINS = {
    "precision": ("bf16, which this CPU multiplies in hardware", *GAINS["bf16-native"]),
    "allocator": ("tcmalloc", *GAINS["allocator-default"]),
    "dropout": ("dropout masks of bytes", 1.10, 1.36),
    "optimizer": ("a fused AdamW, because the script's is a loop", 1.10, 1.28),
}
"""What is not tried of a knob, and the measured factors."""

LEAST_SHARE = 0.1
"""Of tokens that are padding: a smaller share is not worth a decision."""


def untried(
    left_out: Iterable[LeftOut],
    padding: Padding | None,
    install: str | None = None,
) -> tuple[UntriedGain, ...]:
    """What was left out although it is known to help; the largest gain first.

    ``install`` is the command that installs tcmalloc, if it is missing.
    """
    gains = []
    for out in left_out:
        if out.option is not None and out.what in _KNOB_GAINS:
            name, low, high = _KNOB_GAINS[out.what]
            do = f"tune {out.option}"
            gains.append(UntriedGain(what=name, low=low, high=high, takes="your decision", do=do))
    if install is not None:
        low, high = GAINS["allocator-missing"]
        what = "tcmalloc is not installed"
        gains.append(UntriedGain(what=what, low=low, high=high, takes="one command", do=install))
    if padding is not None and padding.share >= LEAST_SHARE:
        of_padding = [out for out in left_out if out.what in ("padding", "order", "order=length")]
        left_so = next((out.option for out in of_padding if out.option), None)
        tried = padding.left == 1 and not of_padding  # batches of like length
        if left_so is not None or (padding.kept is not None and not tried):
            gains.append(_of_padding(padding, left_so))
    return tuple(sorted(gains, key=lambda gain: (-gain.high, -gain.low)))


def _of_padding(padding: Padding, option: str | None) -> UntriedGain:
    """The gain of shorter batches: a step takes less time by at least the share of tokens saved."""
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
        do = "batches of similar lengths (train_sampling_strategy or group_by_length of a Trainer)"
    what = share
    if padding.kept is not None and not option:
        what = f"{share}, and {padding.kept}"
    return UntriedGain(what=what, low=factor, high=factor, takes="your decision", do=do)
