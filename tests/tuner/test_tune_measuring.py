"""Runs are repeated where others delayed them, and end with the time that was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from tuner.fakes import PLANS, SMALL, FakeRunner, Script, measuring

from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.result import ConfirmRun
from cputune.steps import Contended, Crashed, Step
from cputune.tuner.events import Said
from cputune.tuner.gains import Contender
from cputune.tuner.measuring import (
    Findings,
    Measuring,
    Timer,
    delays_itself,
)
from cputune.tuner.race import Verdict
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
        self.measuring = measuring(
            self.most_seconds,
            findings=self.findings,
            on_event=self.told.append,
            reference=(5.0,),
        )
        self.timer = self.measuring.timer

    def run(self, script: Script, number: int = 1) -> tuple[Run, float, int]:
        """A run of a trial, the seconds of all tries, and how many there were."""
        runner = FakeRunner(script)
        run, spent = self.measuring.quiet_run(runner, PLANS[0], number)
        return run, spent, len(runner.started)

    def confirm(self, script: Script) -> tuple[float | None, int]:
        runner = FakeRunner(script)
        contender = Contender(role="candidate", plan=PLANS[0])
        return self.measuring.confirm_run(runner, 2, contender, four), len(runner.started)

    def of_kind(self, kind: type) -> list[object]:
        return [event for event in self.told if isinstance(event, kind)]


def four(logs: Sequence[float]) -> Verdict:
    return "enough" if len(logs) >= 4 else "more"


def busy(times: int) -> Script:
    """Steps of a second; others delay them the first ``times`` times."""

    def script(plan: Plan, before: int) -> Iterable[Step]:
        while True:
            yield Step(1.0, 1, delayed_seconds=0.5 if before < times else 0.0)

    return script


class TestTimer:
    def test_the_clock_and_the_steps_are_looked_at_together(self) -> None:
        timer = Timer(clock=lambda: 110.0, most_seconds=100.0, started=100.0)
        assert (timer.used_seconds, timer.left(0.7)) == (10.0, 60.0)
        assert timer.left(0.7, running_seconds=5.0) == 60.0
        assert timer.left(0.7, running_seconds=30.0) == 40.0
        timer.step_seconds = 20.0
        assert (timer.used_seconds, timer.left(0.7)) == (20.0, 50.0)
        assert timer.left(1.0, running_seconds=30.0) == 50.0

    def test_it_is_up_when_nothing_is_left(self) -> None:
        timer = Timer(clock=lambda: 0.0, most_seconds=10.0, started=0.0, step_seconds=7.0)
        assert (timer.up(0.7), timer.up(0.71), timer.up(1.0, 3.0)) == (True, False, True)


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
        assert study.of_kind(Said) == [Said(text=said, warns=True)] * times

    def test_of_a_machine_that_was_never_quiet_are_believed(self) -> None:
        study = FakeStudy()
        run, spent, started = study.run(busy(99))
        assert (run.failure, started) == (None, 4)
        assert spent == 9.0 + run.step_seconds
        assert (study.findings.never_quiet, study.findings.saw_quiet) == (True, False)
        assert len(study.of_kind(Said)) == 2
        _, _, started = study.run(busy(99))
        assert started == 2, "it is tried once, and believed then"

    def test_of_a_machine_that_was_quiet_before_are_not(self) -> None:
        study = FakeStudy()
        study.run(busy(0))
        run, spent, started = study.run(busy(99))
        assert isinstance(run.failure, Contended)
        assert (spent, started) == (9.0, 3)

    def test_that_fail_are_not_tried_again(self) -> None:
        def script(plan: Plan, before: int) -> Iterable[Step]:
            raise Crashed("rank 0 died")

        study = FakeStudy()
        assert study.run(script)[2] == 1
        assert study.findings.saw_quiet

    @pytest.mark.parametrize(("seconds", "tries"), [(4.0, 1), (8.5, 2), (9.0, 3)])
    def test_are_not_tried_again_where_the_time_is_up(self, seconds: float, tries: int) -> None:
        run, _, started = FakeStudy(most_seconds=seconds).run(busy(99))
        assert started == tries
        assert isinstance(run.failure, Contended)

    def test_are_compared_with_the_losses_of_today(self) -> None:
        rules = FakeStudy().measuring.rules
        assert (rules(PLANS[0]).reference, rules(TODAY).reference) == ((5.0,), ())


class TestConfirmation:
    @pytest.mark.parametrize("delayed", [True, False])
    def test_has_no_number_of_a_run_that_others_delayed(self, delayed: bool) -> None:
        study = FakeStudy()
        log, started = study.confirm(busy(delayed))
        assert (log is None, started, study.findings.contended_runs) == (delayed, 1, delayed)
        assert study.timer.step_seconds == (3.0 if delayed else 4.0)

    def test_is_written_down_and_told(self) -> None:
        study = FakeStudy()
        study.confirm(busy(0))
        (kept,) = study.findings.confirm_runs
        assert study.of_kind(ConfirmRun) == [kept]
        assert (kept.round, kept.role, kept.plan, kept.reason) == (2, "candidate", PLANS[0], None)
        assert kept.samples_per_second is not None
        assert kept.samples_per_second.median == pytest.approx(1.0)
        study.confirm(busy(1))
        said = study.findings.confirm_runs[-1]
        assert study.of_kind(ConfirmRun) == [kept, said]
        assert [turn.place for run in (kept, said) for turn in run.taken] == [0, 1]
        assert said.samples_per_second is None
        assert said.reason == "contended: other processes delayed 3 of 3 steps"

    def test_has_no_number_of_a_run_that_failed(self) -> None:
        def script(plan: Plan, before: int) -> Iterable[Step]:
            yield from [Step(1.0, 1)] * 3
            raise Crashed("rank 0 died")

        study = FakeStudy()
        study.confirm(script)
        (kept,) = study.findings.confirm_runs
        assert (kept.samples_per_second, kept.reason) == (None, "crashed: rank 0 died")

    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("never_quiet", [True, False])
    def test_believes_a_machine_that_is_shared_and_never_quiet(
        self, shared: bool, never_quiet: bool
    ) -> None:
        study = FakeStudy()
        study.findings.shared, study.findings.never_quiet = shared, never_quiet
        log, _ = study.confirm(busy(9))
        assert (log is not None) is (shared and never_quiet)
        assert study.measuring.rules(PLANS[0]).believe_delayed is (shared and never_quiet)


@pytest.mark.parametrize(
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
