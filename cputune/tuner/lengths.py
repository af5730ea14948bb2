"""Steps of batches of unlike length, each as it would be of the mean one.

Where padding is cut, or a script pads to the longest sample of a batch, one step has several times
the tokens of the next. What a plan takes for them its own steps show: the seconds of a step rise
with its size to some power, the weighted median of the slopes of all pairs (Theil 1950, Sen 1968;
weights of Jaeckel 1972). With it each step is told as of the mean of the same batches for all
contenders: the first ones of the training, which are the same samples in every plan but
``order=length``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, variance

from cputune.inside.carry import AT_ONCE

SizedStep = tuple[float, int]
"""Log seconds per sample of a step, and its size (``Step.size``)."""

_MOST_STEPS = 60
_USUAL, _USUAL_WEIGHT = 1.0, 1.0
"""Seconds rise as tokens do where nothing is known; as much as one pair that is e times apart."""


def levelled(steps: Sequence[SizedStep], sizes: Sequence[int]) -> list[float]:
    """The log seconds per sample of each step, as of the mean of batches of these sizes."""
    if not steps or len(set(sizes)) < 2 or not all(size for _, size in steps):
        return [log for log, _ in steps]
    power = _power(steps)
    mean = math.log(fmean(size**power for size in sizes if size))
    return [log - power * math.log(size) + mean for log, size in steps]


def doubt_of_mean(steps: Sequence[SizedStep], sizes: Sequence[int]) -> float:
    """Variance of the log of a mean step, where batches of other samples have other sizes.

    By the means of ``AT_ONCE`` steps that follow each other, where there are enough.
    """
    if not steps or len(set(sizes)) < 2:
        return 0.0
    power = _power(steps)
    each = [size**power for size in sizes if size]
    at_once = AT_ONCE if len(each) >= 3 * AT_ONCE else 1
    means = [fmean(each[at : at + at_once]) for at in range(0, len(each) - at_once + 1, at_once)]
    return variance(means) / len(means) / fmean(means) ** 2 if len(means) > 1 else 0.0


def _power(steps: Sequence[SizedStep]) -> float:
    recent = [(math.log(size), log) for log, size in steps[-_MOST_STEPS:] if size]
    slopes = [(_USUAL, _USUAL_WEIGHT)]
    for (x, log), (y, other) in combinations(recent, 2):
        if x != y:
            slopes.append(((other - log) / (y - x), abs(y - x)))
    half = sum(weight for _, weight in slopes) / 2
    for slope, weight in sorted(slopes):
        half -= weight
        if half <= 0:
            return slope
    return _USUAL
