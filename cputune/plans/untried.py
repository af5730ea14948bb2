"""What would make training faster and was not tried, the largest gain first.

The factors were measured on machines that have the knob, with their sources in
``cputune.plans.knobs`` and ``docs/measuring.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cputune.text.documents import Amount

if TYPE_CHECKING:
    from cputune.inside.messages import Framework
    from cputune.plans.knobs.record import LeftOut
    from cputune.plans.workload import Padding

# How many times as fast training became after a finding was fixed, by its code: least and most
# of what was measured (docs/knobs.md).
GAINS = {
    "bf16-native": (1.72, 2.22),
    "allocator-missing": (1.12, 1.30),
    "allocator-default": (1.12, 1.30),
}

# The machine on which the factors were measured.
READ_ON = ", 2 x86 cores"

# Warnings with which training is correct but slower.
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

Takes = Literal["one command", "your decision"]


def gain_text(low: float, high: float, takes: Takes) -> str:
    """``×1.12–1.30, 2 x86 cores; one command``."""
    return f"{times(low, high)}; {takes}"


def times(low: float, high: float) -> str:
    """``×1.12–1.30, 2 x86 cores``; a single factor was calculated from the batches."""
    if high > low:
        return f"×{low:.2f}–{high:.2f}{READ_ON}"
    return f"×{low:.2f} at most, calculated"


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
        """``tcmalloc is not installed: ×1.12–1.30, 2 x86 cores``."""
        return f"{self.what}: {times(self.low, self.high)}"

    @property
    def text(self) -> str:
        """What it brings, and ``; one command: apt-get install …``."""
        return f"{self.what}: {gain_text(self.low, self.high, self.takes)}: {self.do}"


# What is not tried of a knob, and the measured factors.
_KNOB_GAINS = {
    "precision": ("bf16, which this CPU multiplies in hardware", *GAINS["bf16-native"]),
    "allocator": ("tcmalloc", *GAINS["allocator-default"]),
    "dropout": ("dropout masks of bytes", 1.10, 1.30),
    "optimizer": ("a fused AdamW, because the script's is a loop", 1.10, 1.28),
}

# The share of padding among tokens: a smaller one is not worth a decision.
LEAST_SHARE = 0.1

# The least gain that is reported if it is only calculated: a smaller one may be none.
LEAST_FACTOR = 1.05


def untried(
    left_out: Iterable[LeftOut],
    padding: Padding | None,
    install: str | None = None,
    framework: Framework | None = "trainer",
) -> tuple[UntriedGain, ...]:
    """What was left out although it is known to help; the largest gain first.

    ``install`` is the command that installs tcmalloc, if it is missing; ``framework``: what the
    script trains with.
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
        of_padding = {out.what: out.option for out in left_out if out.what in _OF_PADDING}
        gains.extend(_of_padding(padding, of_padding, framework))
    return tuple(sorted(gains, key=lambda gain: (-gain.high, -gain.low)))


# Knobs of which padding is the cost.
_OF_PADDING = ("padding", "order", "order=length")


def _of_padding(
    padding: Padding, options: Mapping[str, str | None], framework: Framework | None
) -> Iterator[UntriedGain]:
    """The gain of shorter batches, calculated: the columns now over those that would be left.

    ``options``: of each knob that was left out the option that tries it. If columns may be cut
    without one, cutting was tried: only what samples of like length bring beyond it is a gain.
    """
    share = f"{padding.share:.0%} of the tokens that you compute are padding"
    of_like_length = 1 - padding.share
    ways = [option for option in options.values() if option]
    if ways:
        before, after = padding.left, of_like_length
        if options.get("padding"):
            before = 1.0
            if len(ways) == 1:
                after = padding.left
        do = f"tune {ways[0]}"
    elif padding.kept is None or (padding.left == 1 and not options):  # it was tried
        return
    else:
        before, after = 1.0, padding.left if padding.left < 1 else of_like_length
        share = f"{share}, and {padding.kept}"
        do = _of_the_script(padding, framework)
    factor = round(before / max(after, 0.01), 2)
    if factor >= LEAST_FACTOR:
        yield UntriedGain(what=share, low=factor, high=factor, takes="your decision", do=do)


def _of_the_script(padding: Padding, framework: Framework | None) -> str:
    """What its author does for shorter batches."""
    if padding.mend is not None:
        return f"start the script {padding.mend}"
    if padding.left < 1:
        return "pad each batch to its own longest sample (DataCollatorWithPadding)"
    if framework == "trainer":
        return "batches of similar lengths (train_sampling_strategy or group_by_length)"
    return "batches of similar lengths: a batch sampler that sorts samples by their length"
