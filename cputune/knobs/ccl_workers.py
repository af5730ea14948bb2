"""The knob ``ccl_workers``: the threads of a rank that move gradients for oneCCL."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cputune.knobs.record import Effect, Knob, whole_number

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
    words=_words,
    effect=Effect(
        own=0.08,
        within={"ranks": 0.08},
        part_of="backend",
        feature=lambda plan, at: math.log2(1 + plan.ccl_workers),
        source="assumed: a worker more moves gradients sooner and takes a core from the threads",
    ),
)
