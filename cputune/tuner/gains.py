"""How much faster one plan is than another, from rounds in which both had their turn.

A round gives one difference (log of seconds per sample). Rounds of the same processes are a block;
its centre is the Hodges-Lehmann estimate, the median of the means of all pairs (Hodges and Lehmann
1963), on which a disturbed round has little weight.

Blocks differ by more than their rounds suggest, because processes of one plan differ. So a block
has the weight

1 / (2 * PROCESS**2 + scatter**2 / rounds)

and the gain is the mean of the blocks. Its interval is Student's, with a moderated variance (Smyth
2004): the scatter of the blocks, and ``PROCESS`` as if measured ``FREEDOM`` times.

If the rounds suggest that a plan still gets faster or slower (a long warm-up), a difference that
decays with the steps of the processes is fitted in addition: the gain is what remains in the end,
with a wider interval.

Processes that start later are often faster, if several are alive: by 4 to 8 % from the first of
four to the last, of the same launch on a quiet machine. So the place in the order of starts is a
term, too: a difference in proportion to the distance of the two plans in that order.

``benchmarks/aa.py`` measures the numbers below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from cputune.records.claims import EQUIVALENCE_MARGIN, EQUIVALENT, Speedup
from cputune.records.result import LEAST_BLOCKS, Throughput
from cputune.tuner.student import students_quantile

# How much two processes of a plan differ (log), and how many measurements that counts for.
# Measured by ``benchmarks/aa.py --real``: 1.8 % in seven A/A, up to 8 % between blocks of one
# comparison.
PROCESS, FREEDOM = 0.03, 3.0

# Error rate of an interval: less than 0.05, because it is looked at after every block
# (``benchmarks/aa.py``).
DOUBT = 0.015

# Plans within this (log) of each other are practically the same.
DELTA = 0.02

# How far (log) a difference may be off when processes start, after how many steps a third of that
# is left, and how much likelier (log) the rounds have to be with it. A turn of 0.6 s has several
# short steps, so few rounds are of young processes: with log(2) half of the warm-ups of fifty steps
# were not found, with 0 a sixth (12 comparisons, simulated as in test_tune_sidebyside.py); but with
# 0 what a change is worth in one block was known half as well.
SETTLING, DIES, LIKELIER = 0.3, 20.0, 0.1

# How much (log) the first and the last of the processes started for a block may differ by their
# order: the standard deviation of the term before anything is measured.
ORDER = 0.05

# Rounds that the noise of steps counts for: a few rounds may agree by chance.
NOISE_WEIGHT = 4.0

# How narrow (log) the interval of a gain has to be, or its half as a share of the gain.
NARROW, SHARE_OF_GAIN = 0.1, 0.36

MOST_BLOCKS = 24  # of a comparison

# Factor on the expected time when a longer comparison is proposed.
RESERVE = 1.3

# A round further than this many scatters from the middle of its block was delayed.
FAR = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattered:
    """How blocks scatter: ``squares`` in units of the assumed variance of a block, and their
    degrees of freedom.
    """

    squares: float = 0.0
    freedom: int = 0


NOTHING_SEEN = Scattered()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """log(speed-up) of one plan over another: centre and 95 % interval, from a number of rounds.

    ``to_come`` is how much it may still change (log) in further steps.
    """

    mean: float
    low: float
    high: float
    pairs: int
    to_come: float = 0.0
    scattered: Scattered = NOTHING_SEEN

    @property
    def half_width(self) -> float:
        """The longer distance from the centre to an end of the interval."""
        return max(self.high - self.mean, self.mean - self.low)

    @property
    def speedup(self) -> Speedup:
        """The gain as factors, as in a result."""
        return Speedup(
            ratio=math.exp(self.mean),
            low=math.exp(self.low),
            high=math.exp(self.high),
            pairs=self.pairs,
        )

    @property
    def is_decided(self) -> bool:
        """Whether further rounds would not change the outcome: it is beyond ``DELTA``."""
        return self.speedup.outcome == EQUIVALENT or self.low > DELTA or self.high < -DELTA

    @property
    def is_answer(self) -> bool:
        """Whether it is decided, and known well enough to be stated."""
        narrow = self.half_width <= narrow_enough(self.mean)
        return self.is_decided and narrow and not self.settles

    def half_width_after(self, blocks: int, further: int) -> float:
        """The half width expected after ``further`` blocks.

        It falls with the square root of the blocks, and with Student's quantile.
        """
        before = students_quantile(1 - DOUBT / 2, FREEDOM + blocks - 1)
        after = students_quantile(1 - DOUBT / 2, FREEDOM + blocks + further - 1)
        return self.half_width * math.sqrt(blocks / (blocks + further)) * after / before

    def seconds_to_decide(self, blocks: int, seconds: float) -> float | None:
        """Seconds of a comparison that is likely to decide this one, of which ``blocks`` took
        ``seconds``.

        None if more than ``MOST_BLOCKS`` are needed.
        """
        needed = max(abs(self.mean), math.log1p(EQUIVALENCE_MARGIN) - abs(self.mean))
        for further in range(1, MOST_BLOCKS - blocks + 1):
            if self.half_width_after(blocks, further) < needed:
                return RESERVE * seconds * (blocks + further) / blocks
        return None

    def can_be_decided(self, blocks: int, further: int) -> bool:
        """Whether ``further`` blocks are likely to decide what ``blocks`` blocks have not.

        The centre may move by a standard error, about half of the half width.
        """
        later = self.half_width_after(blocks, further)
        moves = self.half_width / 2
        is_one_sided = abs(self.mean) + moves > later
        nearest = max(0.0, abs(self.mean) - moves)
        return is_one_sided or nearest + later < math.log1p(EQUIVALENCE_MARGIN)

    @property
    def settles(self) -> bool:
        """Whether the plan still gets faster or slower compared with the other."""
        return abs(self.to_come) > DELTA / 2


def narrow_enough(mean: float) -> float:
    """The half width (log) at which a gain is known well enough."""
    return max(NARROW, SHARE_OF_GAIN * mean)


def blocks_to_decide(mean: float, noise: float, rounds: int) -> int:
    """How many blocks of ``rounds`` are likely to decide a gain (log), if all scatters as usual.

    ``noise`` is that of a step.
    """
    variance = 2 * PROCESS**2 + 2 * noise**2 / rounds
    for blocks in range(LEAST_BLOCKS, MOST_BLOCKS):
        freedom = FREEDOM + blocks - 1
        half = students_quantile(1 - DOUBT / 2, freedom) * math.sqrt(variance / blocks)
        if half <= narrow_enough(mean) and mean - half > DELTA:
            return blocks
    return MOST_BLOCKS


def gain_side_by_side(
    blocks: Sequence[Sequence[float]],
    noise: float,
    *,
    ages: Sequence[Sequence[float]] | None = None,
    later: Sequence[float] | None = None,
    doubt: float = DOUBT,
    shared: float = 0.0,
    elsewhere: Scattered = NOTHING_SEEN,
) -> Gain | None:
    """The gain from the differences of rounds, grouped by block; None before there are two rounds.

    ``noise`` is that of a step. ``shared`` is the variance of an error that all blocks share.
    ``elsewhere`` is how blocks of other plans scattered here. ``ages`` are how many steps the
    younger processes of a round had taken; None: enough that nothing changes any more. ``later`` is
    for each block how much later the first plan was started than the other, from -1 (the first of
    all) to 1; None: not known, which is 0.
    """
    count = sum(map(len, blocks))
    if count < 2:
        return None
    scatter = _scatter([block for block in blocks if block], noise)
    pieces: list[Piece] = []
    for number, block in enumerate(blocks):
        if ages:
            ages_here = ages[number]
        else:
            ages_here = [math.inf] * len(block)
        later_here = 0.0
        if later:
            later_here = later[number]
        rounds = list(zip(block, ages_here, strict=True))
        pieces += _pieces_of(number, rounds, scatter, later_here)
    level, settling = _fit(pieces, 0.0), _fit(pieces, SETTLING)
    if settling.likely > level.likely + LIKELIER:
        fit = settling
    else:
        fit = level
    blocks_used = {piece.block for piece in pieces}
    scattered = Scattered(squares=fit.off, freedom=len(blocks_used) - 1)
    freedom = FREEDOM + scattered.freedom + elsewhere.freedom
    squares = FREEDOM + scattered.squares + elsewhere.squares
    variance = fit.variance * squares / freedom + shared
    half = students_quantile(1 - doubt / 2, freedom) * math.sqrt(variance)
    return Gain(
        mean=fit.mean,
        low=fit.mean - half,
        high=fit.mean + half,
        pairs=count,
        to_come=fit.to_come,
        scattered=scattered,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Half of a block: its centre, the variance of that, and which share of settling remains.

    ``later`` is how much later the first plan was started than the other (-1 to 1).
    """

    block: int
    center: float
    variance: float
    unsettled: float
    later: float = 0.0


def _pieces_of(
    number: int, rounds: Sequence[tuple[float, float]], scatter: float, later: float
) -> list[Piece]:
    """The two halves of a block of (difference, age), or one of a short block, without delayed
    rounds.
    """
    middle = 0.0
    if rounds:
        middle = median([value for value, _ in rounds])
    near = [(value, age) for value, age in rounds if abs(value - middle) <= FAR * scatter]
    cut = 0
    # Two halves show a difference that decays; of fewer rounds a half would be a single one.
    if len(near) > 3:
        cut = len(near) // 2
    pieces: list[Piece] = []
    for half in (near[:cut], near[cut:]):
        if half:
            values, ages = zip(*half, strict=True)
            pieces.append(
                Piece(
                    block=number,
                    center=center_of(values),
                    variance=scatter**2 / len(half),
                    unsettled=math.exp(-fmean(ages) / DIES),
                    later=later,
                )
            )
    return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The mean of all blocks, and how likely it makes them.

    ``likely`` is the logarithm of the restricted likelihood, up to a constant (Harville 1974).
    ``off`` is the sum of squared deviations from the mean, in units of their variance.
    """

    mean: float
    variance: float
    likely: float
    off: float
    to_come: float


def _fit(pieces: Sequence[Piece], settling: float) -> Fit:
    """Generalized least squares: processes differ, by their order of starts too, and a difference
    may decay.

    ``settling`` is its deviation (log) at the first step of a process; 0: none.
    """
    import numpy as np  # here: `compare` reads this module, and needs no numpy

    rows = []
    for piece in pieces:
        rows.append((piece.block, piece.center, piece.variance, piece.unsettled, piece.later))
    block, centres, variances, unsettled, later = np.array(rows).T
    covariance = np.diag(variances) + 2 * PROCESS**2 * (block[:, None] == block)
    covariance += settling**2 * np.outer(unsettled, unsettled) + ORDER**2 * np.outer(later, later)
    inverse = np.linalg.inv(covariance)
    precision = float(inverse.sum())
    mean = float((inverse @ centres).sum()) / precision
    rest = inverse @ (centres - mean)
    dying = settling**2 * float(unsettled @ rest)
    order = ORDER**2 * float(later @ rest)
    squares = float((centres - mean) @ rest)
    off = 0.0
    for number in np.unique(block):
        here = block == number
        weight = 1 / variances[here]
        residuals = centres[here] - mean - dying * unsettled[here] - order * later[here]
        apart = float(weight @ residuals / weight.sum())
        off += apart**2 / (2 * PROCESS**2 + 1 / float(weight.sum()))
    return Fit(
        mean=mean,
        variance=1 / precision,
        likely=-(float(np.linalg.slogdet(covariance)[1]) + math.log(precision) + squares) / 2,
        off=off,
        to_come=-dying * float(unsettled.min()),
    )


def throughput(logs: Sequence[float], noise: float, *, processes: int = 1) -> Throughput:
    """Samples per second from log seconds per sample: the geometric mean and a 95 % interval.

    The variance is that of the logs, moderated by the noise of a step, plus the difference of
    processes of one plan (``PROCESS``).
    """
    mean = fmean(logs)
    freedom = len(logs) - 1 + NOISE_WEIGHT
    squares = sum((value - mean) ** 2 for value in logs)
    variance = (squares + NOISE_WEIGHT * noise**2) / freedom / len(logs) + PROCESS**2 / processes
    half = students_quantile(0.975, freedom) * math.sqrt(variance)
    return Throughput(
        centre=math.exp(-mean), low=math.exp(-mean - half), high=math.exp(-mean + half)
    )


def center_of(values: Sequence[float]) -> float:
    """The Hodges-Lehmann centre: the median of the means of all pairs."""
    means = []
    for first, a in enumerate(values):
        for b in values[first:]:
            means.append((a + b) / 2)
    return median(means)


def _scatter(blocks: Sequence[Sequence[float]], noise: float) -> float:
    """Standard deviation of one round, from the median distance to the middle of its block."""
    off = []
    for block in blocks:
        middle = median(block)
        for value in block:
            off.append(abs(value - middle))
    freedom = len(off) - len(blocks)
    if freedom <= 0:
        return math.sqrt(2) * noise
    scatter = median(off) / 0.6745 * math.sqrt(len(off) / freedom)
    squares = NOISE_WEIGHT * 2 * noise**2 + freedom * scatter**2
    return math.sqrt(squares / (NOISE_WEIGHT + freedom))
