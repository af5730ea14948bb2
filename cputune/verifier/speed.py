"""How fast a launch was, beside the tuned trial. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cputune.figures import figure
from cputune.result import Throughput
from cputune.steps import Step
from cputune.verifier.records import FAILED, NOT_CHECKED, PASSED, Outcome, Ratio

WARMUP_STEPS = 2
LEAST_QUIET = 5
"""With fewer steps that did not wait for a CPU, all steps count."""

SLOWEST_RATIO = 0.9
"""A launch at this share of the tuned throughput reproduces it; one whose whole interval lies
below it does not. Between them the machine was too noisy to tell."""


def step_rates(steps: Sequence[Step]) -> tuple[list[float], int]:
    """Samples per second of each step of the whole job, and how many steps were delayed.

    Warm-up is left out, and so are steps that waited for a CPU; where nearly every step
    did, all of them count: a figure of a busy machine is better than none.
    """
    timed = [step for step in steps[min(WARMUP_STEPS, len(steps) - 1) :] if step.seconds > 0]
    quiet = [step for step in timed if not step.delayed]
    counted = quiet if len(quiet) >= LEAST_QUIET else timed
    return [step.samples / step.seconds for step in counted], len(timed) - len(quiet)


def throughput(steps: Sequence[Step], tuned: Throughput) -> Ratio | None:
    """The launch's samples per second over the tuned ones, None where there were no steps.

    The interval of a median is that of its order statistics; that of the ratio follows
    from both intervals (MOVER: Donner and Zou, Statistical Methods in Medical Research
    2012, 21(4), on logarithms).
    """
    rates, delayed = step_rates(steps)
    rates.sort()
    if not rates or min(tuned.low, tuned.median) <= 0:
        return None
    low, high = median_interval(rates)
    measured = statistics.median(rates)
    ratio = measured / tuned.median
    below = math.hypot(math.log(measured / low), math.log(tuned.high / tuned.median))
    above = math.hypot(math.log(high / measured), math.log(tuned.median / tuned.low))
    return Ratio(
        ratio=ratio,
        low=ratio * math.exp(-below),
        high=ratio * math.exp(above),
        measured=measured,
        tuned=tuned.median,
        steps=len(rates),
        delayed_steps=delayed,
    )


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median from order statistics (binomial); below 6 values the range."""
    count = len(ordered)
    tail, rank = 0.5**count, 0
    while tail <= 0.025:
        rank += 1
        tail += math.comb(count, rank) * 0.5**count
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]


def throughput_check(ratio: Ratio | None, consumer: str) -> Outcome:
    """Whether the launch is as fast as the tuned trial was.

    A slow one on a machine that was busy meanwhile says nothing of the launch.
    """
    name = "throughput"
    if ratio is None:
        return Outcome(
            name=name,
            state=NOT_CHECKED,
            consumer=consumer,
            summary="nothing was measured to compare with",
            remedy="cputune tune measures; `cputune emit` writes its figure down",
        )
    text = (
        f"{figure(ratio.measured, 4)} samples/s, {ratio.ratio:.2f} × the tuned "
        f"{ratio.tuned:.4g} ({ratio.low:.2f} to {ratio.high:.2f}, {ratio.steps} steps)"
    )
    if ratio.ratio >= SLOWEST_RATIO:
        return Outcome(name=name, state=PASSED, consumer=consumer, summary=text)
    busy = ratio.delayed_steps >= ratio.steps / 2
    if ratio.high < SLOWEST_RATIO and not busy:
        return Outcome(name=name, state=FAILED, consumer=consumer, summary=text)
    why = f"{ratio.delayed_steps} steps waited for a CPU" if busy else "too noisy to tell"
    return Outcome(
        name=name,
        state=NOT_CHECKED,
        consumer=consumer,
        summary=f"{text}; {why}",
        remedy="verify again when nothing else runs here, with more --steps",
    )
