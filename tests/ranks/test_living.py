"""Plans that live side by side: one takes its steps, the others stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import cputune
from cputune import HostFacts, Plan, Workload
from cputune.host.children import below
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import Crashed

LIGHT = Path(__file__).parent.parent / "faults" / "light.py"
CPUS = sorted(os.sched_getaffinity(0))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


@pytest.fixture
def runner(facts: HostFacts) -> Iterator[ProcessRunner]:
    job = Workload.script([str(LIGHT), "0.002"])
    with ProcessRunner(job, facts, fresh=True) as runner:
        runner._offline = True
        yield runner
    assert not training()


def training() -> list[psutil.Process]:
    """The ranks that this process has started, through its supervisors."""
    return [p for p in below(os.getpid()) if str(LIGHT) in p.cmdline()]


def awake() -> list[psutil.Process]:
    return [p for p in training() if p.status() != psutil.STATUS_STOPPED]


def wait_until(is_true: Callable[[], bool]) -> None:
    """A process stops when it next runs, which on a busy machine takes a moment."""
    deadline = time.monotonic() + 90
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_true()


def test_each_takes_its_steps_while_the_other_stands_still(runner: ProcessRunner) -> None:
    with closing(runner.living(ONE)) as one, closing(runner.living(TWO)) as two:
        two.turn(1)
        for count in (1, 3, 2):
            assert [step.samples for step in one.turn(count)] == [8] * count
            wait_until(lambda: not awake())
            assert [step.samples for step in two.turn(count)] == [8] * count
            wait_until(lambda: not awake())
        assert len(training()) == 3


def test_a_pause_is_in_no_step(runner: ProcessRunner) -> None:
    with closing(runner.living(ONE)) as one:
        one.turn(2)
        time.sleep(0.5)
        assert all(step.seconds < 0.4 for step in one.turn(2))


def test_what_a_rank_has_started_stands_still_too(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAULT", "daemons")
    monkeypatch.setenv("FAULT_AT", "0")
    monkeypatch.setenv("FAULT_BOOK", str(tmp_path / "book"))
    with closing(runner.living(ONE)) as one:
        one.turn(4)
        daemons = [p for p in below(os.getpid()) if "time.sleep(600)" in p.cmdline()[-1]]
        assert len(daemons) == 3
        wait_until(lambda: {p.status() for p in daemons} == {psutil.STATUS_STOPPED})
    assert not any(p.is_running() for p in daemons)


def test_one_that_is_killed_while_it_stands_still_has_crashed(runner: ProcessRunner) -> None:
    with closing(runner.living(TWO)) as two:
        two.turn(2)
        training()[0].kill()
        with pytest.raises(Crashed):
            two.turn(2)
        assert not training()


def test_a_plan_that_has_failed_may_be_closed_twice(runner: ProcessRunner) -> None:
    living = runner.living(ONE)
    living.close()
    living.close()


def test_nothing_stays_stopped_if_the_supervisor_is_killed(runner: ProcessRunner) -> None:
    with closing(runner.living(ONE)) as one:
        one.turn(2)
        ranks = training()
        ranks[0].parent().kill()  # type: ignore[union-attr]
        with pytest.raises(Crashed):
            one.turn(2)
        wait_until(lambda: not any(rank.is_running() for rank in ranks))


def test_a_plan_that_was_read_is_kept_and_takes_turns(runner: ProcessRunner) -> None:
    """Its ranks are the same ones, stopped between two steps; the next trial runs beside them."""
    with closing(runner.steps(ONE)) as steps:  # type: ignore[type-var]
        for _ in range(20):
            next(steps)
        one = runner.keep()
    assert one is not None
    (rank,) = training()
    wait_until(lambda: not awake())
    with closing(runner.steps(TWO)) as steps:  # type: ignore[type-var]
        next(steps)
        assert len(training()) == 3
        assert len(awake()) == 2
    assert training() == [rank]
    for count in (1, 3):
        assert [step.samples for step in one.turn(count)] == [8] * count
        wait_until(lambda: not awake())
    one.close()
    assert not training()


@pytest.mark.torch
def test_launches_of_one_environment_are_forks_of_one_supervisor(facts: HostFacts) -> None:
    """Libraries are loaded once for all that live; what is left ends with the runner."""
    job = Workload.script([str(LIGHT), "0.002"])
    with ProcessRunner(job, facts, offline=True) as runner:
        runner.source = ""  # as if its text did not say that it sets variables
        living = [runner.living(plan) for plan in (ONE, TWO, ONE)]
        for one in living:
            one.turn(2)
        supervisors = [one.job.supervisor._process for one in living if one.job]
        (origin,) = {one.parent() for one in supervisors if one is not None}
        assert len({*supervisors}) == 3
        assert origin in psutil.Process().children()
        living[1].close()
        assert len(living[0].turn(2)) == 2
    assert not origin.is_running()


TUNER = """
import sys, time
import cputune
from cputune.plans.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.plans.workload import Workload

if __name__ == "__main__":
    cpu = int(sys.argv[2])
    plan = Plan(processes_per_node=1, threads_per_process=1, cpus=((cpu,),))
    runner = ProcessRunner(Workload.script([sys.argv[1], "0.002"]), cputune.probe(), fresh=True)
    runner._offline = True
    one, other = runner.living(plan), runner.living(plan)
    one.turn(2)
    other.turn(2)
    print("stopped", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.matrix),
        pytest.param(signal.SIGINT, marks=pytest.mark.matrix),
    ],
)
def test_nothing_stays_stopped_if_the_tuner_is_ended(number: int, tmp_path: Path) -> None:
    script = tmp_path / "tuner.py"
    script.write_text(TUNER)
    with subprocess.Popen(
        [sys.executable, str(script), str(LIGHT), str(CPUS[0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as tuner:
        assert tuner.stdout.readline() == b"stopped\n"
        started = below(tuner.pid)
        wait_until(lambda: sum(p.status() == psutil.STATUS_STOPPED for p in started) == 2)
        tuner.send_signal(number)
    wait_until(lambda: not any(process.is_running() for process in started))
    assert not list(tmp_path.glob("cputune-*"))
