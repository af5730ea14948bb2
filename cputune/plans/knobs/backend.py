"""How ranks exchange data: the knobs ``backend`` and ``ccl_workers``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cputune.plans.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    Shown,
    unless,
    variable_shown,
)
from cputune.plans.plan import Plan
from cputune.plans.values import BACKENDS
from cputune.stack import ccl_use, versions_of
from cputune.text import cpulist
from cputune.text.plain import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.host.facts import HostFacts


def _backends(facts: HostFacts, ask: Ask) -> Choices:
    """gloo; also ccl if these versions support it and Intel MPI is installed."""
    reason = ccl_use(versions_of(facts), framework=ask.framework)
    if reason is None and not any(launcher.dialect == "intelmpi" for launcher in facts.launchers):
        reason = "oneCCL needs mpirun of Intel MPI, which was not found"
    if ask.fixed.get("backend") == "mpi":
        no_mpi = "trials use gloo or ccl: torch from PyPI is built without MPI"
        return unless(no_mpi, "backend=mpi", "gloo")
    return unless(reason, "backend=ccl", "gloo", "ccl")


def _backend_argument(plan: Plan, local_rank: int = 0) -> str | None:
    """The value of ``--ddp_backend``; None for one process, for which it raises ValueError
    (``TrainingArguments._setup_devices``).
    """
    if plan.world_size > 1:
        return plan.backend
    return None


BACKEND = Knob(
    name="backend",
    summary="what adds the gradients of the ranks: gloo, or oneCCL (ccl) if it is installed",
    values=BACKENDS,
    keeps="mathematics",
    offers=_backends,
    argument="ddp_backend",
    argument_value=_backend_argument,
    shown=(
        Shown(
            what="backend",
            key="backend",
            expected=_backend_argument,
            unknown="the rank has no process group",
        ),
    ),
    description=_backend_argument,
    effect=Effect(
        size=0.1,
        within={"ranks": 0.1},
        label=lambda plan, at: _backend_argument(plan),
        source="measured with two ranks of a 4-layer BERT in bf16: 12.5 samples/s over ccl, 11.0 "
        "over "
        "gloo (log 0.13); the share of the all-reduce grows with the ranks",
    ),
)


def _worker_variables(plan: Plan) -> Mapping[str, str]:
    if plan.backend != "ccl" or not plan.ccl_workers:
        return {}
    variables = {"CCL_WORKER_COUNT": str(plan.ccl_workers)}
    workers = []
    for cpus in plan.ccl_cpus:
        for cpu in cpus:
            workers.append(str(cpu))
    if workers:
        variables["CCL_WORKER_AFFINITY"] = ",".join(workers)
    return variables


def _number(plan: Plan, local_rank: int) -> int | None:
    if _backend_argument(plan) == "ccl":
        return plan.ccl_workers
    return None


def _cpus(plan: Plan, local_rank: int) -> str | None:
    if _number(plan, local_rank) is None or not plan.ccl_cpus:
        return None
    return cpulist.render(plan.ccl_cpus[local_rank % len(plan.ccl_cpus)])


def _workers(plan: Plan) -> str | None:
    if plan.world_size == 1 or not plan.ccl_workers:
        return None
    return count(plan.ccl_workers, "worker")


CCL_WORKERS = Knob(
    name="ccl_workers",
    summary="oneCCL's threads of a rank that send gradients, each on its own core",
    values=(0,),
    least=0,
    keeps="numbers",
    variables=_worker_variables,
    shown=(
        Shown(
            what="oneCCL workers",
            key="ccl_workers",
            expected=_number,
            read=lambda plan, workers: len(workers),
        ),
        Shown(
            what="CPUs of oneCCL workers",
            key="ccl_workers",
            expected=_cpus,
            read=lambda plan, workers: cpulist.render(workers),
            by_cpu_number=True,
        ),
        variable_shown("CCL_WORKER_COUNT", _worker_variables),
        variable_shown("CCL_WORKER_AFFINITY", _worker_variables, by_cpu_number=True),
    ),
    description=_workers,
    effect=Effect(
        size=0.08,
        within={"ranks": 0.08},
        part_of="backend",
        feature=lambda plan, at: math.log2(1 + plan.ccl_workers),
        source="assumed: another worker sends gradients sooner and takes a core from the threads",
    ),
)
