"""One job on two hosts: started, observed, stopped and ended on both."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import psutil
import pytest
from ranks.fake_hosts import fake_hosts

import cputune
from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.probing.quiet import Surroundings
from cputune.ranks.hosts import RankHosts
from cputune.ranks.runner import ProcessRunner
from cputune.steps import HostLost, Infeasible
from cputune.workload import Workload

LIGHT = Path(__file__).parent.parent / "faults" / "light.py"
CPUS = sorted(os.sched_getaffinity(0))
TWO = Plan(nodes=2, processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
FOUR = Plan(nodes=2, processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))
FIRST_ALONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


@pytest.fixture
def hosts(facts: HostFacts) -> Iterator[RankHosts]:
    with fake_hosts(facts, "alpha", "beta") as hosts:
        yield hosts


@pytest.fixture
def runner(facts: HostFacts, hosts: RankHosts) -> Iterator[ProcessRunner]:
    job = Workload.script([str(LIGHT), "0.002"])
    with ProcessRunner(job, facts, hosts=hosts, fresh=True) as runner:
        runner._offline = True
        yield runner
    assert not training()


def training() -> list[psutil.Process]:
    """The ranks that run on this machine, whoever has started them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if str(LIGHT) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def agents() -> list[psutil.Process]:
    """Those that the ranks are below, in the order of the hosts."""
    return sorted({rank.parents()[1] for rank in training()}, key=lambda agent: agent.pid)


def test_the_ranks_of_all_hosts_are_one_job(runner: ProcessRunner) -> None:
    with closing(runner.steps(FOUR)) as steps:
        first = next(steps)
        assert len(training()) == 4
        assert len(agents()) == 2
    assert [state["world_size"] for state in runner.observed()] == [4] * 4
    assert first.samples == 8
    assert not training()


def test_a_plan_for_one_node_runs_on_the_first_host_alone(runner: ProcessRunner) -> None:
    with closing(runner.steps(FIRST_ALONE)) as steps:
        next(steps)
        assert len(agents()) == 1


def test_a_rank_with_other_cpus_than_its_node_has_is_seen(runner: ProcessRunner) -> None:
    there = ((CPUS[-1],),)
    differ = TWO.on_nodes([TWO.cpus, there])
    with closing(runner.steps(differ)) as steps:
        next(steps)
    assert [state["affinity"] for state in runner.observed()] == [str(CPUS[0]), str(CPUS[-1])]


def test_who_computes_on_a_host_is_named_with_it(
    hosts: RankHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cputune.ranks.hosts.look_around", lambda host: Surroundings(steal_share=1))
    assert [who.partition(" on ")[2].split()[-1] for who in hosts.neighbours()] == ["alpha", "beta"]


def test_a_plan_for_more_hosts_than_there_are_is_infeasible(runner: ProcessRunner) -> None:
    three = Plan(nodes=3, processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
    with pytest.raises(Infeasible, match="for 3 nodes, and there are 2"):
        next(runner.steps(three))


def test_a_host_that_is_lost_ends_the_trial_and_is_named(
    runner: ProcessRunner, hosts: RankHosts
) -> None:
    with closing(runner.steps(TWO)) as steps:
        next(steps)
        agents()[1].kill()
        with pytest.raises(HostLost, match=r"^beta was lost: ") as caught:
            list(islice(steps, 100_000))
    assert caught.value.name == "beta"
    assert not training()
    with pytest.raises(HostLost):
        next(runner.steps(TWO))
    hosts.leave_out("beta")
    with closing(runner.steps(FIRST_ALONE)) as steps:
        next(steps)


def test_side_by_side_the_ranks_of_both_hosts_stand_still(runner: ProcessRunner) -> None:
    with closing(runner.living(TWO)) as living:
        living.turn(3)
        until = time.monotonic() + 20
        while time.monotonic() < until and not all(
            rank.status() == psutil.STATUS_STOPPED for rank in training()
        ):
            time.sleep(0.01)
        assert [rank.status() for rank in training()] == [psutil.STATUS_STOPPED] * 2
        assert len(living.turn(3)) == 3
    assert not training()
