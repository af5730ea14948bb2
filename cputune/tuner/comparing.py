"""Compares two results: their best plans run side by side, now, on this machine.

Speeds of two days are no pairs: their interval ignores what a machine does from day to day. So both
plans run again, by the rules of a study's confirmation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain

from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import Speedup, host_difference, host_fingerprint
from cputune.records.options import DEFAULT_LIMIT_SECONDS, keywords_of
from cputune.records.result import ConfirmRun, Result, Throughput, pairs_of as enough_pairs
from cputune.records.steps import Runner
from cputune.tuner.confirmation import compare_rivals
from cputune.tuner.contenders import SLOWER, Contender, fastest_of, throughput_of
from cputune.tuner.events import OnEvent, logged
from cputune.tuner.exclusive import measuring_alone, open_runner
from cputune.tuner.measuring import Findings, Measuring, Timer, most_living
from cputune.tuner.race import Race

SAME_PLAN = "both results have the same plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two plans of the same work, measured side by side.

    Attributes:
        before: the plan that ``after`` is compared with.
        speedup: how many times as fast ``after`` ran; None without pairs.
        not_compared: why there is no speedup.
        disturbed: whether that is because other processes computed here.
        before_rate: samples/s of ``before`` in the pairs.
        runs: what each block measured.
    """

    before: Plan
    after: Plan
    speedup: Speedup | None = None
    not_compared: str | None = None
    disturbed: bool = False
    before_rate: Throughput | None = None
    after_rate: Throughput | None = None
    runs: tuple[ConfirmRun, ...] = ()

    @property
    def is_same_plan(self) -> bool:
        """Whether both results recommend the same plan, so that there is nothing to compare."""
        return self.not_compared == SAME_PLAN


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareArguments:
    """How two plans are compared; the fields are those of ``TuneArguments``.

    ``max_time_seconds`` None: three minutes for real processes. ``share_machine``: measure although
    other processes compute here.
    """

    facts: HostFacts | None = None
    runner: Runner | None = None
    on_event: OnEvent | None = None
    max_time_seconds: float | None = None
    share_machine: bool = False
    started: float | None = None


@keywords_of(CompareArguments)
def compare(before: Result, after: Result | None, arguments: CompareArguments) -> Comparison:
    """Run the best plans of two results side by side; of one result, its best plan and the
    baseline.

    If one of them cannot run here, ``not_compared`` says why. Raises CannotError if another process
    of the user measures until the time limit.
    """
    if after is None:
        first, second = before.baseline.plan, before.best.plan
    else:
        first, second = before.best.plan, after.best.plan
    facts = arguments.facts
    if facts is None:
        from cputune.host.probing import probe

        facts = probe()
    real = arguments.runner is None
    reason = why_not_here(before, after, facts, real=real)
    if reason is None and first == second:
        reason = SAME_PLAN
    if reason is not None:
        return Comparison(before=first, after=second, not_compared=reason)
    if arguments.started is None:
        started = time.monotonic()
    else:
        started = arguments.started
    on_event = logged(arguments.on_event)
    until = None
    if arguments.max_time_seconds is not None:
        until = started + arguments.max_time_seconds
    limit = arguments.max_time_seconds
    if limit is None and real:
        limit = DEFAULT_LIMIT_SECONDS / 2
    with measuring_alone(
        on_event, share=arguments.share_machine, until=until, real=real, look=real
    ):
        measuring = Measuring(
            facts=facts,
            race=Race(),
            findings=Findings(shared=arguments.share_machine),
            timer=Timer(clock=time.monotonic, started=started, most_seconds=limit),
            on_event=on_event,
        )
        trials = before.trials
        if after is not None:
            trials += after.trials
        opens = partial(open_runner, arguments.runner, before.workload, facts, on_event, fresh=True)
        side_by_side(measuring, first, second, most_living(facts, trials), opens)
    return concluded(measuring, first, second)


def why_not_here(
    before: Result, after: Result | None, facts: HostFacts, *, real: bool = True
) -> str | None:
    """Why the plans of these results cannot be measured side by side here; None if they can."""
    if after is not None and _job(before.workload) != _job(after.workload):
        first, second = _named(before.workload), _named(after.workload)
        if first == second:
            return f"both trained {first}, but it was changed in between"
        return f"they trained different things: {first}, and {second}"
    python = facts.training_python
    if real and not python.has_module("torch"):
        return f"{python.executable} has no torch, so nothing can run here"
    here = host_fingerprint(facts)
    for word, result in (("the first", before), ("the second", after)):
        if result is None:
            continue
        other = host_difference(result.host, here, names=(f"of {word}", "here"))
        if other is not None:
            return f"{word} was measured on another machine: {other}"
        plan = result.best.plan
        if plan.nodes > 1:
            return f"the plan of {word} is for {plan.nodes} nodes"
        missing = set(chain.from_iterable(plan.cpus)) - set(facts.topology.allowed)
        if missing:
            listed = ", ".join(map(str, sorted(missing)))
            return f"the plan of {word} needs CPUs that may not be used here: {listed}"
    return None


def _job(workload: Workload) -> object:
    """What is trained, without descriptive fields."""
    recipe = workload.recipe
    if recipe is None:
        return workload.program
    descriptive = ("name", "description", "source")
    by_key = {}
    for key, value in recipe.to_json().items():
        if key not in descriptive:
            by_key[key] = value
    return by_key


def _named(workload: Workload) -> str:
    if workload.recipe is not None:
        return f"the recipe {workload.name}"
    return "the script " + " ".join(workload.program)


def side_by_side(
    measuring: Measuring,
    before: Plan,
    after: Plan,
    alive: int,
    open_fresh: Callable[[], AbstractContextManager[Runner]],
) -> None:
    """Measure two plans as the confirmation of a study does.

    ``alive`` is how many plans fit into memory. If that is one, or a script ends too soon to take
    turns, they run one after the other.
    """
    with open_fresh() as runner, closing(measuring.living):
        compare_rivals(measuring, before, [after], runner, runner, alive)


def concluded(measuring: Measuring, before: Plan, after: Plan) -> Comparison:
    """The comparison of two plans from the findings: a ratio of pairs, or why it is missing."""
    findings, noise = measuring.findings, measuring.race.noise.deviation
    base, rival = findings.baseline, findings.rivals[0]
    assert base is not None, "they were measured"
    runs = tuple(findings.confirm_runs)
    reason = _why_no_pairs(measuring, base, rival)
    fastest = None
    if reason is None:
        fastest = fastest_of(base, [rival], noise)
    if fastest is None:
        return Comparison(
            before=before,
            after=after,
            not_compared=reason or "the plans could not run side by side twice",
            disturbed=findings.disturbed,
            runs=runs,
        )
    return Comparison(
        before=before,
        after=after,
        speedup=fastest[1].speedup,
        before_rate=throughput_of(base, noise),
        after_rate=throughput_of(rival, noise),
        runs=runs,
    )


def _why_no_pairs(measuring: Measuring, base: Contender, rival: Contender) -> str | None:
    findings = measuring.findings
    if findings.disturbed:
        return findings.how_disturbed
    for word, plan in (("the first", base), ("the second", rival)):
        if plan.out is not None and plan.out != SLOWER:
            return f"the plan of {word} failed: {plan.out}"
    if enough_pairs(findings.confirm_runs, base.plan, rival.plan):
        return None
    if measuring.timer.up(1.0):
        return "the time limit was reached before both had run side by side twice"
    return "both could not run side by side twice"
