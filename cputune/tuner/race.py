"""How long a trial is measured: until its centre is certain enough, or it has clearly lost.

``estimate`` finds where the warm-up of a run ends, how long its steps take, and how certain that
is. ``Race`` knows the fastest trial, the noise from step to step, and how much slower first steps
are. After every step it decides whether another one is worth its time.

All times are natural logarithms of seconds per sample, so noise is a share of a step (3 to 5 % in
quiet times) and the ratio of two plans a difference. ``benchmarks/search.py`` measures the numbers
below: how near to the optimum a study comes, in how many seconds of trials.
"""

from __future__ import annotations

import itertools
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, median_low
from typing import Literal

from cputune.records.result import Throughput
from cputune.tuner.gains import PROCESS, throughput

# Standard deviation of the log of a step time while nothing is known.
USUAL_NOISE = 0.05

# How many steps ``USUAL_NOISE`` counts for.
_PRIOR_WEIGHT = 6.0

# Standard errors to either side in an interval of 95 %.
Z95 = 1.96

# The median distance of two normal values of deviation 1 (0.6745: from the mean).
_DIFFERENCE = 0.6745 * math.sqrt(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The centre of the steps that count, its standard error, and what it was computed from.

    ``level`` is False while the steps still get faster (warm-up) or scatter too widely.
    """

    center: float
    error: float
    kept: tuple[float, ...]
    warmup: int
    level: bool


def estimate(logs: Sequence[float], noise: float, *, skip: int = 0) -> Estimate:
    """Find warm-up and outliers in the steps of one run, and the centre of the rest.

    The warm-up is the first steps above the median of the later half. Steps far above the median of
    the rest were delayed, even if the kernel reports no delay, and do not count. The first ``skip``
    steps count as warm-up if enough steps follow. Raises ValueError without steps.
    """
    if not logs:
        raise ValueError("there are no steps to estimate from")
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
    """Standard deviation of one step, from these steps and the usual noise."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    freedom = len(values) - 1
    return math.sqrt((squares + _PRIOR_WEIGHT * noise**2) / (freedom + _PRIOR_WEIGHT))


@dataclass(slots=True)
class Noise:
    """The noise from step to step, pooled over all trials of a study.

    It is the median of the differences between one step and the next, so a delayed step or a missed
    end of warm-up hardly widens it. ``USUAL_NOISE`` counts as some further differences.
    """

    differences: list[float] = field(
        default_factory=lambda: [_DIFFERENCE * USUAL_NOISE] * int(_PRIOR_WEIGHT)
    )

    def learn(self, kept: Sequence[float]) -> None:
        """Add the steps of one trial that count, in order."""
        self.differences += [abs(b - a) for a, b in itertools.pairwise(kept)]

    @property
    def deviation(self) -> float:
        """Standard deviation of the log of a step time, limited to plausible values."""
        return min(max(median(self.differences) / _DIFFERENCE, 0.01), 0.3)


Verdict = Literal["more", "enough", "lost"]

# The fewest steps of a completed trial, without warm-up.
LEAST_KEPT = 3

# Steps that the first trial of a study keeps: the warm-up is learnt from them.
FIRST_KEPT = 4

# If steps take so long, this many suffice: what delays a step for a moment is a small share
# of it, and six minutes hold few of them. The warm-up is not waited for either: what earlier runs
# show of it is subtracted.
LONG_STEP_SECONDS, LONG_KEPT = 1.5, 2

# Standard error of a first step whose excess is subtracted, as a share of that excess.
OF_EXCESS = 0.15

# The most steps of a trial that count, and the most of all.
MOST_KEPT, MOST_STEPS = 8, 24

# Standard deviation (log) of the machine's speed from one trial to another.
WANDER = 0.1

# A plan that is this many standard errors behind the fastest has clearly lost.
SURE = 2.3

# How far above its centre (log) the first, second… step may be while nothing is learnt.
#
# Seen: 1.0, 1.0, 0.66, 0.62, 0.57, then 0.49 s (BERT, torch 2.13, two cores).
USUAL_EXCESS = (1.1, 0.75, 0.45, 0.3, 0.2, 0.1)

# How much (log), and how long, a step may be delayed without the kernel reporting it.
MOST_DELAY, MOST_DELAY_SECONDS = math.log(8), 4.0


@dataclass(slots=True)
class Race:
    """What is known while a study runs, to decide whether a trial needs another step."""

    noise: Noise = field(default_factory=Noise)
    fastest: Estimate | None = None
    # Seconds of the last step.
    step_seconds: float = 0.0
    # How far the first, second … step of each run was above its centre.
    excesses: list[list[float]] = field(default_factory=list)

    def verdict(self, logs: Sequence[float]) -> Verdict:
        """Whether these steps of a run suffice: logs of seconds per sample, in order."""
        if not logs:
            return "more"
        now = self.estimate(logs)
        if self.fastest is not None:
            to_beat = self.fastest.center + SURE * self.fastest.error
            # A single step may have been delayed; a second one tells.
            doubt = 0.0
            if len(logs) == 1:
                doubt = self._most_delay
            if self._floor(logs, now) - doubt > to_beat:
                return "lost"
        if len(logs) >= MOST_STEPS or len(now.kept) >= MOST_KEPT:
            return "enough"
        if not now.level or len(now.kept) < self._least_kept:
            return "more"
        if len(logs) < self.warmup + 2 and not self._subtracts:
            return "more"
        if self.fastest is None:
            return "enough"
        behind = now.center - SURE * now.error > self.fastest.center
        certain = 2 * PROCESS if self._is_long else PROCESS
        if behind or now.error <= certain:
            return "enough"
        return "more"

    @property
    def _is_long(self) -> bool:
        """Whether a step takes so long that few of them have to suffice."""
        return self.step_seconds >= LONG_STEP_SECONDS

    @property
    def _subtracts(self) -> bool:
        """Whether the warm-up of earlier runs is subtracted from the first steps of a run."""
        return self._is_long and bool(self.excesses)

    @property
    def _least_kept(self) -> int:
        if self._is_long:
            return LONG_KEPT
        if self.excesses:
            return LEAST_KEPT
        return FIRST_KEPT

    @property
    def _most_delay(self) -> float:
        """How much (log) the first step of a run may have been delayed."""
        if not self.step_seconds:
            return MOST_DELAY
        return min(MOST_DELAY, math.log1p(MOST_DELAY_SECONDS / self.step_seconds))

    def estimate(self, logs: Sequence[float]) -> Estimate:
        """The centre of a run, without its own warm-up or the one that earlier runs had.

        Of long steps none is left out for the warm-up of earlier runs: it is subtracted.
        """
        noise = self.noise.deviation
        if not self._subtracts:
            return estimate(logs, noise, skip=self.warmup)
        excess = [self._excess(index) for index in range(len(logs))]
        now = estimate([log - off for log, off in zip(logs, excess, strict=True)], noise)
        subtracted = fmean(excess[now.warmup :])
        return replace(now, error=math.hypot(now.error, OF_EXCESS * subtracted))

    def throughput(self, now: Estimate) -> Throughput:
        """Samples per second of a run, from the steps that count."""
        return throughput(now.kept, self.noise.deviation)

    @property
    def warmup(self) -> int:
        """How many first steps of a run are slower than the rest."""
        if not self.excesses:
            return 1
        count = 0
        while self._excess(count) > 1.5 * self.noise.deviation:
            count += 1
        return count

    def slower_first(self, steps: int) -> list[float]:
        """For each of the first steps of a run, how many times as long it takes as later ones."""
        return [math.exp(self._excess(index)) for index in range(steps)]

    def _floor(self, logs: Sequence[float], now: Estimate) -> float:
        """The lowest possible centre of this run if its warm-up is not over."""
        noise = self.noise.deviation
        index = len(logs) - 1
        if now.level and len(now.kept) >= LEAST_KEPT:
            return now.center - SURE * now.error - self._excess(index, sure=True) / 2
        doubt = math.hypot(1.2 * noise, WANDER)
        return min(logs[-2:]) - self._most_excess(logs) - doubt

    def _most_excess(self, logs: Sequence[float]) -> float:
        """How far above its centre the last step of a run is at most.

        That is what earlier runs had. But plans differ in their warm-up: the second step took 2.0
        to 2.9 times as long as the later ones with ``malloc=huge_pages``, which touches fresh
        memory, and 1.0 times with other plans (Zen 4, two cores). So a long second step does not
        show that a plan is slow, nor does a later one while the run still gets faster.
        """
        index = len(logs) - 1
        learnt = self._excess(index, sure=True)
        if index == 0 or index >= len(USUAL_EXCESS):
            return learnt
        usual = USUAL_EXCESS[index]
        if index > 1 or self.step_seconds >= LONG_STEP_SECONDS:
            usual = min(usual, 2.0 * (logs[-2] - logs[-1] - self.noise.deviation))
        return max(learnt, usual)

    def _excess(self, index: int, *, sure: bool = False) -> float:
        """How far above its centre step ``index`` of a run is: typically, or at most.

        A single run may have been delayed here. So half of ``USUAL_EXCESS`` counts as one more run,
        until several agree.
        """
        usual = 0.0
        if index < len(USUAL_EXCESS):
            usual = USUAL_EXCESS[index]
        measured: list[float] = []  # in ascending order
        if index < len(self.excesses):
            measured = self.excesses[index]
        if not sure:
            return max(0.0, median_low([*measured, usual / 2]))
        if not measured:
            return usual
        upper_quartile = measured[(3 * len(measured)) // 4]
        high = max(0.0, upper_quartile) + self.noise.deviation
        if len(measured) > 1:
            return high
        return max(high, usual / 2)

    def lost(self, logs: Sequence[float]) -> Estimate:
        """The best guess of the centre of a run that was cut short, with its error; the rest of its
        warm-up is subtracted.
        """
        noise = self.noise.deviation
        now = self.estimate(logs)
        last = len(logs) - 1
        center = fmean(now.kept[-2:])
        if not self._subtracts:
            center -= self._excess(last)
        return replace(
            now,
            center=center,
            error=math.hypot(now.error, self._most_excess(logs) / 2, noise / 2),
        )

    def learn(self, logs: Sequence[float], result: Estimate, *, completed: bool) -> None:
        """Learn from a finished run: whether it is the fastest, its noise and its warm-up.

        A run with few steps beyond the known warm-up only counts for the first.
        """
        if not completed:
            return
        if self.fastest is None or result.center < self.fastest.center:
            self.fastest = result
        if self._subtracts or (self.excesses and len(logs) < self.warmup + LEAST_KEPT):
            return
        self.noise.learn(result.kept)
        for index, value in enumerate(logs):
            if index == len(self.excesses):
                self.excesses.append([])
            insort(self.excesses[index], value - result.center)
