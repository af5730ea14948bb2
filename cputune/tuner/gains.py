"""How much faster one plan is than another, from rounds in which both had their turn.

A round gives one difference (log of seconds per sample). Rounds of the same processes are a
block, and its centre is the Hodges-Lehmann estimate, the median of the means of all pairs (Hodges
and Lehmann 1963): a round that was disturbed weighs little, however far off it lies. What drifts
while the rounds go on is taken out by their order, which is turned in every second round.

Blocks differ by more than their rounds say: processes of one plan do, and what the machine does
to two plans wanders over a minute. Neither is known beforehand. So the gain is a mean over what
both may be, each weighed by how likely it makes these blocks (the marginal likelihood, Rasmussen
and Williams 2006, 5.8) and by how often it is met: Student's t where all blocks are alike sure,
with what is usual for few blocks. Looks come as often as rounds do; the doubt of an interval is
what ``benchmarks/aa.py`` needs for it to hold however often it is looked at.

A plan that still gets faster or slower beside the other may be told by rounds of one block, and by
blocks whose processes have taken more steps or fewer. So that is among what may be, too: a
difference that dies away with the steps of a process. The gain is what is left of it in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product, repeat
from statistics import NormalDist, fmean, median
from typing import Literal

from cputune.plan import Plan
from cputune.result import Role, Speedup, Throughput
from cputune.tuner.reading import SizedStep, doubt_of_mean, levelled

DOUBT = 0.05
"""The doubt of an interval: how often the truth may lie outside it."""

LOOK_DOUBT = 0.025
"""The doubt of an interval that is looked at after each round. It is smaller, so that the interval
holds the truth as often as one that is looked at once."""

RUN_NOISE = 0.02
"""What two runs of one plan, one after the other, differ by beyond the noise of steps (log)."""

DELTA = 0.02
"""Plans within this (log) of each other are practically the same."""

BLOCK_SECONDS, WANDER_SECONDS = 20.0, 60.0
"""About how long after a block the next one is measured; and the time after which the ratio of two
plans on a machine no longer depends on what it was before."""

PROCESSES = ((0.0, 0.17), (0.008, 0.26), (0.016, 0.2), (0.03, 0.14), (0.05, 0.09), (0.08, 0.14))
"""By what two plans may differ from process to process (log), and how often they do: Cauchy's
distribution with a scale of 1.5 %, as is usual for a deviation of few groups (Gelman 2006).

Measured: 1.8 % between two processes of a plan each that took turns (25 of them, one 5 % off), and
8 % between blocks of one confirmation.
"""

WANDERS = ((0.0, 0.3), (0.015, 0.2), (0.03, 0.36), (0.06, 0.14))
"""By what the ratio of two plans wanders with the machine (log), and how often it does."""

SETTLING = ((0.0, 1.0, 0.9), (0.3, 7.0, 0.04), (0.3, 20.0, 0.06))
"""How far a ratio is off when processes start (log), after how many steps a third of that is left,
and how often this is met."""

_MAY_BE = tuple(
    (process, wander, size, steps, usual * usually * often)
    for (process, usual), (wander, usually), (size, steps, often) in product(
        PROCESSES, WANDERS, SETTLING
    )
)

PIECE_ROUNDS = 4
"""The fewest rounds of a block that are joined into one centre. A block with more is divided, since
its later rounds are of processes that have taken more steps."""

FAR = 0.3
"""How far (log) a round may lie from the middle of all rounds. Processes of one plan never differ
by so much: beyond it, a step was delayed."""

NEGLIGIBLE = 1e-6
"""A combination of ``_MAY_BE`` with a smaller weight than this is left out of the mean."""

_PRIOR_WEIGHT = 2.0
_NOISE_WEIGHT = 4.0
"""How many rounds' worth of evidence the noise of steps counts for."""

Answer = Literal["faster", "same", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """log(speed-up) of one plan over another: centre and 95 % interval, from so many rounds.

    ``to_come`` is how much it is expected to change (log) as the processes take further steps.
    """

    mean: float
    low: float
    high: float
    pairs: int
    to_come: float = 0.0

    @property
    def half_width(self) -> float:
        """The longer of the two distances from the centre to an end of the interval."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def speedup(self) -> Speedup:
        """The gain as factors, as a result has it."""
        return Speedup(
            ratio=math.exp(self.mean),
            low=math.exp(self.low),
            high=math.exp(self.high),
            pairs=self.pairs,
        )

    @property
    def answer(self) -> Answer:
        """Faster by more than ``DELTA``, or practically the same, or undecided."""
        if self.low > DELTA:
            return "faster"
        return "same" if self.high < DELTA else "undecided"

    @property
    def settles(self) -> bool:
        """Whether the plan still gets faster or slower compared with the other."""
        return abs(self.to_come) > DELTA


def gain_side_by_side(
    blocks: Sequence[Sequence[float]],
    noise: float,
    *,
    ages: Sequence[Sequence[float]] | None = None,
    doubt: float = DOUBT,
    shared: float = 0.0,
) -> Gain | None:
    """The gain from the differences of rounds, grouped by block.

    In a block the same processes take all turns. What one process of a plan differs by from the
    next is therefore in all rounds of the block, and the interval has to cover it. ``noise`` is
    that of a step. ``shared`` is the variance of an error that all blocks share. ``ages`` are the
    steps that the processes had taken at each round; None: so many that nothing changes any more.
    Returns None before there are two rounds.
    """
    import numpy as np  # here: `compare` reads this module, and needs no numpy

    every = [value for block in blocks for value in block]
    if len(every) < 2:
        return None
    scatter = _scatter([block for block in blocks if block], noise)
    middle, far = median(every), max(6 * scatter, FAR)
    pieces = []
    for at, block in enumerate(blocks):
        rounds = list(zip(block, ages[at] if ages else repeat(math.inf), strict=False))
        near = [one for one in rounds if abs(one[0] - middle) <= far] or rounds
        count = max(min(1, len(near)), len(near) // PIECE_ROUNDS)
        for first in range(count):
            part = near[first * len(near) // count : (first + 1) * len(near) // count]
            values, steps = zip(*part, strict=True)
            pieces.append((at, center_of(values), fmean(steps), scatter**2 / len(values)))
    block_of, centers, age, own = np.array(pieces).T
    apart = np.abs(block_of[:, None] - block_of)
    alike = np.exp(-BLOCK_SECONDS * apart / WANDER_SECONDS)
    # One covariance for each combination of _MAY_BE: (combinations, pieces, pieces).
    process, wander, size, dies, usual = (column[:, None, None] for column in np.array(_MAY_BE).T)
    left = size * np.exp(-age / dies)
    covariance = process**2 * (apart == 0) + wander**2 * alike + np.diag(own) + shared
    factor = np.linalg.cholesky(covariance + left * np.swapaxes(left, 1, 2))
    known = np.broadcast_to(np.stack([np.ones_like(own), centers]), (len(left), 2, len(own)))
    told = np.linalg.solve(factor, np.concatenate([known, left], axis=1).swapaxes(1, 2))
    ones, values, late = np.moveaxis(told, 2, 0)
    precision = (ones**2).sum(axis=1)
    means = (ones * values).sum(axis=1) / precision
    rest = values - means[:, None] * ones
    to_come = -(late * rest).sum(axis=1) * left[:, 0, age.argmax()]
    determinant = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    likely = np.log(usual[:, 0, 0]) - determinant - (np.log(precision) + (rest**2).sum(axis=1)) / 2
    weights = np.exp(likely - likely.max())
    weights /= weights.sum()
    columns = (weights.tolist(), means.tolist(), (precision**-0.5).tolist())
    mixture = [one for one in zip(*columns, strict=True) if one[0] > NEGLIGIBLE]
    return Gain(
        mean=float(weights @ means),
        low=_below(mixture, doubt / 2),
        high=_below(mixture, 1 - doubt / 2),
        pairs=len(every),
        to_come=float(weights @ to_come),
    )


def center_of(values: Sequence[float]) -> float:
    """The Hodges-Lehmann centre: the median of the means of all pairs."""
    return median([(a + b) / 2 for i, a in enumerate(values) for b in values[i:]])


def _scatter(blocks: Sequence[Sequence[float]], noise: float) -> float:
    """Standard deviation of one round, from how far rounds lie from the middle of their block.

    It is taken from their median, so that a few disturbed rounds do not widen it. The noise of
    steps counts too, because few rounds sometimes agree by chance.
    """
    off = [abs(value - median(block)) for block in blocks for value in block]
    freedom = len(off) - len(blocks)
    if freedom <= 0:
        return math.sqrt(2) * noise
    seen = median(off) / 0.6745 * math.sqrt(len(off) / freedom)
    return math.sqrt((_NOISE_WEIGHT * 2 * noise**2 + freedom * seen**2) / (_NOISE_WEIGHT + freedom))


def _below(mixture: Sequence[tuple[float, float, float]], share: float) -> float:
    """The value below which so much of a mixture of normal distributions lies, by bisection."""
    low = min(mean - 9 * deviation for _, mean, deviation in mixture)
    high = max(mean + 9 * deviation for _, mean, deviation in mixture)
    for _ in range(30):
        middle = (low + high) / 2
        under = sum(w * (1 + math.erf((middle - m) / (d * math.sqrt(2)))) for w, m, d in mixture)
        low, high = (middle, high) if under < 2 * share else (low, middle)
    return (low + high) / 2


SLOWER = "slower than the other"


@dataclass(slots=True, kw_only=True)
class Contender:
    """A plan in the confirmation: its log seconds per sample, one per round or None.

    ``blocks`` holds for each round the number of its block; the rounds of a block share their
    processes. ``ages`` holds how many steps these had taken; infinitely many where each round has
    processes of its own. ``steps`` are those of each round that counts. ``sizes`` is how
    much the first steps of a process had to do. Where batches differ in length, ``logs`` are those
    of the mean batch (``level_rounds``); ``doubt_of_data`` is the variance of that, where another
    plan takes other samples. ``out`` is the reason why it is measured no more.
    """

    role: Role
    plan: Plan
    logs: list[float | None] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    steps: dict[int, list[SizedStep]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    doubt_of_data: float = 0.0
    out: str | None = None

    def add(self, block: int, log: float | None = None, age: float = math.inf) -> None:
        """Write down a round."""
        self.blocks.append(block)
        self.logs.append(log)
        self.ages.append(age)

    @property
    def measured(self) -> list[float]:
        """The rounds that gave a number."""
        return [value for value in self.logs if value is not None]


def level_rounds(contenders: Sequence[Contender]) -> None:
    """Convert each round to the mean batch; the same samples mean the same batches."""
    taking = [one for one in contenders if one.steps]
    alike = len({_order(one.plan) for one in taking}) < 2
    common = min((len(one.sizes) for one in taking), default=0) if alike else None
    for one in taking:
        sizes = one.sizes[:common]
        if len(set(sizes)) < 2:
            continue
        every = [step for steps in one.steps.values() for step in steps]
        logs = iter(levelled(every, sizes))
        for at, steps in one.steps.items():
            value = median([next(logs) for _ in steps])
            if one.logs[at] is not None:
                one.logs[at] = value
        one.doubt_of_data = doubt_of_mean(every, sizes)


def _order(plan: Plan) -> object:
    return plan.settings.get("order")


def gain_of(
    baseline: Contender, other: Contender, noise: float, *, doubt: float = DOUBT
) -> Gain | None:
    """The paired gain of a plan over the baseline; None before two rounds have both."""
    count = max(baseline.blocks, default=-1) + 1
    blocks: list[list[float]] = [[] for _ in range(count)]
    ages: list[list[float]] = [[] for _ in range(count)]
    rounds = (baseline.blocks, baseline.logs, other.logs, other.ages or repeat(math.inf))
    for block, slow, fast, age in zip(*rounds, strict=False):
        if slow is not None and fast is not None:
            blocks[block].append(slow - fast)
            ages[block].append(age)
    other_data = _order(baseline.plan) != _order(other.plan)
    shared = baseline.doubt_of_data + other.doubt_of_data if other_data else 0.0
    return gain_side_by_side(blocks, noise, ages=ages, doubt=doubt, shared=shared)


def fastest_of(
    baseline: Contender, rivals: Sequence[Contender], noise: float
) -> tuple[Contender, Gain] | None:
    """The rival with the largest gain, and its gain; None where none was measured.

    Each interval is widened, because the best of several is chosen (``doubt_each``).
    """
    doubt = doubt_each(rivals)
    gains = [
        (rival, gain)
        for rival in rivals
        if rival.out is None and (gain := gain_of(baseline, rival, noise, doubt=doubt)) is not None
    ]
    return max(gains, key=lambda pair: pair[1].mean, default=None)


def doubt_each(rivals: Sequence[Contender]) -> float:
    """The doubt of each rival's interval, when the one with the largest gain is chosen.

    Of several plans that are equally fast, the luckiest looks best in the first block; later blocks
    are new rounds, without this luck. With half of the doubt, fewer than 3 % of the gains are false
    (benchmarks/aa.py, "A/A among 4").
    """
    return LOOK_DOUBT if len(rivals) < 2 else LOOK_DOUBT / 2


def throughput_of(logs: Sequence[float], noise: float) -> Throughput:
    """Samples per second with Student's 95 % interval, from one log time per round.

    The variance includes what two runs usually differ by, since three rounds alone sometimes agree
    by chance.
    """
    count, mean = len(logs), fmean(logs)
    usual = 2 * (noise**2 / 3 + RUN_NOISE**2)
    squares = sum((value - mean) ** 2 for value in logs)
    freedom = count - 1 + _PRIOR_WEIGHT
    variance = (squares + _PRIOR_WEIGHT * usual) / freedom
    half = 2 * math.sqrt(usual / 2)
    if count > 1:
        half = _students_quantile(freedom) * math.sqrt(variance / count)
    return Throughput(
        median=math.exp(-mean), low=math.exp(-mean - half), high=math.exp(-mean + half)
    )


def _students_quantile(freedom: float) -> float:
    """The two-sided quantile of Student's t, within 1 % from 3 degrees of freedom on.

    Cornish and Fisher's expansion around the normal one (Abramowitz and Stegun, 26.7.5).
    """
    z = NormalDist().inv_cdf(1 - DOUBT / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
