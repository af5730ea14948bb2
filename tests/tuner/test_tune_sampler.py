"""Which plan is tried next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from machines import Model, machine, simulated

import cputune
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.tuner.sampler import History, PlanSampler

SMALL = simulated(
    "small, with tcmalloc",
    machine(cores_per_socket=2, libraries=("tcmalloc",)),
    Model(work=2.0, bandwidth=2.0),
)
SPACE = cputune.search_space(SMALL.facts, SMALL.workload)
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


def test_every_plan_is_proposed_once_and_then_there_are_none() -> None:
    past = history((TODAY, 0.0))
    sampler = PlanSampler(SPACE, past, seed=0)
    for number in range(len(PLANS)):
        assert sampler.left()
        plan = sampler.propose(number)
        assert plan is not None
        assert plan not in past.tried
        past.tried.add(plan)
    assert not sampler.left()
    assert sampler.propose(len(PLANS)) is None


def test_a_history_begins_with_nothing() -> None:
    begun = History()
    assert (begun.tried, begun.plans, begun.failed, begun.seconds) == (set(), [], [], 0)


def test_what_others_measure_now_is_passed_over() -> None:
    past = history((TODAY, 0.0))
    sampler = PlanSampler(SPACE, past, seed=0)
    first = sampler.next_plan()
    past.claimed = {first}
    assert sampler.next_plan() not in (None, first)
    past.claimed = set(PLANS)
    assert not sampler.left()
    past.claimed = frozenset()
    assert sampler.next_plan() == first


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


def test_one_measurement_is_believed() -> None:
    sampler = PlanSampler(SPACE, history((PLANS[0], 3.0)), seed=0)
    assert sampler.believe()[PLANS[0]][0] == pytest.approx(3.0, abs=0.05)


def test_equal_promises_are_told_apart_by_the_seed_and_the_trial() -> None:
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
