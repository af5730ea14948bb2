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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import NormalDist, fmean
from typing import Literal

from cputune.plan import Plan
from cputune.result import Role, Throughput
from cputune.tuner.lengths import SizedStep, doubt_of_mean, levelled
from cputune.tuner.race import median

DOUBT = 0.05
"""How often the truth may lie outside an interval."""

LOOK_DOUBT = 0.02
"""The same of one that is looked at after each round: so it holds the truth as often."""

RUN_NOISE = 0.02
"""What two runs of one plan, one after the other, differ by beside the noise of steps (log)."""

DELTA = 0.02
"""Plans within this (log) of each other are practically the same."""

BLOCK_SECONDS, WANDER_SECONDS = 20.0, 60.0
"""From one block to the next, about; and after so long a ratio has forgotten where it was."""

PROCESSES = ((0.0, 0.05), (0.008, 0.13), (0.016, 0.2), (0.03, 0.22), (0.05, 0.2), (0.08, 0.2))
"""By what two plans may differ from process to process (log), and how often that is met.

Read: 1.8 % between two processes of a plan each that took turns (25 of them, one 5 % off), and 8 %
between blocks of one confirmation."""

WANDERS = ((0.0, 0.3), (0.015, 0.2), (0.03, 0.36), (0.06, 0.14))
"""The same of what a ratio wanders by."""

TREND = 2.2
"""Deviations of the pairs that rise beside those that fall, above which they are no chance."""

FAR = 0.3
"""So far from the middle of all rounds (log) no difference of processes is."""

_PRIOR_WEIGHT = 2.0
_NOISE_WEIGHT = 4.0
"""How many rounds' worth of evidence the noise of steps stands for."""

Answer = Literal["faster", "same", "undecided"]


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

    @property
    def answer(self) -> Answer:
        """Whether it is faster by more than ``DELTA``, or practically not, or neither is known."""
        if self.low > DELTA:
            return "faster"
        return "same" if self.high < DELTA else "undecided"


def gain_side_by_side(
    blocks: Sequence[Sequence[float]],
    noise: float,
    *,
    doubt: float = DOUBT,
    shared: float = 0.0,
) -> Gain | None:
    """The gain from differences of rounds, those of each block by themselves.

    In a block the same processes take all turns; so what one process of a plan differs by from
    the next is in all its rounds, and the interval has to cover it too. ``noise`` is that of a
    step, ``shared`` the variance of what all blocks are off by. None before two rounds.
    """
    import numpy as np  # here: `compare` reads this module, and needs no numpy

    filled = [(at, block) for at, block in enumerate(blocks) if block]
    count = sum(len(block) for _, block in filled)
    if count < 2:
        return None
    scatter = _scatter([block for _, block in filled], noise)
    filled = [(at, _near(block, blocks, scatter)) for at, block in filled]
    centers = np.array([center_of(block) for _, block in filled])
    own = np.array([scatter**2 / len(block) for _, block in filled])
    when = BLOCK_SECONDS * np.array([at for at, _ in filled], dtype=np.float64)
    alike = np.exp(-np.abs(when[:, None] - when[None, :]) / WANDER_SECONDS)
    likely, means, deviations = [], [], []
    for (process, usual), (wander, usually) in product(PROCESSES, WANDERS):
        factor = np.linalg.cholesky(np.diag(own + process**2) + wander**2 * alike + shared)
        ones, values = np.linalg.solve(factor, np.stack([np.ones_like(own), centers], axis=1)).T
        weight = float(ones @ ones)
        mean = float(ones @ values) / weight
        rest = values - mean * ones
        determinant = float(np.log(np.diag(factor)).sum())
        likely.append(
            math.log(usual * usually) - determinant - (math.log(weight) + float(rest @ rest)) / 2
        )
        means.append(mean)
        deviations.append(weight**-0.5)
    weights = [math.exp(value - max(likely)) for value in likely]
    mixture = tuple(zip([w / sum(weights) for w in weights], means, deviations, strict=True))
    return Gain(
        mean=sum(weight * mean for weight, mean, _ in mixture),
        low=_below(mixture, doubt / 2),
        high=_below(mixture, 1 - doubt / 2),
        pairs=count,
    )


def has_trend(values: Sequence[float]) -> bool:
    """Whether values rise or fall from the first to the last, by more than chance and 2 %.

    By the ranks of all pairs (Mann 1945, Kendall 1975), so that one value far off says little.
    """
    count, half = len(values), len(values) // 2
    if count < 6:
        return False
    rises = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    apart = abs(median(values[:half]) - median(values[-half:]))
    return abs(rises) - 1 > TREND * deviation and apart > DELTA


def center_of(values: Sequence[float]) -> float:
    """The Hodges-Lehmann centre: the median of the means of all pairs."""
    return median([(a + b) / 2 for i, a in enumerate(values) for b in values[i:]])


def _near(
    block: Sequence[float], blocks: Sequence[Sequence[float]], scatter: float
) -> Sequence[float]:
    """The rounds of a block without those so far off that a step of theirs was delayed.

    Of three rounds one would else move the centre, whatever is asked of it.
    """
    middle = median([value for one in blocks for value in one])
    far = max(6 * scatter, FAR)
    return [value for value in block if abs(value - middle) <= far] or block


def _scatter(blocks: Sequence[Sequence[float]], noise: float) -> float:
    """Standard deviation of one round, from how far rounds lie from the middle of their block.

    By their median, so that some that were disturbed do not widen it, and with what steps
    scatter, for few rounds now and then agree by chance.
    """
    off = [abs(value - median(block)) for block in blocks for value in block]
    freedom = len(off) - len(blocks)
    if freedom <= 0:
        return math.sqrt(2) * noise
    seen = median(off) / 0.6745 * math.sqrt(len(off) / freedom)
    return math.sqrt((_NOISE_WEIGHT * 2 * noise**2 + freedom * seen**2) / (_NOISE_WEIGHT + freedom))


def _below(mixture: Sequence[tuple[float, float, float]], share: float) -> float:
    """Below which value so much of a mixture of normal distributions lies, by bisection."""
    low = min(mean - 9 * deviation for _, mean, deviation in mixture)
    high = max(mean + 9 * deviation for _, mean, deviation in mixture)
    for _ in range(50):
        middle = (low + high) / 2
        under = sum(w * (1 + math.erf((middle - m) / (d * math.sqrt(2)))) for w, m, d in mixture)
        low, high = (middle, high) if under < 2 * share else (low, middle)
    return (low + high) / 2


SLOWER = "slower than the other"


@dataclass(slots=True, kw_only=True)
class Contender:
    """A plan in the confirmation: its log seconds per sample, one per round or None.

    ``blocks`` holds for each round the number of its block, whose rounds share their processes;
    ``steps`` those of each round that counts, and ``sizes`` what the first steps of a process had
    to do: where batches are of unlike length, ``logs`` are those of their mean (``level_rounds``),
    which is known to ``doubt_of_data`` (variance) where another plan takes other samples.
    ``warmup_steps`` of a process were seen to get faster. ``out``: why it is measured no more.
    """

    role: Role
    plan: Plan
    logs: list[float | None] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    steps: dict[int, list[SizedStep]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    doubt_of_data: float = 0.0
    out: str | None = None
    warmup_steps: int = 0

    @property
    def measured(self) -> list[float]:
        """The rounds that gave a number."""
        return [value for value in self.logs if value is not None]


def level_rounds(contenders: Sequence[Contender]) -> None:
    """Tell each round as of the mean batch: the same batches for all that take the same samples."""
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
    blocks: dict[int, list[float]] = {}
    for block, slow, fast in zip(baseline.blocks, baseline.logs, other.logs, strict=False):
        if slow is not None and fast is not None:
            blocks.setdefault(block, []).append(slow - fast)
    every = [blocks.get(block, []) for block in range(max(blocks, default=-1) + 1)]
    other_data = _order(baseline.plan) != _order(other.plan)
    shared = baseline.doubt_of_data + other.doubt_of_data if other_data else 0.0
    return gain_side_by_side(every, noise, doubt=doubt, shared=shared)


def doubt_each(rivals: Sequence[Contender]) -> float:
    """The doubt of one rival's interval, where the best of them is named for its gain.

    The best of several that are alike is the luckiest one, in the first block: the others are
    rounds of its own. Half of the doubt keeps the gains that are falsely called below 3 %
    (benchmarks/aa.py, "A/A among 4").
    """
    return LOOK_DOUBT if len(rivals) < 2 else LOOK_DOUBT / 2


def throughput_of(logs: Sequence[float], noise: float) -> Throughput:
    """Samples per second with Student's 95 % interval, from one log time per round.

    The variance leans on what two runs usually differ by, for three rounds alone would
    now and then agree by chance.
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
