"""The profile of the best plan: what its ranks tell together, and in which words it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from machines import machine
from tuner.fakes import SMALL, FakeKeepingRunner, truthful

import cputune
from cputune.knobs.record import LeftOut
from cputune.layout import guide_plan
from cputune.report.show import profile_lines
from cputune.result import Measured, Profile, Result, Speedup, Throughput, host_fingerprint
from cputune.steps import Crashed, Step
from cputune.tuner.events import Said
from cputune.tuner.profiling import of_ranks, profile_of_living
from cputune.workload import Workload

PLAN = guide_plan(machine(cores_per_socket=2))


def told(masks: float, products: float, **more: Any) -> dict[str, Any]:
    shares = {
        "matrix products": products,
        "dropout masks": masks,
        "the rest": 1 - products - masks,
    }
    return {
        "steps": 4, "seconds": 2.0, "shares": shares, "gflops": 150.0, "limit_gflops": 400.0,
        "dtype": "bfloat16", **more,
    }  # fmt: skip


def profile() -> Profile:
    found = of_ranks(PLAN, [told(0.2, 0.5), told(0.3, 0.4, seconds=2.4)])
    assert found is not None
    return found


def result(profile: Profile | None, *left_out: str) -> Result:
    facts = machine(cores_per_socket=2)
    rate = Throughput(median=2.0, low=1.9, high=2.1)
    measured = Measured(plan=PLAN, samples_per_second=rate)
    return Result(
        host=host_fingerprint(facts),
        versions={},
        workload=Workload.from_recipe("bert-mini"),
        baseline=measured,
        best=measured,
        speedup=Speedup(ratio=1.0, low=0.9, high=1.1),
        profile=profile,
        left_out=tuple(LeftOut(what=what, why="asked for") for what in left_out),
        trials=(),
    )


def test_ranks_share_their_time_and_add_their_products() -> None:
    found = profile()
    assert list(found.shares) == ["matrix products", "dropout masks", "the rest"]
    assert found.shares["dropout masks"] == pytest.approx(0.25)
    assert (found.step_seconds, found.gflops, found.limit_gflops) == (0.6, 300.0, 800.0)


def test_products_that_one_rank_does_not_know_are_not_known() -> None:
    found = of_ranks(PLAN, [told(0.2, 0.5), told(0.2, 0.5, gflops=None)])
    assert found is not None
    assert found.gflops is None
    assert next(profile_lines(result(found))).endswith("is not known: IPEX tells none")


def test_it_is_said_in_words_and_percent_and_held_against_the_limit() -> None:
    assert tuple(profile_lines(result(profile()))) == (
        "matrix products of the best plan: 300 GFLOP/s over the whole step, 38 % of the 800 that "
        "its cores reach in bf16",
    )
    assert tuple(profile_lines(result(None))) == ()


def test_a_knob_that_would_help_is_named_where_it_could_be_asked_for() -> None:
    assert [*profile_lines(result(profile(), "dropout"))][-1].startswith("--fix dropout=bytes")
    little = replace(profile(), shares={"dropout masks": 0.01, "the rest": 0.99})
    assert not any("--fix" in line for line in profile_lines(result(little, "dropout")))


def test_a_study_profiles_its_best_plan_once_and_says_so() -> None:
    events: list[object] = []
    runner = FakeKeepingRunner(truthful())
    result = cputune.tune(
        SMALL.workload, facts=SMALL.facts, runner=runner, budget=4, on_event=events.append
    )
    assert result.profile is not None
    assert result.profile.plan == result.best.plan
    said = [event.text for event in events if isinstance(event, Said)]
    assert sum("where the time" in text for text in said) == 1


class FakeFailing:
    """Processes that die while they are profiled."""

    def turn(self, steps: int) -> Sequence[Step]:
        raise NotImplementedError

    def profile(self) -> Sequence[Mapping[str, Any]]:
        raise Crashed("a rank died")

    def close(self) -> None:
        pass


def test_processes_that_fail_have_no_profile() -> None:
    assert profile_of_living(FakeFailing(), PLAN) is None
