"""Who is measured again at the end of a study, and against what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest
from golden_texts import Golden
from machines import SEEN_WARMUP, Model, machine, simulated
from report.result_cases import tuned
from rows import every_row
from tuner.fakes import PLANS, SMALL, SPACE, FakeLife, FakeRunner, Script, measuring

import cputune
from cputune import ConfirmStarted, Plan, Result, Step, Trial
from cputune.plans.knobs.record import LeftOut
from cputune.plans.layout import baseline_plan, guide_plan
from cputune.records.result import COMPLETED, FAILED, Profile, Throughput
from cputune.records.steps import Crashed, NoMeasurement
from cputune.report.network_text import second_node_pays_from
from cputune.report.show import profile_lines
from cputune.tuner.finalists import confirm_best, on_the_way
from cputune.tuner.measuring import Findings
from cputune.tuner.profile import profile_of_ranks, profile_plan

TODAY = baseline_plan(SMALL.facts)
GIB = 1 << 30


class FakeEither(FakeRunner):
    """Its plans can live side by side, and one by one."""

    def living(self, plan: Plan) -> FakeLife:
        return FakeLife(self.steps(plan))


def always(plan: Plan, before: int) -> Iterable[Step]:
    return repeat(Step(1.0 if plan == TODAY else 0.5, 8))


def trial(plan: Plan, *, kind: str | None = None) -> Trial:
    held = ({"peak_bytes": GIB},)
    state = FAILED if kind else COMPLETED
    return Trial(number=0, plan=plan, state=state, kind=kind, observed=held)


def confirmed(
    *trials: Trial,
    believed: Sequence[float] = (0.0,) * 6,
    room: int = 9,
    script: Script = always,
    alive: bool = True,
    seconds: float | None = None,
) -> tuple[Findings, list[Plan]]:
    """The findings, and the plans of which it was said that they are measured."""
    findings = Findings(trials=list(trials))
    told: list[Plan] = []
    memory = replace(SMALL.facts.memory, available_bytes=int(room * GIB / 0.8) + 9)
    among = measuring(
        seconds,
        facts=replace(SMALL.facts, memory=memory),
        findings=findings,
        on_event=lambda e: told.extend(e.plans) if isinstance(e, ConfirmStarted) else None,
    )
    belief = {TODAY: (1.0, 0.01)}
    belief |= {plan: (mean, 0.01) for plan, mean in zip(PLANS, believed, strict=True)}
    runner = FakeEither(script) if alive else FakeRunner(script)
    confirm_best(among, SPACE, belief, runner, lambda: nullcontext(runner))
    return findings, told


ALL = [trial(TODAY), *map(trial, PLANS)]


class TestWho:
    def test_four_at_most_that_may_be_the_fastest_the_best_of_them_first(self) -> None:
        findings, told = confirmed(*ALL, believed=(0.05, 0.04, 0.03, 0.02, 0.01, 0.0))
        assert told == [TODAY, *PLANS[:1:-1]]
        assert (findings.baseline.plan, findings.baseline.role) == (TODAY, "baseline")
        assert [rival.plan for rival in findings.rivals] == PLANS[:1:-1]
        assert {rival.role for rival in findings.rivals} == {"candidate"}

    def test_no_more_than_memory_holds(self) -> None:
        _, told = confirmed(*ALL, room=3)
        assert len(told) == 3
        findings, told = confirmed(*ALL, room=2)
        assert len(told) == 2
        assert findings.turns

    @every_row(
        "trials",
        [[], [trial(TODAY)], [trial(PLANS[0])], [trial(TODAY), trial(PLANS[0], kind="crashed")]],
    )
    def test_no_one_if_there_is_nothing_to_compare(self, trials: list[Trial]) -> None:
        findings, told = confirmed(*trials)
        assert (told, findings.rivals) == ([], [])


def test_the_first_plan_that_ran_replaces_a_launch_that_does_not() -> None:
    findings, told = confirmed(trial(TODAY, kind="crashed"), *ALL[2:4])
    assert findings.notes == [
        "Your current launch does not run (crashed: no reason given); the speed-up is "
        f"relative to {PLANS[1].describe()}, the first plan that ran."
    ]
    assert told == [PLANS[1], PLANS[2]]


def test_scripts_too_short_for_turns_are_measured_in_rounds() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        yield from [Step(1.0 if plan == TODAY else 0.5, 8)] * 3
        raise NoMeasurement("train.py ended")

    findings, _ = confirmed(*ALL, script=script, believed=(0, 0.01, 0.02, 0.03, 0.04, 0.05))
    assert [rival.plan for rival in findings.rivals] == PLANS[:2]
    assert findings.baseline is not None
    assert findings.turns == 0


@pytest.mark.parametrize(("seconds", "runs"), [(None, 10), (20.0, 6)])
def test_rounds_end_when_the_time_is_up(seconds: float | None, runs: int) -> None:
    def hardly_faster(plan: Plan, before: int) -> Iterable[Step]:
        return repeat(Step(1.0 if plan == TODAY else 0.97, 8))

    findings, _ = confirmed(*ALL[:2], script=hardly_faster, alive=False, seconds=seconds)
    assert len(findings.confirm_runs) == runs


TCMALLOC = simulated(
    "small, with tcmalloc",
    machine(cores_per_socket=2, libraries=("tcmalloc",)),
    Model(work=2.0, bandwidth=2.0),
    warmup=SEEN_WARMUP,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return cputune.tune(TCMALLOC.workload, facts=TCMALLOC.facts, runner=TCMALLOC.runner(0))


def test_the_changes_multiply_to_the_whole(result: Result) -> None:
    assert len(result.worth) > 1
    product = math.prod(change.speedup.ratio for change in result.worth)
    assert product == pytest.approx(result.speedup.ratio, rel=0.1)
    (bf16,) = (change for change in result.worth if change.knob == "precision")
    assert bf16.value == "bf16"
    assert bf16.speedup.low > 1
    assert bf16.speedup.high < 1.5 * bf16.speedup.low, "one block is enough to say its worth"


def test_if_memory_does_not_hold_all_it_is_left_out() -> None:
    space = cputune.search_space(TCMALLOC.facts, TCMALLOC.workload)
    best = min(space.plans(), key=TCMALLOC.seconds)
    assert len(on_the_way(space, space.baseline, 3, best)) == 2
    assert on_the_way(space, space.baseline, 2, best) == ()


PLAN = guide_plan(machine(cores_per_socket=2))


def told(masks: float, products: float, **more: Any) -> dict[str, Any]:
    rest = 1 - products - masks
    shares = {"matrix products": products, "dropout masks": masks, "the rest": rest}
    known = {"steps": 4, "seconds": 2.0, "gflops": 150.0, "limit_gflops": 400.0}
    return {**known, "shares": shares, "dtype": "bfloat16", **more}


def profile() -> Profile:
    return profile_of_ranks(PLAN, [told(0.2, 0.5), told(0.3, 0.4, seconds=2.4)])


def test_ranks_share_their_time_and_add_their_products() -> None:
    found = profile()
    assert list(found.shares) == ["matrix products", "dropout masks", "the rest"]
    assert found.shares["dropout masks"] == pytest.approx(0.25)
    assert (found.step_seconds, found.gflops, found.limit_gflops) == (0.6, 300.0, 800.0)


def test_products_that_one_rank_does_not_know_are_not_known() -> None:
    found = profile_of_ranks(PLAN, [told(0.2, 0.5), told(0.2, 0.5, gflops=None)])
    assert found.gflops is None
    said = next(profile_lines(replace(tuned(), profile=found)))
    assert said.endswith("is not known: IPEX does not report them")


def test_it_is_said_in_words_and_percent_and_compared_with_the_limit(golden: Golden) -> None:
    golden(tuple(profile_lines(replace(tuned(), profile=profile()))))
    assert tuple(profile_lines(replace(tuned(), profile=None))) == ()


def test_a_knob_that_would_help_is_named_if_it_could_be_asked_for() -> None:
    result = replace(tuned(), left_out=(LeftOut(what="dropout", why="asked for"),))
    lines = list(profile_lines(replace(result, profile=profile())))
    assert lines[-1].startswith("--fix dropout=bytes")
    little = replace(profile(), shares={"dropout masks": 0.01, "the rest": 0.99})
    assert not any("--fix" in line for line in profile_lines(replace(result, profile=little)))


class FakeFailing(FakeLife):
    """Processes that die while they are profiled."""

    def profile(self) -> Sequence[Mapping[str, Any]]:
        raise Crashed("a rank died")


def test_processes_that_fail_have_no_profile() -> None:
    small = measuring()
    profile_plan(small, PLAN, FakeFailing(iter(())))
    assert small.findings.profiles == {PLAN: None}


def test_what_the_network_costs_by_host(golden: Golden) -> None:
    waits = {"alpha": 1.6, "beta": 0.8}
    ranks = [told(0.2, 0.5, host=host, reduce_seconds=waits[host]) for host in waits]
    found = profile_of_ranks(PLAN, ranks)
    assert found.wire_seconds == pytest.approx(0.2)
    assert found.reduce_seconds == pytest.approx({"alpha": 0.4, "beta": 0.2})
    golden(next(profile_lines(replace(tuned(), profile=found))))


def test_from_which_network_on_a_second_node_pays() -> None:
    one = replace(tuned().baseline, samples_per_second=Throughput(centre=16.0, low=15.0, high=17.0))
    job = replace(tuned().workload, global_batch_size=16, gradient_bytes=125_000_000)
    assert second_node_pays_from(job, one) == pytest.approx(2.0)  # 1 Gbit in half a second
    sparse = replace(job, touched_bytes=25_000_000)
    assert second_node_pays_from(sparse, one) == pytest.approx(0.4)
    assert second_node_pays_from(replace(job, gradient_bytes=None), one) is None
    assert second_node_pays_from(replace(job, framework="pytorch"), one) is None
