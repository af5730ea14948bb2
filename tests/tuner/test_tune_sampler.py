"""Which plan is tried next."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from machines import Model, machine, simulated
from rows import every_row

import cputune
from cputune import Plan, Workload
from cputune.plans.layout import baseline_plan
from cputune.tuner.sampler import History, PlanSampler

FACTS = machine(cores_per_socket=2, libraries=("tcmalloc",))
SMALL = simulated("small, with tcmalloc", FACTS, Model(work=2.0, bandwidth=2.0))
VARIED = ("ranks", "threads", "precision", "allocator")
SPACE = cputune.search_space(SMALL.facts, SMALL.workload, knobs=VARIED)
TODAY = baseline_plan(SMALL.facts)
PLANS = list(SPACE.plans())


def having(**values: object) -> list[Plan]:
    return [plan for plan, of in SPACE.values.items() if values.items() <= of.items()]


def history(*measured: tuple[Plan, float], failed: tuple[Plan, ...] = ()) -> History:
    plans, logs = zip(*measured, strict=True) if measured else ((), ())
    return History(
        tried={*plans, *failed},
        plans=list(plans),
        logs=list(logs),
        errors=[0.02] * len(plans),
        failed=list(failed),
    )


def proposed(past: History, number: int = 1, seed: int = 0) -> Plan:
    plan = PlanSampler(SPACE, past, seed=seed).propose(number)
    assert plan is not None
    return plan


def test_a_value_that_plans_have_failed_with_is_put_off() -> None:
    ran = [(plan, 0.0) for plan in having(allocator="default")[:3]]
    assert proposed(history(*ran)).allocator == "tcmalloc"
    failed = tuple(having(allocator="tcmalloc")[:4])
    assert proposed(history(*ran, failed=failed)).allocator == "default"


def test_optuna_is_given_the_values_of_the_plan_unless_they_are_fixed() -> None:
    past = history((TODAY, 0.0))
    sampler = PlanSampler(SPACE, past, seed=0)

    def relative(**attributes: object) -> dict[str, Any]:
        trial: Any = SimpleNamespace(system_attrs=attributes)
        return sampler.sample_relative(None, trial, {})

    assert relative() == SPACE.values[proposed(past, number=len(past.tried))]
    assert relative(fixed_params={"ranks": 1}) == {}
    past.tried.update(PLANS)
    assert relative() == {}


def of_ranks(count: int, batches: int | None = None) -> Plan:
    one = Plan(processes_per_node=count, threads_per_process=1, cpus=((0,),) * count)
    return one if batches is None else one.with_setting("accumulation", batches)


@every_row(
    ("died", "ran", "plan", "fits"),
    [
        ((4, 2), None, (4, 4), True),  # smaller ones than those that died
        ((4, 2), None, (4, 2), False),
        ((4, 2), None, (4, None), False),
        ((4, 1), None, (4, None), False),  # one batch, said or not
        ((4, None), None, (4, 1), False),
        ((2, 2), (2, 4), (2, 2), False),  # nothing is learnt of larger ones
        ((2, 2), (2, None), (2, 2), True),
    ],
)
def test_the_fewer_batches_a_step_has_the_more_memory_they_need(
    died: tuple[int, int | None],
    ran: tuple[int, int | None] | None,
    plan: tuple[int, int | None],
    fits: bool,
) -> None:
    past = History(too_large=[of_ranks(*died)], plans=[of_ranks(*(ran or (1, 9)))])
    assert PlanSampler(SPACE, past, seed=0).fits(of_ranks(*plan)) is fits


def test_the_batches_of_the_script_are_those_of_no_setting() -> None:
    space = replace(SPACE, workload=replace(SPACE.workload, accumulation=2))
    past = History(too_large=[of_ranks(4, 3)], plans=[of_ranks(1, 9)])
    assert not PlanSampler(space, past, seed=0).fits(of_ranks(4))
    past.too_large = [of_ranks(4)]
    assert PlanSampler(space, past, seed=0).fits(of_ranks(4, 3))


def test_plans_with_ranks_astride_numa_nodes_come_last() -> None:
    facts = machine(sockets=2, cores_per_socket=48, nodes_per_socket=4, isa=("avx2",))
    job = replace(Workload.from_recipe("bert-mini"), global_batch_size=12)
    space = cputune.search_space(facts, job)
    history = History()
    proposed = []
    for number in range(len(space)):
        plan = PlanSampler(space, history, seed=0).propose(number)
        if plan is None:
            break
        proposed.append(plan)
        history.tried.add(plan)
        # The more ranks the faster, so those astride promise the most.
        history.plans.append(plan)
        history.logs.append(-math.log(plan.processes_per_node * plan.threads_per_process))
        history.errors.append(0.02)
    astride = [plan.processes_per_node in (6, 12) for plan in proposed]
    assert 6 in {plan.processes_per_node for plan in space.plans()}
    assert True in astride
    assert astride == sorted(astride)
