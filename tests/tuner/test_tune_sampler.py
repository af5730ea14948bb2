"""Which plan is tried next."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from machines import Model, machine, simulated
from rows import every_row

import cputune
from cputune import Plan, Workload
from cputune.plans.layout import baseline_plan
from cputune.tuner.sampler import LEAST_TRIALS, Belief, History, PlanSampler, SpeedModel

SMALL = simulated(
    "small, with tcmalloc",
    machine(cores_per_socket=2, libraries=("tcmalloc",)),
    Model(work=2.0, bandwidth=2.0),
)
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


def test_every_plan_is_proposed_once_and_then_there_are_no_more() -> None:
    past = history((TODAY, 0.0))
    sampler = PlanSampler(SPACE, past, seed=0)
    for number in range(len(PLANS)):
        assert sampler.next_plan() is not None
        plan = sampler.propose(number)
        assert plan is not None
        assert plan not in past.tried
        past.tried.add(plan)
    assert sampler.next_plan() is None
    assert sampler.propose(len(PLANS)) is None


def test_what_is_believed_follows_what_was_measured() -> None:
    past = history((TODAY, 0.0))
    sampler = PlanSampler(SPACE, past, seed=0)
    assert sampler.believe()[TODAY][0] == pytest.approx(0.0, abs=0.05)
    assert set(sampler.believe()) == {TODAY, *PLANS}
    past.plans.append(PLANS[0])
    past.logs.append(2.0)
    past.errors.append(0.02)
    mean, deviation = sampler.believe()[PLANS[0]]
    assert (mean, deviation) == (pytest.approx(2.0, abs=0.05), pytest.approx(0.02, abs=0.02))


def test_plans_like_the_fastest_are_proposed() -> None:
    one, other = (
        having(ranks=1, threads=2, precision="bf16", allocator="default")[:1],
        having(ranks=2, precision="bf16", allocator="default"),
    )
    fast = history((TODAY, 0.0), (one[0], -2.0), (other[0], 1.0))
    assert proposed(fast).processes_per_node == 1
    slow = history((TODAY, 0.0), (one[0], 1.0), (other[0], -2.0))
    assert proposed(slow).processes_per_node == 2


def test_a_value_that_plans_have_failed_with_is_put_off() -> None:
    ran = [(plan, 0.0) for plan in having(allocator="default")[:3]]
    assert proposed(history(*ran)).allocator == "tcmalloc"
    failed = tuple(having(allocator="tcmalloc")[:4])
    assert proposed(history(*ran, failed=failed)).allocator == "default"


def test_a_plan_runs_as_likely_as_the_least_likely_of_its_values() -> None:
    default, tcmalloc = having(ranks=1, threads=2, precision="bf16")
    failed, other = having(ranks=2, precision="fp32")
    sampler = PlanSampler(SPACE, history((default, 0.0), (tcmalloc, 0.0), failed=(failed,)), seed=0)
    # Two with no SMT ran and one failed; of the default allocator one each; never ran two ranks.
    assert sampler.chances([tcmalloc, default, other]) == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    sampler = PlanSampler(SPACE, history((default, 0.0), failed=(failed, other)), seed=0)
    assert sampler.chances([other]) == pytest.approx([1 / 3])
    assert PlanSampler(SPACE, history(), seed=0).chances([other]) == [1.0]


def test_a_clear_promise_is_not_left_to_the_seed() -> None:
    fast = having(ranks=1, threads=2, precision="bf16")
    past = history((TODAY, 0.0), (fast[0], -2.0), *((plan, 1.0) for plan in having(ranks=2)))
    assert {proposed(past, seed=seed) for seed in range(20)} == {fast[1]}


def test_equal_promises_are_distinguished_by_the_seed_and_the_trial() -> None:
    past = history()
    assert len({proposed(past, seed=seed) for seed in range(9)}) > 1
    assert len({proposed(past, number=number) for number in range(9)}) > 1
    assert len({proposed(past, number=3, seed=4) for _ in range(3)}) == 1


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
    ("ran", "died", "ranks", "fits"),
    [
        ([], [], 64, True),
        ([1, 2], [8, 16], 4, True),
        ([1, 2], [8, 16], 8, False),
        ([1, 2], [8, 16], 9, False),
        ([1], [1], 1, True),  # one died where another ran: that was not for their number
        ([1, 8], [4], 8, True),
        ([1, 8], [4], 9, False),
        ([], [4], 4, True),  # nothing ran: it may not have been for their number
    ],
)
def test_no_plan_has_as_many_ranks_as_one_that_died_of_memory(
    ran: list[int], died: list[int], ranks: int, fits: bool
) -> None:
    past = History(plans=[of_ranks(n) for n in ran], too_large=[of_ranks(n) for n in died])
    sampler = PlanSampler(SPACE, past, seed=0)
    assert sampler.fits(of_ranks(ranks)) is fits


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


def test_what_would_die_of_memory_is_not_proposed() -> None:
    one, two = having(ranks=1), having(ranks=2)
    past = history((one[0], 0.0), failed=(two[0],))
    past.tried = set(one)
    assert PlanSampler(SPACE, past, seed=0).propose(1) in two
    past.too_large = [two[0]]
    assert PlanSampler(SPACE, past, seed=0).propose(1) is None


def test_the_search_ends_if_no_trial_is_worth_its_time() -> None:
    slow = having(ranks=2)
    measured = [(plan, 2.0) for plan in slow] + [(plan, 0.0) for plan in having(ranks=1)[:-1]]
    past = history(*measured)
    past.logs = [log - 3.0 * (plan == measured[-1][0]) for plan, log in measured]
    sampler = PlanSampler(SPACE, past, seed=0)
    (left,) = [plan for plan in PLANS if plan not in past.tried]
    promise = float(sampler._promise([left])[0])
    assert promise < 0.003
    assert len(past.tried) >= LEAST_TRIALS == 7
    assert sampler.propose(1) is None
    past.tried = set(list(past.tried)[:6])
    assert sampler.propose(1) is not None  # after six trials nobody gives up


def test_what_a_history_says_is_worked_out_once() -> None:
    history = History()
    sampler = PlanSampler(SPACE, history, seed=0)
    with mock.patch.object(SpeedModel, "believe", autospec=True) as believe:
        believe.side_effect = lambda *given: Belief(mean=np.zeros(99), deviation=np.ones(99))
        for plan in PLANS[:2]:
            history.plans.append(plan)
            history.logs.append(0.0)
            history.errors.append(0.1)
            sampler.believe()
            sampler.propose(2)
    assert believe.call_count == 2


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
