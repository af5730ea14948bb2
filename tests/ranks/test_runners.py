"""What each runner promises the tuner: that of real processes, the simulated ones, and the fakes.

A fake that promises more or less than real processes do would make tests of the tuner worthless. A
new runner is a row of ``RUNNERS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from replayed import ReplayRunner
from tuner.fakes import (
    PLANS,
    SMALL,
    FakeKeepingRunner,
    FakeLivingRunner,
    FakeRunner,
    steady,
    truthful,
)

import cputune
from cputune import Plan, Runner, Step, Workload
from cputune.host.children import below
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import KeepingRunner, LivingRunner, ObservingRunner

LIGHT = Path(__file__).parent.parent / "faults" / "light.py"
CPUS = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Subject:
    """A runner, two plans of it, and how many of its processes there are."""

    runner: Runner
    plans: tuple[Plan, Plan]
    processes: Callable[[], int] = lambda: 0


def real(stack: ExitStack) -> Subject:
    job = Workload.script([str(LIGHT), "0.002"])
    runner = stack.enter_context(ProcessRunner(job, cputune.probe(), fresh=True))
    runner._offline = True
    one = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
    two = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))

    def ranks() -> int:
        ranks = [p for p in below(os.getpid()) if str(LIGHT) in p.cmdline()]
        return sum(p.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) for p in ranks)

    return Subject(runner, (one, two), ranks)


def replayed(stack: ExitStack) -> Subject:
    table = {plan: tuple(islice(SMALL.runner(1).steps(plan), 20)) for plan in PLANS}
    return Subject(ReplayRunner(table=table), (PLANS[0], PLANS[1]))


def of_plans(runner: Runner) -> Callable[[ExitStack], Subject]:
    return lambda stack: Subject(runner, (PLANS[0], PLANS[1]))


RUNNERS: dict[str, Callable[[ExitStack], Subject]] = {
    "processes": real,
    "simulated": of_plans(SMALL.runner(1)),
    "replayed": replayed,
    "fake": of_plans(FakeRunner(truthful())),
    "fake living": of_plans(FakeLivingRunner(lambda number: (step for step in steady(1.0)))),
    "fake keeping": of_plans(FakeKeepingRunner(truthful())),
}


@pytest.fixture(params=RUNNERS)
def subject(request: pytest.FixtureRequest, workdir: Path) -> Iterator[Subject]:
    with ExitStack() as stack:
        subject = RUNNERS[request.param](stack)
        yield subject
        stack.close()
        assert subject.processes() == 0
    assert list(workdir.iterdir()) == []


def steps(runner: Runner, plan: Plan, count: int) -> list[Step]:
    with closing(runner.steps(plan)) as iterator:  # type: ignore[type-var]
        return list(islice(iterator, count))


def test_a_plan_has_as_many_steps_as_are_read_and_begins_anew_each_time(subject: Subject) -> None:
    for plan in (*subject.plans, subject.plans[0]):
        read = steps(subject.runner, plan, 3)
        assert len(read) == 3
        assert all(step.seconds > 0 and step.samples == 8 for step in read)
        assert subject.processes() == 0, "closing the steps ends the trial"


def test_what_its_ranks_report_is_there_with_the_first_step(subject: Subject) -> None:
    if not isinstance(subject.runner, ObservingRunner):
        pytest.skip("no ranks")
    assert subject.runner.observed() == ()
    for plan in subject.plans:
        steps(subject.runner, plan, 1)
        assert len(subject.runner.observed()) == plan.world_size


def test_plans_that_live_side_by_side_take_turns(subject: Subject) -> None:
    if not isinstance(subject.runner, LivingRunner):
        pytest.skip("one plan at a time")
    lives: list[Any] = [subject.runner.living(plan) for plan in subject.plans]
    for count in (1, 3):
        for life in lives:
            assert [step.samples for step in life.turn(count)] == [8] * count
    lives[0].close()
    assert len(lives[1].turn(2)) == 2, "the end of one is none of the other"
    for life in lives:
        life.close()  # also a second time
    assert subject.processes() == 0


def test_a_plan_that_is_kept_lives_on_when_its_steps_are_closed(subject: Subject) -> None:
    if not isinstance(subject.runner, KeepingRunner):
        pytest.skip("nothing is kept")
    with closing(subject.runner.steps(subject.plans[0])) as iterator:  # type: ignore[type-var]
        next(iterator)
        kept = subject.runner.keep()
    assert kept is not None
    with closing(kept):
        steps(subject.runner, subject.plans[1], 1)
        assert len(kept.turn(2)) == 2
    assert subject.processes() == 0
