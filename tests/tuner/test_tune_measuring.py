"""Runs are repeated where others delayed them, and end with the time that was given."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import (
    PLANS,
    SMALL,
    FakeKeepingRunner,
    FakeRunner,
    Script,
    measuring,
    truthful,
    tune,
)

from cputune import ConfirmRun, Message, NotMeasurableError, Plan, Result, Step, Trial
from cputune.plans.layout import baseline_plan
from cputune.records.result import COMPLETED, FAILED, PRUNED, State
from cputune.records.steps import Contended, Crashed
from cputune.tuner.measuring import (
    MOST_RIVALS,
    Findings,
    LivingTrials,
    Measuring,
    Timer,
    at_most,
    delays_itself,
    trial_of,
)
from cputune.tuner.race import Estimate, Race
from cputune.tuner.reading import Run

TODAY = baseline_plan(SMALL.facts)


@dataclass
class FakeStudy:
    """What runs plans, beside what it has told."""

    most_seconds: float | None = None
    told: list[object] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    timer: Timer = field(init=False)
    measuring: Measuring = field(init=False)

    def __post_init__(self) -> None:
        known = {"findings": self.findings, "on_event": self.told.append, "reference": (5.0,)}
        self.measuring = measuring(self.most_seconds, **known)
        self.timer = self.measuring.timer

    def run(self, script: Script, number: int = 1) -> tuple[Run, float, int]:
        """A run of a trial, the seconds of all tries, and how many there were."""
        runner = FakeRunner(script)
        run, spent = self.measuring.quiet_run(runner, PLANS[0], number)
        return run, spent, len(runner.started)

    def of_kind(self, kind: type) -> list[object]:
        return [event for event in self.told if isinstance(event, kind)]


def busy(times: int) -> Script:
    """Steps of a second; others delay them the first ``times`` times."""

    def script(plan: Plan, before: int) -> Iterable[Step]:
        while True:
            yield Step(1.0, 1, delayed_seconds=0.5 if before < times else 0.0)

    return script


class TestTrials:
    @pytest.mark.parametrize(("times", "tries"), [(0, 1), (1, 2), (2, 3)])
    def test_have_three_tries_to_be_quiet(self, times: int, tries: int) -> None:
        study = FakeStudy()
        run, spent, started = study.run(busy(times), number=5)
        assert (run.failure, started) == (None, tries)
        assert spent == 3.0 * times + run.step_seconds
        assert study.findings.contended_runs == times
        assert (study.findings.saw_quiet, study.findings.never_quiet) == (True, False)
        said = "trial 5: other processes delayed 3 of 3 steps, so it is run again"
        assert study.of_kind(Message) == [Message(text=said, warns=True)] * times

    def test_beside_processes_that_stay_the_first_one_ends_the_study(self, golden: Golden) -> None:
        study = FakeStudy()
        others = ("make (process 7) 98 % of a CPU",)
        with golden.raises(NotMeasurableError) as caught:
            study.measuring.quiet_run(FakeRunner(busy(9)), PLANS[0], 0, others=lambda: others)
        assert caught.value.details == f"busy now: {others[0]}"
        assert "--max-time" not in str(caught.value.hint)

    def test_of_a_machine_that_was_quiet_before_are_not(self) -> None:
        study = FakeStudy()
        study.run(busy(0))
        run, spent, started = study.run(busy(99))
        assert isinstance(run.failure, Contended)
        assert (spent, started) == (9.0, 3)

    @pytest.mark.parametrize(("seconds", "tries"), [(3.0, 1), (6.0, 2), (9.0, 3)])
    def test_are_not_tried_again_if_the_time_is_up(self, seconds: float, tries: int) -> None:
        run, _, started = FakeStudy(most_seconds=seconds).run(busy(99))
        assert started == tries
        assert isinstance(run.failure, Contended)


@every_row(
    ("threads", "quota", "itself"),
    [(2, None, False), (3, None, True), (2, 2.0, False), (2, 1.9, True)],
)
def test_a_plan_with_more_threads_than_cpus_delays_itself(
    threads: int, quota: float | None, itself: bool
) -> None:
    facts = replace(SMALL.facts, limits=replace(SMALL.facts.limits, cpu_quota=quota))
    plan = Plan(processes_per_node=1, threads_per_process=threads, cpus=((0, 1),))
    assert delays_itself(plan, facts) is itself
    assert FakeStudy().measuring.rules(replace(plan, threads_per_process=3)).delays_itself


LEVEL = [math.log(0.5)] * 8


def recorded(run: Run, race: Race | None = None) -> Trial:
    more = {"origin": "guide", "step_seconds": 9.0, "observed": ({"threads": 2},)}
    return trial_of(run, race or Race(), number=3, plan=PLANS[0], **more)


def test_one_that_failed_says_why_and_in_which_words(golden: Golden) -> None:
    trial = recorded(Run(failure=Crashed("rank 0 died", details="NameError: x")))
    assert (trial.state, trial.kind, trial.samples_per_second) == (FAILED, "crashed", None)
    golden(trial.reason)
    assert recorded(Run(failure=Crashed("rank 0 died"))).reason == "rank 0 died"
    longest = "x" * 16_384
    assert recorded(Run(failure=Crashed(longest))).reason == longest
    assert recorded(Run(failure=Crashed(longest + "x"))).reason != longest + "x"


def test_one_that_came_to_its_end_is_a_number() -> None:
    trial = recorded(Run(logs=[0.0, 0.0], steps=3, ended=True))
    assert (trial.state, trial.reason) == (COMPLETED, "the job ended after 3 steps")


@pytest.mark.parametrize(
    ("logs", "state"),
    [
        (LEVEL[:4], COMPLETED),
        (LEVEL[:3], PRUNED),  # fewer than three beside the warm-up
        ([-0.2 * n for n in range(8)], PRUNED),  # not level
    ],
)
def test_one_that_was_cut_short_is_a_number_if_its_steps_are_level(
    logs: list[float], state: State
) -> None:
    trial = recorded(Run(logs=logs, steps=len(logs), cut="after some steps"))
    assert (trial.state, trial.reason) == (state, "the time limit was reached after some steps")
    assert (trial.at_most_samples_per_second is None) is (state == COMPLETED)


def test_one_that_has_lost_has_a_bound(golden: Golden) -> None:
    race = Race(fastest=Estimate(center=math.log(0.25), error=0, kept=(), warmup=0, level=True))
    trial = recorded(Run(logs=LEVEL, steps=8, verdict="lost"), race)
    assert (trial.state, trial.reason) == (
        PRUNED,
        "stopped after 8 steps: most likely slower than the fastest, 4 samples/s",
    )
    guess = race.lost(LEVEL)
    assert trial.samples_per_second.centre == pytest.approx(math.exp(-guess.center))
    assert trial.at_most_samples_per_second == at_most(guess, race.fastest)
    golden(recorded(Run(logs=LEVEL, steps=8)).reason)


def ended(reason: str | None) -> ConfirmRun:
    plan = baseline_plan(SMALL.facts)
    return ConfirmRun(round=0, role="baseline", plan=plan, samples_per_second=None, reason=reason)


QUIET, CONTENDED = ended(None), ended("contended: others")


@every_row(
    ("findings", "disturbed"),
    [
        (Findings(), False),
        (Findings(never_quiet=True), True),  # no confirmation
        (Findings(never_quiet=True, turns=24, delayed_turns=2), False),  # quiet at last
        (Findings(turns=24, delayed_turns=13), True),
        (Findings(turns=24, delayed_turns=12), False),  # half of the turns
        (Findings(confirm_runs=[CONTENDED, CONTENDED]), True),
        (Findings(confirm_runs=[CONTENDED, QUIET]), False),  # half of the rounds
        (Findings(confirm_runs=[QUIET], shared=True, never_quiet=True), True),
        (Findings(confirm_runs=[QUIET, ended("crashed: x")], never_quiet=True), False),
    ],
)
def test_what_others_have_delayed_is_no_ground_for_a_claim(
    findings: Findings, disturbed: bool
) -> None:
    assert findings.disturbed == disturbed


GIB = 1 << 30


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


def test_the_slowest_ends_if_too_many_are_alive_but_never_todays_launch() -> None:
    centers = {TODAY: 9.0} | dict(zip(PLANS, (0.0, 0.5, 0.2, 0.3, 0.1), strict=False))
    alive, ended = alive_with(centers)
    assert ended == [PLANS[1]]
    assert len(alive) == 1 + MOST_RIVALS


@every_row(
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
    result = tune(runner, budget=4)
    assert not runner.living_now
    return result


def test_the_block_that_chooses_has_the_processes_of_the_trials_and_later_ones_have_new() -> None:
    runner = FakeKeepingRunner(truthful())
    result = tuned(runner)
    trials = [trial.plan for trial in result.trials]
    best = result.best.plan
    assert best != result.baseline.plan
    kept = dict.fromkeys(one.plan for one in runner.turned if one.kept)
    assert best in kept
    assert runner.turned[0].kept
    assert not runner.turned[-1].kept
    started_at_the_end = runner.begun[len(trials) :]
    assert started_at_the_end.count(trials[0]) == started_at_the_end.count(best) >= 2


def test_one_that_dies_of_memory_beside_those_that_are_alive_is_run_without_them() -> None:
    runner = FakeKeepingRunner(truthful(), greedy=True)
    result = tuned(runner)
    assert {trial.state for trial in result.trials} <= {COMPLETED, PRUNED}
