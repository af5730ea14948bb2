"""How much faster one plan is than another, from rounds in which both had their turn.

A round gives one difference (log of seconds per sample). Rounds of the same processes are a block,
and its centre is the Hodges-Lehmann estimate, the median of the means of all pairs (Hodges and
Lehmann 1963): a round that was disturbed weighs little, however far off it lies. What drifts while
the rounds go on is taken out by their order, which is turned in every second round.

Blocks differ by more than their rounds say, for processes of one plan do. So a block weighs

    1 / (2 * PROCESS**2 + scatter**2 / rounds)

and the gain is the mean of the blocks. Its interval is Student's, with a variance that is moderated
(Smyth 2004): what the blocks scatter by, and ``PROCESS``, as if read ``FREEDOM`` times.

One of the two plans may still get faster or slower (a long warm-up). Then the difference dies away
with the steps that its processes have taken. These are two hypotheses beside the level one, each
weighed by how likely it makes the rounds; the gain is what is left of the difference in the end,
and the interval is wider by as much as the hypotheses disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Literal

from cputune.plan import Plan
from cputune.result import Role, Speedup, Throughput
from cputune.tuner.reading import SizedStep, doubt_of_mean, levelled

PROCESS, FREEDOM = 0.02, 2.0
"""What two processes of a plan differ by (log), and how many readings that is worth. Read by
``benchmarks/aa.py --real``: 1.8 % in seven A/A, up to 8 % between blocks of one comparison."""

DOUBT = 0.05
"""The doubt of an interval: how often the truth may lie outside it (``benchmarks/aa.py``)."""

RUN_NOISE = 0.02
"""What two runs of one plan, one after the other, differ by beyond the noise of steps (log)."""

DELTA = 0.02
"""Plans within this (log) of each other are practically the same."""

SETTLING, DIES, OFTEN = 0.3, 20.0, 0.1
"""How far (log) a difference may be off when processes start, after how many steps a third of that
is left, and how often this is met. An assumption, held by ``benchmarks/aa.py`` ("warm-up")."""

NOISE_WEIGHT = 4.0
"""How many rounds' worth of evidence the noise of steps is: few agree by chance sometimes."""

FAR = 6.0
"""How many scatters a round may lie from the middle of its block: beyond, a step was delayed."""

Ages = tuple[float, float]
"""How many steps the processes of two plans had taken at a round: the other's, the baseline's."""

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
        return abs(self.to_come) > DELTA / 2


def gain_side_by_side(
    blocks: Sequence[Sequence[float]],
    noise: float,
    *,
    ages: Sequence[Sequence[Ages]] | None = None,
    doubt: float = DOUBT,
    shared: float = 0.0,
) -> Gain | None:
    """The gain from the differences of rounds, grouped by block.

    ``noise`` is that of a step. ``shared`` is the variance of an error that all blocks share.
    ``ages`` are those at each round; None: so many steps that nothing changes any more.
    Returns None before there are two rounds.
    """
    every = [value for block in blocks for value in block]
    if len(every) < 2:
        return None
    scatter = _scatter([block for block in blocks if block], noise)
    near = []
    for at, block in enumerate(blocks):
        middle = median(block) if block else 0.0
        for place, value in enumerate(block):
            if abs(value - middle) <= FAR * scatter:
                near.append((at, value, ages[at][place] if ages else (math.inf, math.inf)))
    fits = [_fit(near, scatter, settles) for settles in (None, 0, 1)]
    likely = max(fit.likely for fit in fits)
    usual = (1 - OFTEN, OFTEN / 2, OFTEN / 2)
    shares = [often * math.exp(fit.likely - likely) for often, fit in zip(usual, fits, strict=True)]
    shares = [share / sum(shares) for share in shares]
    told = list(zip(shares, fits, strict=True))
    mean = sum(share * fit.mean for share, fit in told)
    level = fits[0].variance
    more = sum(share * (fit.variance - level + (fit.mean - mean) ** 2) for share, fit in told)
    off = sum(share * fit.off for share, fit in told)
    freedom = FREEDOM + len({at for at, _, _ in near}) - 1
    moderated = level * (FREEDOM + off) / freedom
    half = _students_quantile(1 - doubt / 2, freedom) * math.sqrt(moderated + more + shared)
    return Gain(
        mean=mean,
        low=mean - half,
        high=mean + half,
        pairs=len(every),
        to_come=sum(share * fit.to_come for share, fit in told),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The mean of all blocks under one hypothesis, and how likely that makes the rounds (log).

    ``off`` is the sum of squares by which the blocks lie off the mean, in units of their variance.
    ``to_come`` is how much the gain of the last round is expected to change.
    """

    mean: float
    variance: float
    likely: float
    off: float
    to_come: float


def _fit(rounds: Sequence[tuple[int, float, Ages]], scatter: float, settles: int | None) -> Fit:
    """Fit (block, difference, ages) of rounds: generalized least squares over halves of blocks.

    ``settles`` is which of the two plans still does, by its place in the ages; None: neither.
    """
    import numpy as np  # here: `compare` reads this module, and needs no numpy

    pieces = []
    for at in sorted({block for block, _, _ in rounds}):
        block = [one for one in rounds if one[0] == at]
        cut = len(block) // 2 if len(block) > 3 else 0
        for part in filter(None, (block[:cut], block[cut:])):
            left = 0.0
            if settles is not None:
                left = math.exp(-fmean(ages[settles] for _, _, ages in part) / DIES)
            pieces.append((at, center_of([v for _, v, _ in part]), left, scatter**2 / len(part)))
    of, centres, left, own = np.array(pieces).T
    same = of[:, None] == of
    covariance = np.diag(own) + 2 * PROCESS**2 * same + SETTLING**2 * np.outer(left, left)
    inverse = np.linalg.inv(covariance)
    precision = inverse.sum()
    mean = float((inverse @ centres).sum() / precision)
    rest = inverse @ (centres - mean)
    factor = SETTLING**2 * float(left @ rest)
    likely = -(np.linalg.slogdet(covariance)[1] + np.log(precision) + (centres - mean) @ rest) / 2
    off = 0.0
    for at in np.unique(of):
        here = of == at
        weight = 1 / own[here]
        apart = float(weight @ (centres[here] - mean - factor * left[here]) / weight.sum())
        off += apart**2 / (2 * PROCESS**2 + 1 / float(weight.sum()))
    return Fit(
        mean=mean,
        variance=float(1 / precision),
        likely=float(likely),
        off=off,
        to_come=-factor * float(left.min()),
    )


def center_of(values: Sequence[float]) -> float:
    """The Hodges-Lehmann centre: the median of the means of all pairs."""
    return median([(a + b) / 2 for i, a in enumerate(values) for b in values[i:]])


def _scatter(blocks: Sequence[Sequence[float]], noise: float) -> float:
    """Standard deviation of one round, from how far rounds lie from the middle of their block.

    It is taken from their median, so that a few disturbed rounds do not widen it.
    """
    off = [abs(value - median(block)) for block in blocks for value in block]
    freedom = len(off) - len(blocks)
    if freedom <= 0:
        return math.sqrt(2) * noise
    seen = median(off) / 0.6745 * math.sqrt(len(off) / freedom)
    return math.sqrt((NOISE_WEIGHT * 2 * noise**2 + freedom * seen**2) / (NOISE_WEIGHT + freedom))


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
    ages: list[list[Ages]] = [[] for _ in range(count)]
    for at, block in enumerate(baseline.blocks[: len(other.logs)]):
        slow, fast = baseline.logs[at], other.logs[at]
        if slow is not None and fast is not None:
            blocks[block].append(slow - fast)
            ages[block].append((_age(other, at), _age(baseline, at)))
    other_data = _order(baseline.plan) != _order(other.plan)
    shared = baseline.doubt_of_data + other.doubt_of_data if other_data else 0.0
    return gain_side_by_side(blocks, noise, ages=ages, doubt=doubt, shared=shared)


def blocks_of(contender: Contender) -> set[int]:
    """The blocks in which a contender gave a number."""
    rounds = zip(contender.blocks, contender.logs, strict=True)
    return {block for block, log in rounds if log is not None}


def _age(one: Contender, at: int) -> float:
    return one.ages[at] if at < len(one.ages) else math.inf


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
    return DOUBT if len(rivals) < 2 else DOUBT / 2


def throughput_of(logs: Sequence[float], noise: float) -> Throughput:
    """Samples per second with Student's 95 % interval, from one log time per round.

    The variance includes what two runs usually differ by, since three rounds alone sometimes agree
    by chance.
    """
    count, mean = len(logs), fmean(logs)
    usual = 2 * (noise**2 / 3 + RUN_NOISE**2)
    squares = sum((value - mean) ** 2 for value in logs)
    freedom = count - 1 + FREEDOM
    variance = (squares + FREEDOM * usual) / freedom
    half = 2 * math.sqrt(usual / 2)
    if count > 1:
        half = _students_quantile(0.975, freedom) * math.sqrt(variance / count)
    return Throughput(
        median=math.exp(-mean), low=math.exp(-mean - half), high=math.exp(-mean + half)
    )


def _students_quantile(share: float, freedom: float) -> float:
    """The value below which so much of Student's distribution lies."""
    from scipy.special import stdtrit  # here: `compare` reads this module, and needs no scipy

    return float(stdtrit(freedom, share))
