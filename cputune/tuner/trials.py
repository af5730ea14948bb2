"""The record of a trial, from what was read of its run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cputune.figures import figure
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, TIME_UP, Origin, Trial
from cputune.steps import Contended
from cputune.tuner.measuring import speed
from cputune.tuner.race import LEAST_KEPT, WANDER, Race
from cputune.tuner.reading import Run, count_of_steps
from cputune.tuner.statistics import Z95, Estimate

MOST_CHARACTERS = 16_384
"""Of a reason: its first line and the last lines of a stderr; a result is read by people."""


def shortened(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2 - 10
    return f"{text[:half]}\n[…]\n{text[-half:]}"


def trial_of(
    run: Run,
    race: Race,
    *,
    number: int,
    plan: Plan,
    origin: Origin,
    step_seconds: float,
    observed: tuple[Mapping[str, Any], ...],
) -> Trial:
    """How a run ended: with a number, with a bound on it, or with the reason why it has none.

    ``step_seconds`` are those of all tries, ``observed`` is what the ranks of the last saw.
    A run that the end of the time has cut short has one step that counts at least.
    """
    trial = Trial(
        number=number,
        plan=plan,
        state=COMPLETED,
        steps=run.steps,
        delayed_steps=run.delayed,
        step_seconds=step_seconds,
        compile_seconds=run.compile_seconds,
        origin=origin,
        observed=observed,
    )
    if run.failure is not None:
        details = run.failure.details
        reason = str(run.failure) + (f"\n{details}" if details else "")
        return replace(
            trial, state=FAILED, kind=run.failure.kind, reason=shortened(reason, MOST_CHARACTERS)
        )
    now = race.estimate(run.logs)
    trial = replace(trial, samples_per_second=speed(now), warmup_steps=now.warmup)
    if run.ended:
        return replace(trial, reason=f"the job ended after {run.steps} steps")
    if run.verdict == "enough":
        return trial
    cut = None if run.cut is None else f"{TIME_UP} {run.cut}"
    if cut and now.level and len(run.logs) >= race.warmup + LEAST_KEPT:
        return replace(trial, reason=cut)
    guess = race.lost(run.logs)
    return replace(
        trial,
        state=PRUNED,
        samples_per_second=speed(guess),
        at_most_samples_per_second=at_most(guess, race.fastest),
        reason=cut or _lost(run.steps, race),
    )


def at_most(guess: Estimate, fastest: Estimate | None) -> float | None:
    """Samples per second that a plan has at most of which only the first steps were seen.

    Beside what the steps scatter, the machine may just have been slower than usual. None
    where the bound says nothing: it lies above the fastest plan so far.
    """
    bound = math.exp(-guess.center + Z95 * math.hypot(guess.error, WANDER))
    return bound if fastest is None or bound < math.exp(-fastest.center) else None


def was_disturbed(trial: Trial) -> bool:
    """Whether other processes delayed most of its steps."""
    return trial.kind == Contended.kind or trial.delayed_steps * 2 > trial.steps


def _lost(steps: int, race: Race) -> str:
    fastest = race.fastest
    rate = "" if fastest is None else f", {figure(math.exp(-fastest.center))} samples/s"
    return f"stopped after {count_of_steps(steps)}: most likely slower than the fastest{rate}"
