"""How long a trial is read: until its centre is sure enough, or it has clearly lost.

``Race`` holds what the trials so far have shown: the fastest of them, the noise from
step to step, and how much slower the first steps are. From it follows, after every
step, whether another one is worth its time.
"""

from __future__ import annotations

import math
from bisect import bisect, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cputune.tuner.statistics import Estimate, Noise, estimate

Verdict = Literal["more", "enough", "lost"]

LEAST_KEPT = 3
"""Steps that a completed trial has at least, warm-up not counted."""

FIRST_KEPT = 4
"""The same for the first trial of a study, from which warm-up is learnt."""

TARGET_ERROR = 0.03
"""Standard error of a contender's centre (log, so about 3 %) at which it is sure enough."""

MOST_KEPT = 8
MOST_STEPS = 24

WANDER = 0.1
"""Standard deviation (log) of what a machine wanders by, from one trial to another."""

SURE = 2.3
"""Standard errors between a plan and the fastest so far at which it has clearly lost."""

USUAL_EXCESS = (1.1, 0.75, 0.45, 0.3, 0.2, 0.1)
"""How far above its centre (log) the first, second… step may lie where nothing is learnt yet.

Seen: 1.0, 1.0, 0.66, 0.62, 0.57, then 0.49 s (BERT, torch 2.13, two cores).
"""

DELAYS = (math.log(3), math.log(5), math.log(8))
"""How much (log) a step may be delayed without the kernel saying so, and how often it is."""

DELAY_CHANCE = 0.03

DOUBT = 0.01
"""Chance of a delay above which one slow step does not decide."""


@dataclass(slots=True)
class Race:
    """What is known while a study runs."""

    noise: Noise = field(default_factory=Noise)
    fastest: Estimate | None = None
    excesses: list[list[float]] = field(default_factory=list)
    """How far above the centre of its run the first, second… step lay, each list in order."""
    expected: tuple[float, float] | None = None
    """What the model expects of the plan that runs: mean and deviation of its centre."""

    def verdict(self, logs: Sequence[float]) -> Verdict:
        """Whether these steps of a run suffice: logs of seconds per sample, in order."""
        if not logs:
            return "more"
        now = self.estimate(logs)
        if self.fastest is not None:
            to_beat = self.fastest.center + SURE * self.fastest.error
            if self._floor(logs, now) > to_beat and not (
                len(logs) == 1 and self._may_be_delayed(logs[0], to_beat)
            ):
                return "lost"
        if len(logs) >= MOST_STEPS or len(now.kept) >= MOST_KEPT:
            return "enough"
        least = LEAST_KEPT if self.excesses else FIRST_KEPT
        if not now.level or len(now.kept) < least or len(logs) < self.warmup + 2:
            return "more"
        if self.fastest is None:
            return "enough"
        behind = now.center - SURE * now.error > self.fastest.center
        return "enough" if behind or now.error <= TARGET_ERROR else "more"

    def estimate(self, logs: Sequence[float]) -> Estimate:
        """The centre of a run, without the warm-up that earlier runs had, or its own."""
        return estimate(logs, self.noise.deviation, skip=self.warmup)

    @property
    def warmup(self) -> int:
        """How many first steps of a run are slower than the rest, as far as was seen."""
        if not self.excesses:
            return 1
        count = 0
        while self._excess(count) > 1.5 * self.noise.deviation:
            count += 1
        return count

    def _floor(self, logs: Sequence[float], now: Estimate) -> float:
        """Where the centre of this run lies at least, were the rest of warm-up still to come."""
        noise = self.noise.deviation
        index = len(logs) - 1
        if now.level and len(now.kept) >= LEAST_KEPT:
            return now.center - SURE * now.error - self._excess(index, sure=True) / 2
        doubt = math.hypot(1.2 * noise, WANDER)
        return min(logs[-2:]) - self._excess(index, sure=True) - doubt

    def _may_be_delayed(self, first: float, to_beat: float) -> bool:
        """Whether a first step that looks lost may only have been delayed (Bayes).

        The model's expectation is the prior: a plan that was expected to be slow, and is,
        needs no second step; one that was expected to be fast does.
        """
        if self.expected is None:
            return True
        mean, deviation = self.expected
        width = math.hypot(deviation, self.noise.deviation)
        center = first - self._excess(0)

        def likely(value: float) -> float:
            return math.exp(-0.5 * ((value - mean) / width) ** 2)

        delayed = sum(likely(center - d) for d in DELAYS if center - d < to_beat) / len(DELAYS)
        odds = DELAY_CHANCE * delayed
        return odds > DOUBT * (odds + (1 - DELAY_CHANCE) * likely(center))

    def _excess(self, index: int, *, sure: bool = False) -> float:
        """How far above its centre step ``index`` of a run lies: typically, or at most.

        A single run may have been delayed at this step. So half of ``USUAL_EXCESS`` counts
        as one more run, until several runs agree.
        """
        usual = USUAL_EXCESS[index] if index < len(USUAL_EXCESS) else 0.0
        seen = self.excesses[index] if index < len(self.excesses) else []
        if not sure:
            return max(0.0, _lower_median(seen, usual / 2))
        if not seen:
            return usual
        high = max(0.0, seen[(3 * len(seen)) // 4]) + self.noise.deviation
        return high if len(seen) > 1 else max(high, usual / 2)

    def lost(self, logs: Sequence[float]) -> Estimate:
        """The best guess for a run that was cut short, with an error to match.

        What is left of the warm-up at its last step is taken off.
        """
        noise = self.noise.deviation
        now = self.estimate(logs)
        last = len(logs) - 1
        recent = now.kept[-2:]
        return replace(
            now,
            center=sum(recent) / len(recent) - self._excess(last),
            error=math.hypot(now.error, self._excess(last, sure=True) / 2, noise / 2),
        )

    def learn(self, logs: Sequence[float], result: Estimate, *, completed: bool) -> None:
        """Take in a finished run: whether it is the fastest, its noise and its warm-up.

        A run that was short for the warm-up that is known teaches neither of the last
        two: its centre may still lie in it.
        """
        if not completed:
            return
        if self.fastest is None or result.center < self.fastest.center:
            self.fastest = result
        if self.excesses and len(logs) < self.warmup + LEAST_KEPT:
            return
        self.noise.learn(result.kept)
        for index, value in enumerate(logs):
            if index == len(self.excesses):
                self.excesses.append([])
            insort(self.excesses[index], value - result.center)


def _lower_median(ordered: Sequence[float], another: float) -> float:
    """The lower of the two in the middle, of these in their order and another."""
    half, at = len(ordered) // 2, bisect(ordered, another)
    if half == at:
        return another
    return ordered[half] if half < at else ordered[half - 1]
