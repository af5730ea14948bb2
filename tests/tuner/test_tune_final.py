"""Who is measured again at the end of a study, and against what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat

import pytest
from tuner.fakes import PLANS, SMALL, FakeLife, FakeRunner, Script, measuring

import cputune
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, TIME_UP, State, Trial
from cputune.steps import Crashed, NoMeasurement, Step
from cputune.tuner.confirmation import confirm_best, may_be_the_best
from cputune.tuner.events import ConfirmStarted
from cputune.tuner.measuring import Findings

SPACE = cputune.search_space(SMALL.facts, SMALL.workload)
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
    deviation: float = 0.01,
    room: int = 9,
    script: Script = always,
    alive: bool = True,
    seconds: float | None = None,
    start_seconds: float = 0.0,
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
        start_seconds=start_seconds,
    )
    belief = {TODAY: (1.0, deviation)} | {
        plan: (mean, deviation) for plan, mean in zip(PLANS, believed, strict=True)
    }
    runner = FakeEither(script) if alive else FakeRunner(script)
    confirm_best(among, SPACE, belief, runner, lambda: nullcontext(runner))
    return findings, told


ALL = [trial(TODAY), *map(trial, PLANS)]


class TestWho:
    def test_four_at_most_that_may_be_the_fastest_the_best_of_them_first(self) -> None:
        findings, told = confirmed(*ALL, believed=(0.05, 0.04, 0.03, 0.02, 0.01, 0.0))
        assert told == [TODAY, *PLANS[:1:-1]]
        assert findings.baseline is not None
        assert (findings.baseline.plan, findings.baseline.role) == (TODAY, "baseline")
        assert [rival.plan for rival in findings.rivals] == PLANS[:1:-1]
        assert {rival.role for rival in findings.rivals} == {"candidate"}

    @pytest.mark.parametrize(
        ("best", "behind", "deviation", "rivals"),
        [
            (0, 0.09, 0.01, 2),
            (0, 0.1, 0.01, 1),
            (0, 0.15, 0.08, 2),
            (0, 0.16, 0.08, 1),
            (-2, 0.09, 0.01, 2),
            (-2, 0.5, 0.01, 1),
        ],
    )
    def test_those_a_tenth_or_two_deviations_behind_may_not(
        self, best: float, behind: float, deviation: float, rivals: int
    ) -> None:
        believed = (best, best + behind, 9, 9, 9, 9)
        findings, _ = confirmed(*ALL, believed=believed, deviation=deviation)
        assert len(findings.rivals) == rivals

    def test_where_a_start_takes_long_none_is_made_for_what_each_change_is_worth(self) -> None:
        best_last = (0.05, 0.04, 0.03, 0.02, 0.01, 0.0)
        findings, told = confirmed(*ALL, believed=best_last, start_seconds=38.0)
        assert told == [TODAY, *PLANS[:1:-1]]
        assert findings.worth == ()
        assert findings.notes[0].startswith("A start takes 38 s, so no plan was started")
        _, told = confirmed(*ALL, believed=best_last, start_seconds=38.0, alive=False)
        assert told == [TODAY, PLANS[5]], "rounds start them anew"

    def test_no_more_than_memory_holds(self) -> None:
        _, told = confirmed(*ALL, room=3)
        assert len(told) == 3
        findings, told = confirmed(*ALL, room=2)
        assert len(told) == 2
        assert findings.turns

    def test_two_in_rounds_where_there_is_no_most_alive_one_beside_today(self) -> None:
        findings, told = confirmed(*ALL, room=1, believed=(0, 1, 2, 3, 4, 5))
        assert told == [TODAY, *PLANS[:2]]
        assert (findings.turns, findings.baseline and findings.baseline.blocks) == (0, [0, 1])

    def test_two_in_rounds_where_the_runner_runs_one_at_a_time(self) -> None:
        findings, told = confirmed(*ALL, alive=False, believed=(5, 4, 3, 2, 1, 0))
        assert told == [TODAY, PLANS[5], PLANS[4]]
        assert findings.turns == 0

    @pytest.mark.parametrize(
        "trials",
        [[], [trial(TODAY)], [trial(PLANS[0])], [trial(TODAY), trial(PLANS[0], kind="crashed")]],
    )
    def test_nobody_where_there_is_nothing_to_compare(self, trials: list[Trial]) -> None:
        findings, told = confirmed(*trials)
        assert (told, findings.rivals) == ([], [])


@pytest.mark.parametrize(
    ("state", "reason", "steps", "may"),
    [
        (COMPLETED, None, 0, True),
        (FAILED, None, 9, False),
        (PRUNED, "it has lost", 9, False),
        (PRUNED, TIME_UP, 5, True),  # warm-up 2, delayed 1: two are level
        (PRUNED, TIME_UP, 4, False),
    ],
)
def test_a_trial_that_did_not_lose_is_worth_a_closer_look(
    state: State, reason: str | None, steps: int, may: bool
) -> None:
    one = Trial(
        number=0,
        plan=PLANS[0],
        state=state,
        reason=reason,
        steps=steps,
        warmup_steps=2,
        delayed_steps=1,
    )
    assert may_be_the_best(one) is may
    assert bool(confirmed(trial(TODAY), one)[1]) is may


class TestAgainstWhat:
    def test_the_first_plan_that_ran_stands_in_for_a_launch_that_does_not(self) -> None:
        findings, told = confirmed(trial(TODAY, kind="crashed"), *ALL[2:4])
        assert findings.notes == [
            "The launch of today does not run (crashed: no reason given); the speed-up is over "
            f"{PLANS[1].describe()} instead."
        ]
        assert told == [PLANS[1], PLANS[2]]

    def test_one_that_others_delayed_runs_all_the_same(self) -> None:
        findings, told = confirmed(trial(TODAY, kind="contended"), *ALL[1:3])
        assert (findings.notes, told[0]) == ([], TODAY)


def test_scripts_too_short_for_turns_are_measured_in_rounds() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        yield from [Step(1.0 if plan == TODAY else 0.5, 8)] * 3
        raise NoMeasurement("train.py ended")

    findings, _ = confirmed(*ALL, script=script, believed=(0, 0.01, 0.02, 0.03, 0.04, 0.05))
    assert [rival.plan for rival in findings.rivals] == PLANS[:2]
    assert findings.baseline is not None
    assert findings.turns == 0


def hardly_faster(plan: Plan, before: int) -> Iterable[Step]:
    return repeat(Step(1.0 if plan == TODAY else 0.97, 8))


def test_what_was_measured_before_it_fell_is_not_replaced() -> None:
    def script(plan: Plan, before: int) -> Iterable[Step]:
        if plan != TODAY and before:
            raise Crashed("rank 0 died")
        return hardly_faster(plan, before)

    findings, _ = confirmed(*ALL, script=script, alive=False)
    assert [rival.out for rival in findings.rivals] == ["crashed: rank 0 died"] * 2


@pytest.mark.parametrize(("seconds", "runs"), [(None, 10), (20.0, 6)])
def test_rounds_end_when_the_time_is_up(seconds: float | None, runs: int) -> None:
    findings, _ = confirmed(*ALL[:2], script=hardly_faster, alive=False, seconds=seconds)
    assert len(findings.confirm_runs) == runs
