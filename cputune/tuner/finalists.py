"""Which plans are measured again at the end of a study: side by side, or in sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from cputune.plans.plan import Plan
from cputune.records.result import COMPLETED, FAILED, Trial
from cputune.records.steps import Contended, HostLost, LivingRunner, Runner
from cputune.tuner.changes import Change, changes
from cputune.tuner.confirmation import compare_rivals
from cputune.tuner.measuring import MOST_RIVALS, Findings, Measuring, first_line, most_living
from cputune.tuner.race import LEAST_KEPT, WANDER
from cputune.tuner.rehearsals import rehearsed
from cputune.tuner.space import SearchSpace

# If a start takes longer, no plan is started just to learn what each change is worth.
DEAR_START_SECONDS = 30.0

# Mean and standard deviation of the log of each plan's time per sample.
Belief = Mapping[Plan, tuple[float, float]]


def confirm_best(
    measuring: Measuring,
    space: SearchSpace,
    belief: Belief,
    runner: Runner,
    fresh_runner: Callable[[], AbstractContextManager[Runner]],
    untried: Plan | None = None,
) -> None:
    """Measure the baseline and the best plans side by side; the findings contain the rounds.

    ``runner`` still has the best processes of the trials; ``fresh_runner`` opens one that starts
    new processes. ``untried`` is the plan that the topology suggests, compared if the time was too
    short for trials. Nothing is measured without two plans.
    """
    findings = measuring.findings
    ran = _plans_that_ran(findings)
    base = _baseline(findings)
    if base is None and ran:  # the first plan that ran replaces a launch that does not
        base = ran[0]
        findings.notes += _launch_failed(findings, base)
    ranked = sorted((plan for plan in ran if plan != base), key=lambda plan: belief[plan][0])
    alone = all(trial.plan.as_found for trial in findings.trials)
    if alone and measuring.timer.limited and untried is not None:
        ranked = [untried]
    numbers = {plan.world_size for plan in space.plans()}
    if len(numbers) > 1:  # else the user has asked for it (--fix ranks=N)
        typed, best = space.workload.launch_ranks, partial(_promising, belief=belief)
        ranked = rehearsed(measuring, runner, ranked, typed, best)
    if base is None or not ranked:
        return
    dear = measuring.start_seconds >= DEAR_START_SECONDS
    if dear:
        findings.notes.append(
            f"A start takes {measuring.start_seconds:.0f} s, so what each change brings "
            "by itself was not measured."
        )
    trials = findings.trials
    if alone:  # the plan that was not tried needs about the memory of the current launch
        trials = trials * 2
    alive = most_living(measuring.facts, trials)
    in_rounds = ranked[: 1 if dear else 2]  # each round starts all of them anew
    with fresh_runner() as fresh:
        together = alive > 1 and isinstance(fresh, LivingRunner)
        if together:
            chosen = _promising(ranked, belief)[: alive - 1]
        else:
            chosen = in_rounds
        changes_to = partial(on_the_way, space, base, 0 if dear else alive)
        compare_rivals(
            measuring, base, chosen, runner, fresh, alive, alone=in_rounds, changes_to=changes_to
        )


def _plans_that_ran(findings: Findings) -> list[Plan]:
    """The plans that may be the best, without the current launch."""
    plans: list[Plan] = []
    for trial in findings.trials:
        if may_be_the_best(trial) and not trial.plan.as_found:
            plans.append(trial.plan)
    return plans


def may_be_the_best(trial: Trial) -> bool:
    """Whether a trial has shown enough of its plan for the plan to be measured again.

    It ran to its end; or the time limit cut it short, it had not lost, and its last steps were
    level.
    """
    level = trial.steps - trial.delayed_steps - trial.warmup_steps
    return trial.state == COMPLETED or (trial.cut_short and level + 1 >= LEAST_KEPT)


def on_the_way(space: SearchSpace, baseline: Plan, alive: int, best: Plan) -> tuple[Change, ...]:
    """The changes from the baseline to this plan, if all these plans can be alive at once."""
    path = changes(space, baseline, best)
    if len(path) < alive:
        return path
    return ()


def _launch_failed(findings: Findings, base: Plan) -> Iterator[str]:
    """The note that the current launch does not run, and with what plans are compared instead."""
    for trial in findings.trials:
        if trial.plan.as_found:
            yield (
                f"Your current launch does not run ({trial.kind}: {first_line(trial.reason)}); "
                f"the speed-up is relative to {base.describe()}, the first plan that ran."
            )


def _promising(ranked: Sequence[Plan], belief: Belief) -> list[Plan]:
    """The plans that ran and may be the fastest, the best first, if the machine's speed has
    changed.
    """
    best, _ = belief[ranked[0]]
    plans: list[Plan] = []
    for plan in ranked[:MOST_RIVALS]:
        if belief[plan][0] - best < max(WANDER, 2 * belief[plan][1]):
            plans.append(plan)
    return plans


def _baseline(findings: Findings) -> Plan | None:
    """The baseline, unless its trial failed."""
    tried = [trial for trial in findings.trials if trial.plan.as_found]
    chance = (Contended.kind, HostLost.kind)  # it may run well another time
    if any(trial.state == FAILED and trial.kind not in chance for trial in tried):
        return None
    return next((trial.plan for trial in tried), None)
