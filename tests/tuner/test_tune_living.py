"""Plans of trials that stay alive until the confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from tuner.fakes import PLANS, SMALL, FakeKeepingRunner, truthful

import cputune
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, PRUNED, Result, State, Trial
from cputune.steps import Step
from cputune.tuner.living import MOST_KEPT_ALIVE, LivingTrials, most_living
from cputune.tuner.reading import Run

GIB = 1 << 30
TODAY = baseline_plan(SMALL.facts)


@dataclass
class FakeStopped:
    """Processes that stand still, and tell when they are ended."""

    plan: Plan
    ended: list[Plan]

    def turn(self, steps: int) -> Sequence[Step]:
        return ()

    def close(self) -> None:
        self.ended.append(self.plan)


def alive_with(centers: dict[Plan, float], room: float = 100) -> tuple[LivingTrials, list[Plan]]:
    """Each holds a gibibyte."""
    memory = replace(SMALL.facts.memory, available_bytes=int(room * GIB / 0.8) + 9)
    alive, ended = LivingTrials(replace(SMALL.facts, memory=memory)), []
    for plan, center in centers.items():
        trial = Trial(number=0, plan=plan, state=COMPLETED, observed=({"peak_bytes": GIB},))
        alive.add(trial, Run(living=FakeStopped(plan, ended)), center)
    return alive, ended


def test_the_slowest_ends_where_too_many_are_alive_but_never_todays_launch() -> None:
    centers = {TODAY: 9.0} | dict(zip(PLANS, (0.0, 0.5, 0.2, 0.3, 0.1), strict=False))
    alive, ended = alive_with(centers)
    assert ended == [PLANS[1]]
    assert len(alive) == MOST_KEPT_ALIVE


@pytest.mark.parametrize(
    ("room", "needed", "ended"),
    [(3, 0, 0), (3, 0.5, 1), (3, 1.5, 2), (3, 2.5, 3), (1, 5, 3)],
)
def test_the_next_trial_has_room_and_todays_launch_ends_last(
    room: float, needed: float, ended: int
) -> None:
    alive, gone = alive_with({TODAY: 9.0, PLANS[0]: 0.1, PLANS[1]: 0.2}, room)
    alive.make_room(needed * GIB)
    assert gone == [PLANS[1], PLANS[0], TODAY][:ended]


def tuned(runner: FakeKeepingRunner) -> Result:
    try:
        return cputune.tune(SMALL.workload, facts=SMALL.facts, runner=runner, budget=4)
    finally:
        assert not runner.living_now


def test_the_first_block_is_of_the_processes_of_the_trials_and_the_second_of_new_ones() -> None:
    runner = FakeKeepingRunner(truthful())
    result = tuned(runner)
    trials = [trial.plan for trial in result.trials]
    best = result.best.plan
    assert best != result.baseline.plan
    kept = dict.fromkeys(one.plan for one in runner.turned if one.kept)
    assert {trials[0], best} <= set(kept)
    assert runner.turned[0].kept
    assert not runner.turned[-1].kept
    started_at_the_end = runner.begun[len(trials) :]
    assert started_at_the_end.count(trials[0]) == started_at_the_end.count(best) == 1


def test_the_profile_is_that_of_the_winner_in_the_processes_that_were_measured_last() -> None:
    result = tuned(FakeKeepingRunner(truthful()))
    assert result.profile is not None
    assert result.profile.plan == result.best.plan


def test_one_that_dies_of_memory_beside_those_that_are_alive_is_run_without_them() -> None:
    runner = FakeKeepingRunner(truthful(), greedy=True)
    result = tuned(runner)
    assert {trial.state for trial in result.trials} <= {COMPLETED, PRUNED}


def held(*peaks: float, state: State = COMPLETED) -> Trial:
    ranks = tuple({"peak_bytes": int(peak * GIB)} for peak in peaks)
    return Trial(number=0, plan=TODAY, state=state, observed=ranks)


@pytest.mark.parametrize(
    ("free", "trials", "room"),
    [
        (16, [held(2)], 6),
        (16, [held(2), held(2, 2)], 3),
        (16, [held(2), held(90, state=FAILED)], 6),
        (2, [held(2)], 0),
        (2, [held(), held()], 2),
        (2, [held(0)], 1),
        (2, [held(2, state=FAILED)], 1),
    ],
    ids=[
        "one rank",
        "the largest",
        "what failed",
        "no room",
        "no processes",
        "silent",
        "none that ran",
    ],
)
def test_as_many_live_at_once_as_memory_holds(free: float, trials: list[Trial], room: int) -> None:
    memory = replace(SMALL.facts.memory, available_bytes=free * GIB)
    assert most_living(replace(SMALL.facts, memory=memory), trials) == room


def test_the_limit_of_a_container_counts() -> None:
    limits = replace(SMALL.facts.limits, memory_bytes=4 * GIB)
    assert most_living(replace(SMALL.facts, limits=limits), [held(1)]) == 3
