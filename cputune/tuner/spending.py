"""What the rest of a study's time can buy: a trial, a block of the comparison, all of its blocks.

A trial is worth its time only if the comparison of its plan still fits. How long that takes follows
from what was measured: a large gain needs two blocks, a small one five; a step has its length;
processes that are alive cost no start; new ones take as long as earlier ones did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cputune.records.result import LEAST_BLOCKS
from cputune.tuner.gains import DELTA, blocks_to_decide
from cputune.tuner.measuring import Measuring
from cputune.tuner.race import LEAST_KEPT
from cputune.tuner.turns import awake_steps, round_seconds, warmup_steps

# The fewest rounds of a block; those of the first block, and of later ones, if they are short. New
# processes say more than further rounds (``benchmarks/aa.py``).
FEWEST_ROUNDS, FIRST_ROUNDS, LATER_ROUNDS = 2, 6, 3

# The rounds of the block that shows what each change is worth: no other block adds to them.
ROUNDS_OF_CHANGES = 4

# If a step takes so long, one round of a block has to suffice.
VERY_LONG_SECONDS = 30.0

# A block whose rounds took so long has shown enough: the first one, a later one.
LONG_ENOUGH_SECONDS, LATER_SECONDS = 20.0, 10.0

# The first block continues until its processes have taken this number of steps, which shows a long
# warm-up, or ``LONG_ENOUGH_SECONDS``.
OLD_STEPS = 30

# Seconds of steps in the block that chooses a leader, if several rivals are left.
TELL_APART_SECONDS = 20.0

# The steps of a trial that runs to its end, if they are short: three count.
STEPS_OF_TRIAL = 4

# What it takes to check the model: with steps of 13 s (DistilBERT, two Zen 4 cores) 140 s.
STARTS_OF_CHECK, STEPS_OF_CHECK = 1, 10

# The gain (log) for which time is kept if the trials show a smaller one. What is smaller needs
# more blocks than the search can wait for: then the comparison ends undecided, and says how much
# longer it takes.
LEAST_GAIN = 0.15


# Trials that usually find the best plan or one that is nearly as fast.
USUAL_TRIALS = 12

# Share of a given time after which the confirmation ends: the rest is for the profile.
UNTIL_PROFILE = 0.95

# The largest share of the time that is kept for the comparison while other plans may be faster.
MOST_RESERVED = 0.5

# Time for these steps of the baseline is kept in addition: a step may be delayed, and its round
# is repeated. Without, one in twenty comparisons of steps of ten seconds ended without a factor.
DELAYED_STEPS = 4


def least_rounds(round_seconds: float, *, first: bool) -> int:
    """The fewest rounds of a block."""
    most, seconds = LATER_ROUNDS, LATER_SECONDS
    if first:
        most, seconds = FIRST_ROUNDS, LONG_ENOUGH_SECONDS
    if round_seconds * most <= seconds:
        return most
    if round_seconds >= VERY_LONG_SECONDS:
        return 1
    return max(FEWEST_ROUNDS, int(seconds / round_seconds))


def trial_seconds(measuring: Measuring, step_seconds: float) -> float:
    """About how long a trial takes whose steps settle at ``step_seconds``."""
    race = measuring.race
    steps = STEPS_OF_TRIAL - 1 if step_seconds >= 1 else max(STEPS_OF_TRIAL, race.warmup + 2)
    return measuring.usual_start_seconds + step_seconds * sum(race.slower_first(steps))


def kept_block_seconds(steps: Sequence[float]) -> float:
    """The same of a first block whose processes are alive."""
    one = round_seconds(steps)
    until_old = min(OLD_STEPS * sum(steps), LONG_ENOUGH_SECONDS)
    rounds = max(least_rounds(one, first=True) * one, until_old)
    return rounds + sum(awake_steps(step) * step for step in steps)


def choosing_seconds(steps: Sequence[float]) -> float:
    """The same of a block that chooses among rivals whose processes are alive."""
    one = round_seconds(steps)
    rounds = max(FEWEST_ROUNDS * one, TELL_APART_SECONDS + one / 2)
    return rounds + sum(awake_steps(step) * step for step in steps)


def block_seconds(measuring: Measuring, steps: Sequence[float], rounds: int = 0) -> float:
    """The same of a block of new processes, which start together and warm up.

    ``rounds`` 0: as many as a later block has.
    """
    race = measuring.race
    # More processes than two start more slowly: they share the cores.
    seconds = measuring.block_start_seconds * max(1.0, len(steps) / 2)
    for step in steps:
        seconds += step * sum(race.slower_first(warmup_steps(race.warmup + 2, step)))
    one = round_seconds(steps)
    return seconds + (rounds or least_rounds(one, first=False)) * one


def comparison_seconds(measuring: Measuring, gain: float, rival_seconds: float) -> float:
    """About how long it takes to decide whether a plan is faster by ``gain`` (log).

    ``rival_seconds`` are those of a step of the plan.
    """
    return _seconds_of_blocks(measuring, _blocks(measuring, gain, rival_seconds), rival_seconds)


def reserved_seconds(measuring: Measuring, gain: float, rival_seconds: float) -> float:
    """What of this is kept while other plans may be faster.

    A small gain needs many blocks, and a faster plan fewer: so it is ``MOST_RESERVED`` of the time
    at most, or what the fewest blocks take.
    """
    fewest = _seconds_of_blocks(measuring, LEAST_BLOCKS, rival_seconds)
    most = MOST_RESERVED * (measuring.timer.most_seconds or 0.0)
    return max(fewest, min(comparison_seconds(measuring, gain, rival_seconds), most))


def checking_seconds(measuring: Measuring) -> float:
    """About how long it takes to ask the current launch what plans would change."""
    return (
        STARTS_OF_CHECK * measuring.slowest_start_seconds + STEPS_OF_CHECK * measuring.step_seconds
    )


def trials_in_time(measuring: Measuring, before: float = 0.0) -> int:
    """About how many more plans can be tried before the comparison of one that is twice as fast.

    ``before`` are seconds that something else takes first.
    """
    half = measuring.step_seconds / 2
    left = measuring.timer.left(UNTIL_PROFILE) - before
    left -= comparison_seconds(measuring, math.log(2), half)
    return max(0, int(left / max(trial_seconds(measuring, half), 1e-3)))


def limit_for_usual_study(measuring: Measuring) -> float:
    """The time limit in seconds with which ``USUAL_TRIALS`` plans are tried and a gain of 1.3 is
    decided.
    """
    faster = measuring.step_seconds / 1.3
    seconds = measuring.findings.baseline_seconds
    seconds += USUAL_TRIALS * trial_seconds(measuring, faster)
    seconds += comparison_seconds(measuring, math.log(1.3), faster)
    return seconds / UNTIL_PROFILE


def _blocks(measuring: Measuring, gain: float, rival_seconds: float) -> int:
    """How many blocks are likely to decide a gain."""
    steps = (measuring.step_seconds, rival_seconds)
    rounds = least_rounds(round_seconds(steps), first=False)
    noise = measuring.race.noise.deviation
    if gain <= DELTA:
        return LEAST_BLOCKS
    return blocks_to_decide(max(gain, LEAST_GAIN), noise, rounds)


def _seconds_of_blocks(measuring: Measuring, blocks: int, rival_seconds: float) -> float:
    steps = (measuring.step_seconds, rival_seconds)
    if measuring.runs_alone:
        return blocks * _seconds_one_after_the_other(measuring, steps)
    later = (blocks - 1) * block_seconds(measuring, steps)
    return kept_block_seconds(steps) + later + DELAYED_STEPS * measuring.step_seconds


def _seconds_one_after_the_other(measuring: Measuring, steps: Sequence[float]) -> float:
    """A block of plans that cannot be alive at once: each starts and is measured whole."""
    seconds = len(steps) * measuring.slowest_start_seconds
    for step in steps:
        first = measuring.race.slower_first(measuring.race.warmup + LEAST_KEPT)
        seconds += step * sum(first)
    return seconds
