"""The knobs that decide the CPUs of a plan: nodes, ranks, threads, SMT siblings.

``cputune.plans.layout`` lays plans out by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cputune.plans.knobs.record import Effect, Knob, Shown
from cputune.plans.plan import Plan
from cputune.text import cpulist

# A thread on each core of the rank that no oneCCL worker uses.
ALL = "all"

_BY_THEIR_CPUS = "the CPUs that each rank may run on show it"


def node_counts(hosts: int) -> Sequence[int]:
    """Which numbers of hosts are tried: 1, 2, 4, …, and all."""
    powers = []
    for power in range(hosts.bit_length()):
        if 1 << power < hosts:
            powers.append(1 << power)
    return (*powers, max(1, hosts))


NODES = Knob(
    name="nodes",
    summary="how many of the hosts of tune --hosts take part",
    values=(1,),
    least=1,
    keeps="mathematics",
    unseen="the ranks are counted, and each is started on the host that the plan says",
    effect=Effect(
        size=0.35,
        within={"ranks": 0.1},
        feature=lambda plan, at: math.log2(plan.nodes),
        scale=1.5,
        expected=lambda facts, plan: 0.2 * math.log2(plan.nodes),
        source="assumed: adding gradients over a network costs part of the "
        "gain of a second node, or more than all of it",
    ),
)

RANKS = Knob(
    name="ranks",
    summary="training processes on each machine; together they compute one global batch",
    values=(1,),
    least=1,
    keeps="mathematics",
    # accelerate >= 1.13 trains every rank alone without it (huggingface/accelerate#3883).
    variables=lambda plan: {"ACCELERATE_USE_CPU": "true"},
    shown=(Shown(what="world size", key="world_size", expected=lambda plan, _: plan.world_size),),
    effect=Effect(
        size=0.15,
        feature=lambda plan, at: math.log2(plan.processes_per_node),
        scale=1.5,
        source="assumed: one rank per NUMA node instead of one over all gains about 15 %",
    ),
)


def _cpus(plan: Plan, local_rank: int) -> str:
    return cpulist.render(plan.cpus[local_rank % len(plan.cpus)])


THREADS = Knob(
    name="threads",
    summary="OpenMP threads of a rank, each on its own core",
    values=(ALL,),
    least=1,
    keeps="numbers",
    variables=lambda plan: {"OMP_NUM_THREADS": str(plan.threads_per_process)},
    shown=(
        Shown(what="threads", key="threads", expected=lambda plan, _: plan.threads_per_process),
        Shown(
            what="affinity",
            key="affinity",
            expected=_cpus,
            read=lambda plan, cpus: cpulist.render(cpus),
            by_cpu_number=True,
        ),
    ),
    as_seen=lambda plan, state: replace(
        plan, threads_per_process=state.get("threads") or plan.threads_per_process
    ),
    description=lambda plan: plan.layout_words(),
    effect=Effect(
        size=0.15,
        within={"ranks": 0.3},
        feature=lambda plan, at: math.log2(at.busy_cores),
        scale=1.5,
        source="assumed: the best thread count of one rank count is seldom that of another, and "
        "two layouts that use all cores differ by up to a third (a table of two cores: 9.3 "
        "samples/s for 1 × 2 threads, 6.9 for 2 × 1)",
    ),
)

SMT = Knob(
    name="smt",
    summary="whether the threads of a rank also use the SMT siblings of its cores",
    values=(False, True),
    keeps="numbers",
    unseen=_BY_THEIR_CPUS,
    effect=Effect(
        size=0.12,
        within={"layout": 0.08},
        label=lambda plan, at: at.on_siblings,
        source="assumed: one thread is enough for the matmuls of "
        "a core, so siblings cost or gain a tenth",
    ),
)
