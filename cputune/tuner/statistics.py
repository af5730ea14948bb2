"""Numbers from step times: where warm-up ends, what a step takes, how sure that is.

All times are natural logarithms of seconds per sample: noise of a step is a share of
it (3 to 5 % in quiet times), and ratios of plans become differences.
"""

from __future__ import annotations

import itertools
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

USUAL_NOISE = 0.05
"""Standard deviation of the log of a step time where nothing is known yet."""

_PRIOR_WEIGHT = 6.0
"""How many steps' worth of evidence ``USUAL_NOISE`` stands for."""

Z95 = 1.96

_DIFFERENCE = 0.6745 * math.sqrt(2)
"""The median of how far two normal values of deviation 1 lie apart (0.6745: from the mean)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The centre of the steps that count, its standard error, and how it was come by.

    ``level`` is false while the steps still get faster (warm-up) or scatter too widely
    for the centre to mean anything.
    """

    center: float
    error: float
    kept: tuple[float, ...]
    warmup: int
    level: bool

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.center - Z95 * self.error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.center + Z95 * self.error


def estimate(logs: Sequence[float], noise: float, *, skip: int = 0) -> Estimate:
    """Find warm-up and outliers in the steps of one run, and the centre of the rest.

    Warm-up are the first steps that lie above the median of the later half. Of the rest,
    those that lie far above their median were delayed, whatever the kernel said, and do
    not count either. The mean of what remains is then as good as a median is robust.
    The first ``skip`` steps count as warm-up where enough follow. Raises ValueError
    without steps.
    """
    if not logs:
        raise ValueError("no steps to estimate from")
    reach = max(2.5 * noise, 0.08)
    tail = logs[-max(3, len(logs) // 2) :]
    settled = median(tail)
    warmup = next(i for i, value in enumerate(logs) if value <= settled + reach)
    if skip + 2 <= len(logs):
        warmup = max(warmup, skip)
    rest = logs[warmup:]
    center = median(rest)
    far = max(4.0 * noise, 0.12)
    kept = tuple(value for value in rest if value - center <= far)
    recent = kept[-3:]
    falling = len(recent) == 3 and recent[0] > recent[1] > recent[2]
    drop = max(recent) - min(recent)
    level = (
        len(kept) >= 2
        and 2 * len(kept) > len(rest)
        and drop <= max(3.5 * noise, 0.1)
        and not (falling and drop > 2 * noise)
    )
    mean = sum(kept) / len(kept)
    return Estimate(
        center=mean,
        error=spread(kept, noise) / math.sqrt(len(kept)),
        kept=kept,
        warmup=warmup,
        level=level,
    )


def spread(values: Sequence[float], noise: float) -> float:
    """Standard deviation of one step, from these steps and what is known beforehand."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    freedom = len(values) - 1
    return math.sqrt((squares + _PRIOR_WEIGHT * noise**2) / (freedom + _PRIOR_WEIGHT))


@dataclass(slots=True)
class Noise:
    """What a study has learnt of step-to-step noise, pooled over all its trials.

    From the median of the differences between one step and the next: neither a delayed
    step nor the end of a warm-up that was taken for level ground widens it much. They are
    kept in order, those of ``USUAL_NOISE`` among them: it is asked for at every step.
    """

    differences: list[float] = field(
        default_factory=lambda: [_DIFFERENCE * USUAL_NOISE] * int(_PRIOR_WEIGHT)
    )

    def learn(self, kept: Sequence[float]) -> None:
        """Add the steps of one trial that count, in order."""
        for a, b in itertools.pairwise(kept):
            insort(self.differences, abs(b - a))

    @property
    def deviation(self) -> float:
        """Standard deviation of the log of a step time, kept within what is plausible."""
        return min(max(_middle(self.differences) / _DIFFERENCE, 0.01), 0.3)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    return _middle(sorted(values))


def _middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2
