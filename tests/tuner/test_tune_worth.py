"""What each change is worth, from today's launch to the best plan."""

from __future__ import annotations

import math

import pytest
from machines import MACHINES, SEEN_WARMUP, Machine, Model, machine, simulated

import cputune
from cputune.result import Result
from cputune.tuner.changes import LAYOUT, changes
from cputune.tuner.confirmation import on_the_way

SMALL = simulated(
    "small, with tcmalloc",
    machine(cores_per_socket=2, libraries=("tcmalloc",)),
    Model(work=2.0, bandwidth=2.0),
    warmup=SEEN_WARMUP,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=SMALL.runner(0))


@pytest.mark.parametrize("of", MACHINES, ids=lambda of: of.name)
def test_the_way_leads_to_the_best_plan_one_knob_after_another(of: Machine) -> None:
    space = cputune.search_space(of.facts, of.workload)
    best = min(space.plans(), key=of.seconds)
    way = changes(space, space.baseline, best)
    assert way[-1].plan == best
    knobs = [change.knob for change in way]
    assert len(knobs) == len(set(knobs))
    assert knobs[0] == LAYOUT
    for change, before in zip(way[1:], way, strict=False):
        one, other = space.values[change.plan], space.values[before.plan]
        assert [name for name in one if one[name] != other[name]] == change.knob.split(", ")


def test_where_the_cores_stay_the_same_the_layout_is_no_change() -> None:
    space = cputune.search_space(SMALL.facts, SMALL.workload)
    best = next(
        plan
        for plan in space.plans()
        if (plan.processes_per_node, plan.precision, plan.allocator) == (1, "bf16", "tcmalloc")
    )
    assert [change.knob for change in changes(space, space.baseline, best)] == [
        "precision",
        "allocator",
    ]


def test_the_changes_multiply_to_the_whole(result: Result) -> None:
    assert len(result.worth) > 1
    product = math.prod(change.speedup.ratio for change in result.worth)
    assert product == pytest.approx(result.speedup.ratio, rel=0.1)
    assert [change.value for change in result.worth if change.knob == "precision"] == ["bf16"]


def test_each_is_worth_what_it_is(result: Result) -> None:
    space = cputune.search_space(SMALL.facts, SMALL.workload)
    before = space.baseline
    for change, step in zip(result.worth, changes(space, before, result.best.plan), strict=True):
        truth = SMALL.seconds(before) / SMALL.seconds(step.plan)
        assert 0.97 * change.speedup.low <= truth <= 1.03 * change.speedup.high
        before = step.plan


def test_where_memory_does_not_hold_all_it_is_left_out() -> None:
    space = cputune.search_space(SMALL.facts, SMALL.workload)
    best = min(space.plans(), key=SMALL.seconds)
    assert len(on_the_way(space, space.baseline, 3, best)) == 2
    assert on_the_way(space, space.baseline, 2, best) == ()
