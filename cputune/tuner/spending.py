"""What the rest of a study's time can buy: a trial, a block of the comparison, all of its blocks.

A trial is worth its time only if the comparison of its plan still fits. How long that takes follows
from what was measured: a large gain needs two blocks, a small one five; a step has its length;
processes that are alive cost no start; new ones take as long as earlier ones did.
"""

from __future__ import annotations

from collections.abc import Sequence

from cputune.records.result import LEAST_BLOCKS
from cputune.tuner.gains import DELTA, blocks_to_decide
from cputune.tuner.measuring import Measuring
from cputune.tuner.turns import awake_steps, round_seconds, warmup_steps

FEWEST_ROUNDS, FIRST_ROUNDS, LATER_ROUNDS = 2, 6, 3
"""The fewest rounds of any block; those of the first block, and of later ones, if they are short.
New processes say more than further rounds (``benchmarks/aa.py``)."""

LONG_ENOUGH_SECONDS, LATER_SECONDS = 20.0, 10.0
"""A block whose rounds took so long has shown enough: the first one, a later one."""

TELL_APART_SECONDS = 20.0
"""Seconds of steps in the block that chooses a leader, if several rivals are left."""

STEPS_OF_TRIAL = 4
"""The steps of a trial that runs to its end, if they are short: three count."""

LEAST_GAIN = 0.15
"""The gain (log) for which time is kept if the trials show a smaller one. What is smaller needs
more blocks than the search can wait for: then the comparison ends undecided, and says how much
longer it takes."""


MOST_RESERVED = 0.5
"""The largest share of the time that is kept for the comparison while other plans may be faster."""

DELAYED_STEPS = 4
"""For so many steps of the baseline time is kept in addition: a step may be delayed, and its round
is repeated. Without, one in twenty comparisons of steps of ten seconds ended without a factor."""


def least_rounds(round_seconds: float, *, first: bool) -> int:
    """The fewest rounds of a block."""
    most, seconds = LATER_ROUNDS, LATER_SECONDS
    if first:
        most, seconds = FIRST_ROUNDS, LONG_ENOUGH_SECONDS
    if round_seconds * most <= seconds:
        return most
    return max(FEWEST_ROUNDS, int(seconds / round_seconds))


def trial_seconds(measuring: Measuring, step_seconds: float) -> float:
    """About how long a trial takes whose steps settle at ``step_seconds``."""
    race = measuring.race
    steps = STEPS_OF_TRIAL - 1 if step_seconds >= 1 else max(STEPS_OF_TRIAL, race.warmup + 2)
    return measuring.usual_start_seconds + step_seconds * sum(race.slower_first(steps))


def kept_block_seconds(steps: Sequence[float]) -> float:
    """The same of a first block whose processes are alive."""
    one = round_seconds(steps)
    rounds = max(least_rounds(one, first=True) * one, LONG_ENOUGH_SECONDS)
    return rounds + sum(awake_steps(step) * step for step in steps)


def choosing_seconds(steps: Sequence[float]) -> float:
    """The same of a block in which rivals whose processes are alive are told apart."""
    one = round_seconds(steps)
    rounds = max(FEWEST_ROUNDS * one, TELL_APART_SECONDS + one / 2)
    return rounds + sum(awake_steps(step) * step for step in steps)


def block_seconds(measuring: Measuring, steps: Sequence[float]) -> float:
    """The same of a block of new processes, which start together and warm up."""
    race = measuring.race
    seconds = measuring.block_start_seconds
    for step in steps:
        seconds += step * sum(race.slower_first(warmup_steps(race.warmup + 2, step)))
    one = round_seconds(steps)
    return seconds + least_rounds(one, first=False) * one


def comparison_seconds(measuring: Measuring, gain: float, rival_seconds: float) -> float:
    """About how long it takes to decide whether a plan is faster by ``gain`` (log).

    ``rival_seconds`` are those of a step of the plan.
    """
    steps = (measuring.step_seconds, rival_seconds)
    rounds = least_rounds(round_seconds(steps), first=False)
    noise = measuring.race.noise.deviation
    blocks = LEAST_BLOCKS
    if gain > DELTA:
        blocks = blocks_to_decide(max(gain, LEAST_GAIN), noise, rounds)
    later = (blocks - 1) * block_seconds(measuring, steps)
    return kept_block_seconds(steps) + later + DELAYED_STEPS * measuring.step_seconds
