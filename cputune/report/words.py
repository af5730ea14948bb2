"""Words that recur, each said in one place: ratios, and the terms that people meet first."""

from __future__ import annotations

import re
from typing import Protocol

from cputune.errors import UsageError

TERMS = {
    "plan": "One way to run the same training: how many ranks, how many threads each, on which "
    "CPUs, in which precision, with which allocator.",
    "rank": "One training process. Several ranks share a step; `2 × 14 threads` are two ranks "
    "with 14 threads each.",
    "today's launch": "The training as it runs without cputune: one process, nothing bound, no "
    "variable set. Every ratio is over it.",
    "best plan": "The plan that is recommended: the fastest that was surely faster than today's "
    "launch, or today's launch itself.",
    "samples/s": "Training samples that all ranks together take through one optimizer step, per "
    "second.",
    "trial": "One plan, started once and measured for some steps.",
    "side by side": "The fastest plans and today's launch once more, in turns on the same machine, "
    "so that what the machine does meets all of them.",
    "95 % interval": "Where the true value lies in 95 of 100 such measurements. Where a ratio's "
    "interval holds 1, no difference can be told.",
    "worth": "How many times as fast a single change makes the plan before it.",
    "finding": "What the doctor found: an error fails or is wrong, a warning costs much speed, "
    "advice is worth doing.",
}
"""What people ask about first, and the answer."""


def glossary() -> str:
    """``cputune --help terms``."""
    lines = ["The words of cputune:", ""]
    for term, meaning in TERMS.items():
        lines += [term, *_wrapped(meaning), ""]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 76, initial_indent="    ", subsequent_indent="    ")


class Interval(Protocol):
    """A ratio with its interval, whoever measured it."""

    @property
    def ratio(self) -> float:
        """How many times as fast."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""

    @property
    def high(self) -> float:
        """Upper end of the interval."""


def times_as_fast(ratio: Interval) -> str:
    """``1.25 times as fast``: 1.25 is never an addition to what there was."""
    return f"{ratio.ratio:.2f} times as fast"


def between(ratio: Interval) -> str:
    """``95 % interval 1.20–1.31``."""
    return f"95 % interval {ratio.low:.2f}–{ratio.high:.2f}"


def slower_by(text: str) -> float:
    """A share that is allowed to be lost, of ``5%`` or ``0.05``. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share < 1:
        raise UsageError(f"not a share: {text!r}", hint="--fail-if-slower 5%")
    return share


def surely_slower(ratio: Interval | None, share: float) -> bool:
    """Whether more than this share is lost beyond doubt: the whole interval lies below.

    So a machine that wanders does not fail a build, and a real loss does as soon as it is told.
    """
    return ratio is not None and ratio.high < 1 - share


TUNE_AGAIN = "tune again: what is fastest there may be another plan by now"


def factor(ratio: Interval) -> str:
    """``×1.25 (1.20–1.31)``: for a table."""
    return f"×{ratio.ratio:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
