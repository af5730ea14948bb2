"""Which plan is tried next."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machines import Model, machine, simulated

import cputune
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.tuner.sampler import LEAST_TRIALS, History, PlanSampler

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


def of_ranks(count: int, batches: int | None = None) -> Plan:
    one = Plan(processes_per_node=count, threads_per_process=1, cpus=((0,),) * count)
    return one if batches is None else one.with_setting("accumulation", batches)


@pytest.mark.parametrize(
    ("ran", "died", "ranks", "chance"),
    [
        ([], [], 64, 1.0),  # no rank ran out of memory
        # Between 2 that ran and 8 that died each doubling is as likely as the next.
        ([1, 2], [8, 16], 4, 0.5),
        ([1, 2], [8, 16], 2, 1.0),
        ([1, 2], [8, 16], 1, 1.0),
        ([1, 2], [8, 16], 8, 0.001),
        ([1, 2], [8, 16], 9, 0.001),
        ([2, 8], [8], 4, 0.5),  # that they ran once tells nothing where they died once
        ([1], [1], 1, 0.5),  # one died where another ran: that was not for their number
        ([1, 8], [4], 8, 0.5),
        ([1], [1], 2, 0.001),
        # Nothing ran: as if half a rank had.
        ([], [4], 2, 1 / 3),
        ([], [4], 1, 2 / 3),
        ([], [4], 4, 0.5),
        ([], [4], 8, 0.25),
    ],
)
def test_how_likely_the_memory_suffices(
    ran: list[int], died: list[int], ranks: int, chance: float
) -> None:
    past = History(plans=[of_ranks(n) for n in ran], too_large=[of_ranks(n) for n in died])
    assert PlanSampler(SPACE, History(), seed=0).fits(of_ranks(ranks)) == 1.0
    sampler = PlanSampler(SPACE, History(), seed=0)
    sampler._history = past
    assert sampler.fits(of_ranks(ranks)) == pytest.approx(chance)


def test_what_a_rank_was_seen_to_hold_says_how_many_fit() -> None:
    gib = 1 << 30
    sampler = PlanSampler(SPACE, History(), seed=0)
    memory = replace(SPACE.facts.memory, available_bytes=50 * gib)
    sampler._space = replace(SPACE, facts=replace(SPACE.facts, memory=memory))
    # Of 50 GiB that were free 40 are counted on: two ranks of 15 GiB, and not three.
    sampler._history = History(too_large=[of_ranks(8)], rank_bytes=15 * gib)
    assert sampler.fits(of_ranks(4)) == pytest.approx(0.5)
    sampler._history.rank_bytes = 0
    assert sampler.fits(of_ranks(4)) == pytest.approx(1 / 4)


def test_the_fewer_batches_a_step_has_the_more_memory_they_need() -> None:
    sampler = PlanSampler(SPACE, History(), seed=0)
    past = sampler._history
    past.too_large = [of_ranks(4, 2)]
    assert sampler.fits(of_ranks(4, 4)) == 1.0  # smaller ones than those that died
    assert sampler.fits(of_ranks(4, 2)) < 1.0
    assert sampler.fits(of_ranks(4)) < 1.0
    for same, again in ((1, None), (None, 1)):  # one batch, said or not
        past.too_large = [of_ranks(4, same)]
        assert sampler.fits(of_ranks(4, again)) == 0.5
    past.too_large = [of_ranks(4, 2)]
    past.plans = [of_ranks(2, 4)]  # nothing is learnt of larger ones
    assert sampler.fits(of_ranks(2, 2)) == pytest.approx(1 / 3)
    past.plans = [of_ranks(2)]
    assert sampler.fits(of_ranks(2, 2)) == 1.0
    job = replace(SPACE.workload, accumulation=2)
    sampler._space = replace(SPACE, workload=job)  # the script's own two are those of no setting
    assert sampler.fits(of_ranks(4)) == 0.001
    past.too_large = [of_ranks(4, 3)]
    assert sampler.fits(of_ranks(4)) == 0.001
    past.too_large = [of_ranks(4)]
    assert sampler.fits(of_ranks(4, 3)) == 1.0


def test_what_would_die_of_memory_is_not_proposed() -> None:
    one, two = having(ranks=1), having(ranks=2)
    past = history((one[0], 0.0), failed=(two[0],))
    past.tried = set(one)
    assert PlanSampler(SPACE, past, seed=0).propose(1) in two
    past.too_large = [two[0]]
    assert PlanSampler(SPACE, past, seed=0).propose(1) is None


def test_a_plan_that_may_die_of_memory_promises_less() -> None:
    past = history((TODAY, 0.0))
    sampler = PlanSampler(SPACE, past, seed=0)
    one, two = having(ranks=1)[0], having(ranks=2)[0]
    before = sampler._promise([one, two])
    past.failed = [of_ranks(4)]
    past.too_large = [of_ranks(4)]
    chance = sampler.fits(two)
    assert 0 < chance < 1
    assert sampler._promise([one, two]) == pytest.approx(before * [1.0, chance])


def test_the_search_ends_where_no_trial_is_worth_its_time() -> None:
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


def test_a_little_promise_is_worth_a_trial() -> None:
    class Promising(PlanSampler):
        worth = 0.0031

        def _promise(self, plans: object) -> Any:
            return np.full(len(list(plans)), self.worth)  # type: ignore[call-overload]

    sampler = Promising(SPACE, history(*((plan, 0.0) for plan in PLANS[:7])), seed=0)
    assert sampler.propose(1) is not None
    sampler.worth = 0.0029
    assert sampler.propose(1) is None
