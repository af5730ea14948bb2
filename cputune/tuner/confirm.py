"""The last word where plans cannot live side by side: rounds of fresh processes.

Their memory does not suffice for two, or the runner runs one plan at a time. Rounds are
interleaved, so that whatever changes on the machine in the meantime hits all of them alike;
the speed-up is a mean of differences within rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from cputune.plan import Plan
from cputune.result import Role, Throughput
from cputune.tuner.paired import DOUBT, RUN_NOISE, Gain, gain_of_rounds, gain_side_by_side
from cputune.tuner.race import Race, Verdict
from cputune.tuner.reading import Run

MOST_ROUNDS = 5
ROUND_DEVIATION = 0.04
"""Standard deviation (log) of what one run in one round says of a plan."""

SLOWER = "slower than the other"

NARROW = 0.08
"""Half-width of the speed-up's interval (log) at which it is narrow enough; 0.4 of the
gain will do too."""

NO_GAIN = 0.02
"""A gain (log) that is not worth another round to tell it from none."""


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


def settled(gain: Gain) -> bool:
    """Whether more rounds of fresh processes would not change what is said."""
    if gain.high < NO_GAIN:
        return True
    return gain.low > 0 and gain.high - gain.mean <= max(NARROW, 0.4 * gain.mean)


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


def confirm(
    baseline: Contender,
    rivals: Sequence[Contender],
    race: Race,
    run: Callable[[int, Contender, Callable[[Sequence[float]], Verdict]], Run],
    *,
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Fill the contenders' rounds, the order turned in every round.

    Ends when the gain of the leader is settled. A rival that fails, or that has clearly
    lost against the other, sits out the remaining rounds.
    """
    for number in range(MOST_ROUNDS):
        racing = [one for one in (baseline, *rivals) if one.out is None]
        if len(racing) < 2 or baseline.out is not None:
            return
        turn = number % len(racing)
        wanted = 2 if _clear(baseline, racing) else 3 + number
        for contender in racing[turn:] + racing[:turn]:
            if out_of_time():
                return
            _one_run(number, contender, race, run, wanted)
        _drop_the_slower(rivals)
        leader = min((r for r in rivals if r.out is None), key=Contender.merged, default=None)
        gain = None if leader is None else gain_of(baseline, leader, race.noise.deviation)
        if (gain is not None and settled(gain)) or out_of_time():
            return


def _clear(baseline: Contender, racing: Sequence[Contender]) -> bool:
    """Whether the gain is so large that two steps a run tell it well enough.

    Where it is small, later rounds take more steps: a run costs seconds to start.
    """
    return baseline.merged() - min(one.merged() for one in racing) > 0.4


def _one_run(
    number: int,
    contender: Contender,
    race: Race,
    run: Callable[[int, Contender, Callable[[Sequence[float]], Verdict]], Run],
    wanted: int,
) -> None:
    def verdict(logs: Sequence[float]) -> Verdict:
        now = race.estimate(logs)
        done = now.level and len(now.kept) >= wanted and len(logs) >= race.warmup + wanted
        return "enough" if done or len(logs) >= 12 else "more"

    finished = run(number, contender, verdict)
    if finished.failure is not None or not finished.logs:
        contender.logs.append(None)
        if finished.failure is None:
            contender.out = "no measurement"
        elif finished.failure.kind != "contended":
            contender.out = f"{finished.failure.kind}: {finished.failure}"
        return
    contender.logs.append(race.estimate(finished.logs).center)


def _drop_the_slower(rivals: Sequence[Contender]) -> None:
    """Of two rivals, let the one sit out that is more than two deviations behind."""
    racing = [rival for rival in rivals if rival.out is None and rival.measured]
    if len(racing) != 2:
        return
    fast, slow = sorted(racing, key=Contender.merged)
    if slow.merged() - fast.merged() > 2 * math.hypot(fast.deviation, slow.deviation):
        slow.out = SLOWER
