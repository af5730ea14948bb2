"""Who is measured again at the end of a study, and against what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, Trial
from cputune.steps import Contended, HostLost, LivingRunner, Runner
from cputune.tuner.confirm import Contender, confirm
from cputune.tuner.events import ConfirmStarted
from cputune.tuner.findings import Findings
from cputune.tuner.measuring import Measuring
from cputune.tuner.room import room_for
from cputune.tuner.seat import TooShort
from cputune.tuner.sidebyside import side_by_side
from cputune.tuner.space import SearchSpace
from cputune.tuner.worth import Change, changes

LEAST_ALIVE = 2
LEAST_LEVEL = 2
"""Steps past the warm-up that a trial has made at least whose speed is worth a closer look."""
MOST_RIVALS = 4
"""With three, the worst twentieth under a wander of 10 % was at 0.90 of the optimum, now 0.95."""
NEAR = 0.1
"""So far behind the best (log) a plan may still turn out to be the fastest: the machine may
have wandered by as much between their trials."""

Belief = Mapping[Plan, tuple[float, float]]
"""Mean and standard deviation of the log time per sample of each plan."""


def confirm_best(
    measuring: Measuring,
    space: SearchSpace,
    belief: Belief,
    fresh_runner: Callable[[], AbstractContextManager[Runner]],
) -> None:
    """Measure today's launch and the two best plans side by side; the findings hold the rounds.

    Nothing is measured where there are no two plans to compare.
    """
    findings = measuring.findings
    ran = [t.plan for t in findings.trials if may_be_the_best(t) and not t.plan.as_found]
    base = _today(findings)
    if base is None and ran:
        # Today's launch does not run: the first that did stands in for it.
        base = findings.stand_in = ran[0]
    ranked = sorted((plan for plan in ran if plan != base), key=lambda plan: belief[plan][0])
    if base is None or not ranked:
        return
    baseline = Contender(role="baseline", plan=base, believed=belief[base])
    with fresh_runner() as runner:
        room = room_for(measuring.facts, findings.trials)
        if isinstance(runner, LivingRunner) and room >= LEAST_ALIVE:
            rivals = _contenders(_promising(ranked, belief)[: room - 1], belief)
            measuring.on_event(ConfirmStarted(plans=(base, *(rival.plan for rival in rivals))))
            way = partial(on_the_way, space, base, room)
            try:
                side_by_side(measuring, runner, baseline, rivals, way)
            except TooShort:  # but long enough to be measured from its first step on
                baseline = Contender(role="baseline", plan=base, believed=belief[base])
                rivals = _contenders(ranked[:2], belief)
                _in_rounds(measuring, runner, baseline, rivals)
        else:
            rivals = _contenders(ranked[:2], belief)
            measuring.on_event(ConfirmStarted(plans=(base, *(rival.plan for rival in rivals))))
            _in_rounds(measuring, runner, baseline, rivals)
        spare = [plan for plan in ranked if plan not in {rival.plan for rival in rivals}]
        while spare and all(rival.out is not None and not rival.measured for rival in rivals):
            # All fell over in a fresh process: the next best has its turn.
            findings.fallen.extend(rivals)
            rivals = _contenders([spare.pop(0)], belief)
            baseline.logs.clear()
            baseline.sittings.clear()
            _in_rounds(measuring, runner, baseline, rivals)
    findings.baseline = baseline
    findings.rivals = rivals


def may_be_the_best(trial: Trial) -> bool:
    """Whether a trial has shown enough of its plan for it to be measured again.

    It ran to its end; or it did not lose, but the time was up after some level steps.
    """
    level = trial.steps - trial.delayed_steps - trial.warmup_steps
    return trial.state == COMPLETED or (trial.cut_short and level >= LEAST_LEVEL)


def on_the_way(space: SearchSpace, today: Plan, room: int, best: Plan) -> tuple[Change, ...]:
    """The changes from today's launch to this plan, where all on the way can live at once."""
    way = changes(space, today, best)
    return way if len(way) < room else ()


def _contenders(plans: Sequence[Plan], belief: Belief) -> list[Contender]:
    return [Contender(role="candidate", plan=p, believed=belief[p]) for p in plans]


def _promising(ranked: Sequence[Plan], belief: Belief) -> list[Plan]:
    """Of the plans that ran, the best first, those that may be the fastest."""
    best, _ = belief[ranked[0]]
    return [
        plan
        for plan in ranked[:MOST_RIVALS]
        if belief[plan][0] - best < max(NEAR, 2 * belief[plan][1])
    ]


def _in_rounds(
    measuring: Measuring, runner: Runner, baseline: Contender, rivals: Sequence[Contender]
) -> None:
    out_of_time = partial(measuring.timer.up, 1.0)
    run = partial(measuring.confirm_run, runner)
    confirm(baseline, rivals, measuring.race, run, out_of_time=out_of_time)


def _today(findings: Findings) -> Plan | None:
    """Today's launch, unless it was tried and does not run."""
    tried = [trial for trial in findings.trials if trial.plan.as_found]
    chance = (Contended.kind, HostLost.kind)  # it may run well another time
    if any(trial.state == FAILED and trial.kind not in chance for trial in tried):
        return None
    return next((trial.plan for trial in tried), None)
