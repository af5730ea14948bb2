"""A second study of a command: the plan of the earlier result is tried first, and judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.records.earlier import Earlier
from cputune.records.result import Result
from cputune.records.shared_texts import changed_since
from cputune.tuner.contenders import gain_of
from cputune.tuner.measuring import Findings
from cputune.tuner.space import SearchSpace


def with_earlier(space: SearchSpace, earlier: Result) -> SearchSpace:
    """The space with the best plan of an earlier result as its first suggestion, if it has it."""
    plan = same_plan(space, earlier.best.plan)
    if plan is None:
        return space
    others = tuple(named for named in space.suggestions if named[1] != plan)
    return replace(space, suggestions=(("earlier", plan), *others))


def same_plan(space: SearchSpace, plan: Plan) -> Plan | None:
    """The plan of the space with these knob values; paths of libraries may have changed."""
    if plan in space.values:
        return plan
    if plan.as_found:
        return None
    for candidate, values in space.values.items():
        same_place = (candidate.nodes, candidate.cpus) == (plan.nodes, plan.cpus)
        if same_place and all(candidate.value(name) == plan.value(name) for name in values):
            return candidate
    return None


def since_earlier(
    result: Result,
    earlier: Result,
    *,
    space: SearchSpace | None,
    findings: Findings,
    facts: HostFacts,
    noise: float,
) -> Earlier:
    """What became of the plan of an earlier result."""
    plan = earlier.best.plan
    found = None
    if space is not None:
        found = same_plan(space, plan)
    not_tried = None
    if found is None:
        not_tried = "because it is not possible here any more"
    elif all(trial.plan != found for trial in findings.trials):
        not_tried = "because your launch already runs like it, or the time was too short"
    gain = None
    if result.best.plan != found:
        contenders = [one for one in (findings.baseline, *findings.rivals) if one is not None]
        before = [one for one in contenders if one.plan == found and one.measured]
        best = [one for one in contenders if one.plan == result.best.plan and one.measured]
        if before and best and result.speedup is not None:
            measured = gain_of(before[0], best[0], noise)
            gain = None if measured is None else measured.speedup
    return Earlier(
        created=earlier.created,
        changes=(*changed_since(earlier, facts), *_files(result, earlier)),
        plan=plan,
        speedup=earlier.speedup,
        gain=gain,
        is_best=found is not None and result.best.plan == found,
        not_tried=not_tried,
    )


def _files(result: Result, earlier: Result) -> Iterator[str]:
    for path, digest in result.files.items():
        if path in earlier.files and earlier.files[path] != digest:
            yield f"{path.rpartition('/')[2]} was edited"
