"""Two results compared: their plans run side by side here, or nothing is said of speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from golden_texts import Golden
from tuner.fakes import SMALL, FakeKeepingRunner, FakeRunner, alike, steady, truthful, tune

import cputune
from cputune import Comparison, Plan, Result, Step, Workload
from cputune.records.shared_texts import slower_beyond
from cputune.records.steps import Crashed, NoMeasurement


@cache
def tuned() -> Result:
    return tune(FakeRunner(truthful()))


def of(plan: Plan) -> Result:
    """A result whose best plan is this one."""
    why = {"speedup": None, "not_compared": "it is of a test"}
    best = replace(tuned().best, plan=plan)
    return replace(tuned(), best=best, worth=(), profile=None, **why)


def plans() -> tuple[Plan, Plan]:
    """The slowest and the fastest plan that ran."""
    ran = [t.plan for t in tuned().trials if not t.plan.as_found and t.state != "failed"]
    ranked = sorted(ran, key=SMALL.seconds)
    return ranked[-1], ranked[0]


def compared(before: Result, after: Result | None, runner: Any = None, **more: Any) -> Comparison:
    runner = runner or FakeKeepingRunner(truthful())
    return cputune.compare(before, after, facts=SMALL.facts, runner=runner, **more)


def test_one_result_alone_is_compared_with_todays_launch() -> None:
    found = compared(tuned(), None)
    assert (found.before, found.after) == (tuned().baseline.plan, tuned().best.plan)
    assert found.speedup.significant


def test_one_plan_needs_no_measurement() -> None:
    runner = FakeKeepingRunner(truthful())
    found = compared(of(plans()[0]), of(plans()[0]), runner)
    assert found.is_same_plan
    assert found.speedup is None
    assert runner.begun == []


ELSEWHERE = {**tuned().host, "cpu": {**tuned().host["cpu"], "model_name": "another one"}}


@pytest.mark.parametrize(
    ("which", "changes", "why"),
    [
        (0, {"host": ELSEWHERE}, "the first was measured on another machine: processor another"),
        (1, {"host": ELSEWHERE}, "the second was measured on another machine: processor another"),
        (1, {"workload": Workload.from_recipe("gpt2-clm")}, "they trained different things"),
    ],
)
def test_what_cannot_run_here_is_not_measured(
    which: int, changes: dict[str, Any], why: str
) -> None:
    slow, fast = plans()
    runner = FakeKeepingRunner(truthful())
    results = [of(slow), of(fast)]
    results[which] = replace(results[which], **changes)
    found = compared(*results, runner)
    assert found.speedup is None
    assert why in str(found.not_compared)
    assert runner.begun == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cpus": ((0, 1, 7),)}, "needs CPUs that may not be used here: 7"),
        ({"nodes": 2}, "is for 2 nodes"),
    ],
)
def test_nor_is_a_plan_that_this_machine_does_not_hold(changes: dict[str, Any], why: str) -> None:
    slow, fast = plans()
    found = compared(of(slow), of(replace(fast, **changes)))
    assert found.speedup is None
    assert why in str(found.not_compared)


@pytest.mark.parametrize(("fails", "word"), [(0, "first"), (1, "second")])
def test_a_plan_that_fails_is_named_without_a_ratio(fails: int, word: str) -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        if plan == plans()[fails]:
            raise Crashed("rank 0 died")
        yield from steady(SMALL.seconds(plan))

    slow, fast = plans()
    for runner in (FakeKeepingRunner(script), FakeRunner(script)):
        found = compared(of(slow), of(fast), runner)
        assert found.speedup is None
        assert str(found.not_compared).startswith(f"the plan of the {word} failed: ")
        assert "rank 0 died" in str(found.not_compared)


def test_a_plan_that_fails_when_it_is_started_again_gives_no_ratio() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        if plan == plans()[1] and before:
            raise Crashed("rank 0 died")
        yield from steady(SMALL.seconds(plan))

    assert compared(*map(of, plans()), FakeKeepingRunner(script)).speedup is None


def test_others_who_compute_here_leave_no_ratio(golden: Golden) -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        seconds = SMALL.seconds(plan)
        return steady(seconds, delayed=seconds / 2)

    found = compared(*map(of, plans()), FakeKeepingRunner(script))
    assert found.speedup is None
    golden(str(found.not_compared))


def test_a_time_that_is_too_short_leaves_no_ratio(golden: Golden) -> None:
    found = compared(*map(of, plans()), max_time_seconds=SMALL.seconds(plans()[0]) * 4)
    assert found.speedup is None
    golden(str(found.not_compared))


def test_a_script_that_ends_too_soon_to_take_turns_is_measured_whole() -> None:
    def script(plan: Plan, before: int) -> Iterator[Step]:
        for _, step in zip(range(6), steady(SMALL.seconds(plan)), strict=False):
            yield step
        raise NoMeasurement("the script has trained to its end")

    assert compared(*map(of, plans()), FakeKeepingRunner(script)).speedup is not None


@pytest.mark.slow
def test_a_guard_against_5_percent_gives_no_false_alarm_beyond_its_doubt() -> None:
    """Of plans that are alike, on a machine that wanders and processes that differ by 3 %."""
    slow, fast = plans()
    alarms = 0
    for seed in range(40):
        found = compared(of(slow), of(fast), alike(seed, 0.5, wander=0.05, run_noise=0.03))
        alarms += slower_beyond(found.speedup, 0.05)
    assert alarms <= 1
