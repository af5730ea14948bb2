"""The profile of the best plan: what its ranks tell together, and in which words it is said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from machines import TODAY, machine
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune.inside import where_time_goes
from cputune.knobs import KNOBS
from cputune.knobs.record import LeftOut
from cputune.layout import guide_plan
from cputune.plan import Plan
from cputune.report.show import profile_lines
from cputune.result import Measured, Profile, Result, Speedup, Throughput, host_fingerprint
from cputune.steps import Crashed, Step
from cputune.tuner.events import Said
from cputune.tuner.model import SpeedModel
from cputune.tuner.profiling import of_ranks, profile_of
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


class FakeProfiler:
    """A runner that tells this of a plan, or fails."""

    def __init__(self, *ranks: Mapping[str, Any]) -> None:
        self.ranks = ranks

    def steps(self, plan: Plan) -> Iterator[Step]:
        return iter(())

    def profile(self, plan: Plan) -> Sequence[Mapping[str, Any]]:
        if not self.ranks:
            raise Crashed("a rank died")
        return self.ranks


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


def test_a_run_that_fails_gives_none() -> None:
    assert profile_of(FakeProfiler(), PLAN, lambda: 60.0) is None
    assert profile_of(FakeProfiler(told(0.2, 0.5)), PLAN, lambda: 60.0) is not None


def test_it_is_said_in_words_and_percent_and_held_against_the_limit() -> None:
    assert tuple(profile_lines(result(profile()))) == (
        "matrix products of the best plan: 300 GFLOP/s over the whole step, 38 % of the 800 that "
        "its cores reach in bf16",
    )
    assert tuple(profile_lines(result(None))) == ()


def test_a_knob_that_would_help_is_named_where_it_could_be_asked_for() -> None:
    assert [*profile_lines(result(profile(), "dropout"))][-1].startswith("--knobs +dropout draws")
    little = replace(profile(), shares={"dropout masks": 0.01, "the rest": 0.99})
    assert not any("--knobs" in line for line in profile_lines(result(little, "dropout")))


class FakeStudyRunner(FakeRunner):
    """A small machine whose ranks tell where their time goes."""

    profiled: tuple[Plan, ...] = ()

    def profile(self, plan: Plan) -> Sequence[Mapping[str, Any]]:
        self.profiled = (*self.profiled, plan)
        return [told(0.2, 0.5)]


def test_a_study_profiles_its_best_plan_once_and_says_so() -> None:
    runner, events = FakeStudyRunner(truthful()), []
    result = cputune.tune(
        SMALL.workload, facts=SMALL.facts, runner=runner, budget=4, on_event=events.append
    )
    assert runner.profiled == (result.best.plan,)
    assert result.profile is not None
    assert result.profile.plan == result.best.plan
    assert any("where the time" in event.text for event in events if isinstance(event, Said))
    assert (
        cputune.tune(SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful())).profile
        is None
    )


class FakeLooked(FakeRunner):
    """A runner that also tells where the time goes, and remembers of which plan."""

    def __init__(self, masks: float) -> None:
        super().__init__(truthful())
        self.masks = masks
        self.looked: list[Plan] = []

    def profile(self, plan: Plan) -> Sequence[Mapping[str, Any]]:
        self.looked.append(plan)
        return [told(self.masks, 0.5)]


AMD = machine(cores_per_socket=2, packages=TODAY)
AMD = replace(AMD, cpu=replace(AMD.cpu, vendor="AuthenticAMD"))


def first_proposal(runner: FakeRunner, *knobs: str) -> Plan:
    """What is tried after today's launch and the plans of the guides."""
    result = cputune.tune(SMALL.workload, facts=AMD, runner=runner, knobs=knobs or None, budget=9)
    return next(trial.plan for trial in result.trials if trial.origin == "sampler")


def test_what_the_profile_of_todays_launch_shows_is_tried_first() -> None:
    runner = FakeLooked(masks=0.4)
    assert first_proposal(runner, "+dropout").setting("dropout") == "bytes"
    assert runner.looked[0].as_found


def test_what_a_knob_is_believed_to_gain_follows_from_what_it_takes_away() -> None:
    torch, masks = PLAN, PLAN.with_setting("dropout", "bytes")

    def believed(shares: Mapping[str, float]) -> tuple[float, float]:
        belief = SpeedModel(AMD, [torch, masks], shares).believe([0], [0.0], [0.01])
        return float(belief.mean[1] - belief.mean[0]), float(belief.deviation[1])

    usual, usual_deviation = believed({})
    much, _ = believed({"dropout masks": 0.4, "the rest": 0.6})
    little, little_deviation = believed({"dropout masks": 0.0, "the rest": 1.0})
    assert usual == pytest.approx(-0.1, abs=0.01)
    assert much == pytest.approx(math.log(1 - 0.8 * 0.4), abs=0.01)
    assert little == pytest.approx(0.0, abs=0.01)
    assert little_deviation < 0.3 * usual_deviation


def test_nobody_looks_where_no_knob_hangs_on_it() -> None:
    runner = FakeLooked(masks=0.4)
    cputune.tune(SMALL.workload, facts=AMD, runner=runner, knobs=["precision"], budget=4)
    assert not any(plan.as_found for plan in runner.looked)


def test_the_kinds_that_knobs_answer_are_those_of_a_profile() -> None:
    kinds = [value for name, value in vars(where_time_goes).items() if name.isupper()]
    answered = [knob.effect.answers for knob in KNOBS if knob.effect.answers is not None]
    assert answered
    for kind, part in answered:
        assert kind in (*kinds, "padding", "padding within batches"), (
            "what the ranks of today show, beside the profile"
        )
        assert 0 < part < 1
