"""How much faster one plan is than another, from rounds in which both had their turn.

A round gives one difference (log of seconds per sample). Their centre is the
Hodges-Lehmann estimate, the median of the means of all pairs of differences, and its interval
is that of Wilcoxon's signed ranks (Hodges and Lehmann 1963, "Estimates of location based on
rank tests"): a round that was disturbed counts for one rank, however far off it lies, and
nothing has to be dropped by hand. What drifts while the rounds go on is taken out by their
order, which is turned in every second round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from statistics import NormalDist, fmean

from cputune.plan import Plan
from cputune.result import Role, Throughput
from cputune.tuner.race import median

DOUBT = 0.05
"""How often the truth may lie outside an interval."""

RUN_NOISE = 0.02
"""What two runs of one plan, one after the other, differ by beside the noise of steps (log)."""

PROCESS_NOISE = 0.013
"""Standard deviation (log) between processes of one plan that live side by side.

Of 25 that took turns on a virtual machine of two cores, one was 5 % slower than the others, and
stayed so; the rest did not differ by more than their steps scatter.
"""

_PRIOR_WEIGHT = 2.0
_PROCESS_WEIGHT = 4.0
"""How many processes' worth of evidence ``PROCESS_NOISE`` stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """log(speed-up) of one plan over another: centre and 95 % interval, from so many rounds."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def half_width(self) -> float:
        """Of the interval, its longer side."""
        return max(self.high - self.mean, self.mean - self.low)


def gain_side_by_side(
    sittings: Sequence[Sequence[float]], noise: float, *, doubt: float = DOUBT
) -> Gain | None:
    """The gain from differences of rounds, those of each sitting by themselves.

    In a sitting the same processes take all turns; so what one process of a plan differs
    by from the next is in all its rounds, and the interval has to cover it too. None
    before two rounds.
    """
    differences = [value for sitting in sittings for value in sitting]
    if len(differences) < 2:
        return None
    center, low, high = _ranks(differences, doubt) or _student(differences, noise, doubt)
    own = _between_processes(sittings) * _normal(doubt)
    return Gain(
        mean=center,
        low=center - math.hypot(center - low, own),
        high=center + math.hypot(high - center, own),
        pairs=len(differences),
    )


def gain_of_rounds(differences: Sequence[float], noise: float) -> Gain | None:
    """The gain from rounds of fresh processes: few, so it leans on what is usual."""
    if len(differences) < 2:
        return None
    center, low, high = _student(differences, noise, DOUBT)
    return Gain(mean=center, low=low, high=high, pairs=len(differences))


def _ranks(values: Sequence[float], doubt: float) -> tuple[float, float, float] | None:
    """Hodges-Lehmann centre and signed-rank interval; None where there are too few for it."""
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    outside = _ranks_outside(len(values), doubt)
    if outside == 0:
        return None
    return median(means), means[outside - 1], means[-outside]


@cache
def _ranks_outside(count: int, doubt: float) -> int:
    """How many of the sorted means lie below the interval, its lower end included; 0: all.

    From the exact distribution of the signed-rank statistic: each rank counts or does not,
    all ways alike.
    """
    ways = [1]
    for rank in range(1, count + 1):
        padded = ways + [0] * rank
        ways = [n + (padded[i - rank] if i >= rank else 0) for i, n in enumerate(padded)]
    most = doubt / 2 * 2.0**count
    below = 0
    for index, number in enumerate(ways):
        below += number
        if below > most:
            return index
    return 0


def _student(values: Sequence[float], noise: float, doubt: float) -> tuple[float, float, float]:
    """Mean and Student's interval, for few rounds.

    The variance leans on what two runs usually differ by, for three rounds alone would
    now and then agree by chance.
    """
    count = len(values)
    mean = fmean(values)
    usual = 2 * (noise**2 / 3 + RUN_NOISE**2)
    squares = sum((value - mean) ** 2 for value in values)
    freedom = count - 1 + _PRIOR_WEIGHT
    variance = (squares + _PRIOR_WEIGHT * usual) / freedom
    half = _quantile(freedom, doubt) * math.sqrt(variance / count)
    return mean, mean - half, mean + half


def _between_processes(sittings: Sequence[Sequence[float]]) -> float:
    """Standard error of a gain from what processes of one plan differ by.

    What the sittings lie apart by, beyond what their rounds scatter, and what is usual.
    """
    centers = [fmean(sitting) for sitting in sittings if len(sitting) > 1]
    freedom, excess = len(centers) - 1, 0.0
    if freedom > 0:
        within = fmean(_error(sitting) ** 2 for sitting in sittings if len(sitting) > 1)
        middle = fmean(centers)
        apart = sum((center - middle) ** 2 for center in centers) / freedom
        excess = max(0.0, apart - within)
    usual = 2 * PROCESS_NOISE**2
    variance = (_PROCESS_WEIGHT * usual + max(0, freedom) * excess) / (
        _PROCESS_WEIGHT + max(0, freedom)
    )
    return math.sqrt(variance / max(1, len(centers)))


def _error(values: Sequence[float]) -> float:
    mean = fmean(values)
    squares = sum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))


def _quantile(freedom: float, doubt: float) -> float:
    """The two-sided quantile of Student's t, within 1 % from 3 degrees of freedom on.

    Cornish and Fisher's expansion around the normal one (Abramowitz and Stegun, 26.7.5).
    """
    z = _normal(doubt)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _normal(doubt: float) -> float:
    return NormalDist().inv_cdf(1 - doubt / 2)


ROUND_DEVIATION = 0.04
"""Standard deviation (log) of what one run in one round says of a plan."""

SLOWER = "slower than the other"


@dataclass(slots=True, kw_only=True)
class Contender:
    """A plan in the confirmation: its log seconds per sample, one per round or None.

    ``believed`` is what the study thinks of it: mean and standard deviation. ``sittings``
    holds for each round which processes took their turns in it; empty where each round
    had processes of its own.
    """

    role: Role
    plan: Plan
    believed: tuple[float, float]
    logs: list[float | None] = field(default_factory=list)
    sittings: list[int] = field(default_factory=list)
    out: str | None = None

    @property
    def measured(self) -> list[float]:
        """The rounds that gave a number."""
        return [value for value in self.logs if value is not None]

    def merged(self) -> float:
        """The log seconds per sample that the study and these rounds say together."""
        mean, deviation = self.believed
        weight = 1 / deviation**2
        rounds = self.measured
        total = mean * weight + sum(rounds) / ROUND_DEVIATION**2
        return total / (weight + len(rounds) / ROUND_DEVIATION**2)

    @property
    def deviation(self) -> float:
        """Standard deviation of ``merged``."""
        weight = 1 / self.believed[1] ** 2 + len(self.measured) / ROUND_DEVIATION**2
        return math.sqrt(1 / weight)


def gain_of(
    baseline: Contender, other: Contender, noise: float, *, doubt: float = DOUBT
) -> Gain | None:
    """The paired gain of a plan over the baseline; None before two rounds have both."""
    pairs = [
        (sitting, slow - fast)
        for sitting, slow, fast in zip_longest(
            baseline.sittings, baseline.logs, other.logs, fillvalue=None
        )
        if slow is not None and fast is not None
    ]
    if not baseline.sittings:
        return gain_of_rounds([gain for _, gain in pairs], noise)
    sittings = [[g for s, g in pairs if s == number] for number in dict(pairs)]
    return gain_side_by_side(sittings, noise, doubt=doubt)


def doubt_each(rivals: Sequence[Contender]) -> float:
    """The doubt of one rival's interval, where the best of them is named for its gain.

    The best of several that are alike is the luckiest one. A third of the doubt is what keeps
    the gains that are falsely called below 3 % (benchmarks/aa.py, "A/A among 4").
    """
    return DOUBT if len(rivals) < 2 else DOUBT / 3


def throughput_of(logs: Sequence[float], noise: float) -> Throughput:
    """Samples per second with a 95 % interval, from one log time per round."""
    mean = sum(logs) / len(logs)
    half = 2 * math.sqrt(noise**2 / 3 + RUN_NOISE**2)
    gain = gain_of_rounds(logs, noise)
    if gain is not None:
        half = gain.half_width
    return Throughput(
        median=math.exp(-mean), low=math.exp(-mean - half), high=math.exp(-mean + half)
    )
