"""The knob ``ccl_workers``: the threads of a rank that move gradients for oneCCL."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cputune import cpulist
from cputune.knobs.record import Effect, Knob, Shown, State, variable_shown, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.plan import Plan


def _variables(plan: Plan) -> Mapping[str, str]:
    if plan.backend != "ccl" or not plan.ccl_workers:
        return {}
    variables = {"CCL_WORKER_COUNT": str(plan.ccl_workers)}
    workers = [str(cpu) for cpus in plan.ccl_cpus for cpu in cpus]
    if workers:
        variables["CCL_WORKER_AFFINITY"] = ",".join(workers)
    return variables


def _number(plan: Plan, local_rank: int) -> int | None:
    return plan.ccl_workers if plan.backend == "ccl" and plan.world_size > 1 else None


def _cpus(plan: Plan, local_rank: int) -> str | None:
    if _number(plan, local_rank) is None or not plan.ccl_cpus:
        return None
    return cpulist.render(plan.ccl_cpus[local_rank % len(plan.ccl_cpus)])


def _seen_number(plan: Plan, state: State) -> int | None:
    seen = state.get("ccl_workers")
    return None if seen is None else len(seen)


def _seen_cpus(plan: Plan, state: State) -> str | None:
    seen = state.get("ccl_workers")
    return None if seen is None else cpulist.render(seen)


def _why_unknown(state: State) -> str | None:
    return state.get("ccl_workers_unknown")


def _words(plan: Plan) -> str | None:
    if plan.world_size == 1 or not plan.ccl_workers:
        return None
    return f"{plan.ccl_workers} worker{'' if plan.ccl_workers == 1 else 's'}"


CCL_WORKERS = Knob(
    name="ccl_workers",
    summary="threads of a rank that move gradients for oneCCL, each on a core of its own",
    today=0,
    parse=whole_number("ccl_workers", least=0),
    variables=_variables,
    shown=(
        Shown(what="oneCCL workers", expected=_number, seen=_seen_number, unknown=_why_unknown),
        Shown(
            what="CPUs of oneCCL workers",
            expected=_cpus,
            seen=_seen_cpus,
            unknown=_why_unknown,
            by_cpu_number=True,
        ),
        variable_shown("CCL_WORKER_COUNT", _variables),
        variable_shown("CCL_WORKER_AFFINITY", _variables, by_cpu_number=True),
    ),
    words=_words,
    effect=Effect(
        own=0.08,
        within={"ranks": 0.08},
        part_of="backend",
        feature=lambda plan, at: math.log2(1 + plan.ccl_workers),
        source="assumed: a worker more moves gradients sooner and takes a core from the threads",
    ),
)
