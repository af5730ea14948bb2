"""Who is measured again at the end of a study, and against what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED
from cputune.steps import Contended, Runner
from cputune.tuner.conclusion import Findings
from cputune.tuner.confirm import Contender, confirm
from cputune.tuner.events import ConfirmStarted
from cputune.tuner.measuring import Measuring

Belief = Mapping[Plan, tuple[float, float]]
"""Mean and standard deviation of the log time per sample of each plan."""


def confirm_best(
    measuring: Measuring, belief: Belief, fresh_runner: Callable[[], AbstractContextManager[Runner]]
) -> None:
    """Measure today's launch and the two best plans side by side; the findings hold the rounds.

    Nothing is measured where there are no two plans to compare.
    """
    findings = measuring.findings
    ran = [t.plan for t in findings.trials if t.state == COMPLETED and not t.plan.as_found]
    base = _today(findings)
    if base is None and ran:
        # Today's launch does not run: the first that did stands in for it.
        base = findings.stand_in = ran[0]
    ranked = sorted((plan for plan in ran if plan != base), key=lambda plan: belief[plan][0])
    if base is None or not ranked:
        return
    baseline = Contender(role="baseline", plan=base, believed=belief[base])
    rivals = [Contender(role="candidate", plan=p, believed=belief[p]) for p in ranked[:2]]
    measuring.on_event(ConfirmStarted(plans=(base, *(rival.plan for rival in rivals))))
    with fresh_runner() as runner:
        out_of_time = partial(measuring.timer.up, 1.0)
        run = partial(measuring.confirm_run, runner)
        confirm(baseline, rivals, measuring.race, run, out_of_time=out_of_time)
        spare = ranked[2:]
        while spare and all(rival.out is not None and not rival.measured for rival in rivals):
            # Both fell over in a fresh process: the next best has its turn.
            findings.fallen.extend(rivals)
            plan = spare.pop(0)
            rivals = [Contender(role="candidate", plan=plan, believed=belief[plan])]
            baseline.logs.clear()
            confirm(baseline, rivals, measuring.race, run, out_of_time=out_of_time)
    findings.baseline = baseline
    findings.rivals = rivals


def _today(findings: Findings) -> Plan | None:
    """Today's launch, unless it was tried and does not run."""
    tried = [trial for trial in findings.trials if trial.plan.as_found]
    if any(trial.state == FAILED and trial.kind != Contended.kind for trial in tried):
        return None
    return tried[0].plan if tried else None
