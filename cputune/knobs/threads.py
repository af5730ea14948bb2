"""The knob ``threads``: how many OpenMP threads a rank computes with, one on each core."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from cputune import cpulist
from cputune.knobs.record import Effect, Knob, Shown, State, whole_number

if TYPE_CHECKING:
    from cputune.plan import Plan

ALL = "all"
"""A thread on each core that the rank has, and that no oneCCL worker takes."""


def _cpus(plan: Plan, local_rank: int) -> str:
    return cpulist.render(plan.cpus[local_rank % len(plan.cpus)])


def _affinity(plan: Plan, state: State) -> str | None:
    seen = state.get("affinity")
    return None if seen is None else cpulist.render(seen)


def _as_seen(plan: Plan, state: State) -> Plan:
    return replace(plan, threads_per_process=state.get("threads") or plan.threads_per_process)


THREADS = Knob(
    name="threads",
    summary="OpenMP threads of a rank, each on a core of its own",
    today=ALL,
    parse=whole_number("threads", least=1, also=(ALL,)),
    variables=lambda plan: {"OMP_NUM_THREADS": str(plan.threads_per_process)},
    shown=(
        Shown(
            what="threads",
            expected=lambda plan, local_rank: plan.threads_per_process,
            seen=lambda plan, state: state.get("threads"),
        ),
        Shown(what="affinity", expected=_cpus, seen=_affinity, by_cpu_number=True),
    ),
    as_seen=_as_seen,
    words=lambda plan: f"{plan.processes_per_node} × {plan.threads_per_process} threads",
    effect=Effect(
        own=0.15,
        within={"ranks": 0.3},
        feature=lambda plan, at: math.log2(at.busy_cores),
        scale=1.5,
        source="assumed: the best thread count of one rank count is seldom that of another, and "
        "two layouts that use all cores differ by up to a third (a table of two cores: 9.3 "
        "samples/s for 1 × 2 threads, 6.9 for 2 × 1)",
    ),
)
