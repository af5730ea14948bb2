"""Plans over several hosts: which there are, and a study that loses a host on its way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, get_ident

import pytest
from machines import machine
from tuner.fakes import SMALL, FakeRunner

import cputune
from cputune.errors import Interrupted, NoValidTrialError, UsageError
from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.ranks.hosts import RankHosts
from cputune.remote.named import Node
from cputune.remote.probed import Probed
from cputune.result import COMPLETED, Result
from cputune.steps import HostLost, Step
from cputune.tuner.events import ConfirmStarted, TrialEnded, TrialStarted
from cputune.tuner.space import SearchSpace, search_space

JOB = cputune.Workload.from_recipe("bert-mini")
EIGHT = machine(cores_per_socket=8)


def over(*facts: HostFacts, **options: object) -> SearchSpace:
    hosts = tuple((f"node{number}", one) for number, one in enumerate(facts, start=1))
    return search_space(facts[0], JOB, hosts=hosts, **options)  # type: ignore[arg-type]


def why(space: SearchSpace, what: str) -> str:
    return next(out.why for out in space.left_out if out.what == what)


class TestSpace:
    def test_what_one_host_lacks_is_no_value_and_the_host_is_named(self) -> None:
        with_tcmalloc = machine(cores_per_socket=8, libraries=("tcmalloc",))
        space = over(with_tcmalloc, EIGHT)
        assert {plan.allocator for plan in space.plans()} == {"default"}
        assert why(space, "allocator=tcmalloc").startswith("on node2: ")

    def test_more_nodes_than_hosts_cannot_be_asked_for(self) -> None:
        with pytest.raises(UsageError, match="no plan of this machine has nodes=3") as caught:
            over(EIGHT, EIGHT, fix={"nodes": 3})
        assert caught.value.hint == "2 hosts can be used (--hosts names more)"

    def test_the_guide_is_tried_on_all_nodes_and_the_topology_on_one(self) -> None:
        space = over(EIGHT, EIGHT, EIGHT)  # 3 do not divide the global batch
        assert {origin: p.nodes for origin, p in space.suggestions} == {"guide": 2, "topology": 1}
        assert "global batch of 8 cannot be divided" in why(space, "nodes=3")

    def test_today_is_one_process_on_the_first_host(self) -> None:
        today = over(EIGHT, EIGHT).baseline
        assert (today.as_found, today.world_size) == (True, 1)


def four_hosts(*facts: HostFacts) -> RankHosts:
    """Hosts that nobody speaks to."""
    names = ("alpha", "beta", "gamma", "delta")
    hosts = [
        Probed(node=Node(name=name), facts=one)
        for name, one in zip(names, facts or (SMALL.facts,) * 4, strict=True)
    ]
    return RankHosts(hosts=hosts, interfaces=("ib0", "eth0"))


def seconds(plan: Plan) -> float:
    """A second node helps."""
    return SMALL.seconds(replace(plan, nodes=1)) / plan.nodes**0.5


def loses(hosts: RankHosts, name: str, *, when: int) -> FakeRunner:
    """A runner to which a host is lost in the trial that is the ``when``-th on it."""
    seen: list[Plan] = []

    def script(plan: Plan, before: int) -> Iterator[Step]:
        if name in hosts.names[: plan.nodes]:
            seen.append(plan)
            if len(seen) >= when:
                raise HostLost(name, "the connection was cut")
        while True:
            yield Step(seconds(plan), samples=8)

    return FakeRunner(script)


def tune(hosts: RankHosts, runner: FakeRunner, **options: object) -> Result:
    return cputune.tune(SMALL.workload, hosts=hosts, runner=runner, **options)  # type: ignore[arg-type]


class FakeSpreading(FakeRunner):
    """A runner over hosts of which some are slower; it knows what ran where, and beside what."""

    def __init__(self, slower: Mapping[str, float], *, loses: str | None = None) -> None:
        self.slower, self.loses = slower, loses
        self.ran: list[tuple[str, Plan]] = []
        self.together: set[tuple[str, ...]] = set()
        self._now: list[str] = []
        self._both = Barrier(2)
        super().__init__(lambda plan, before: self._steps("alpha", plan))

    def on(self, node: str, say: Callable[[str], None]) -> AbstractContextManager[FakeRunner]:
        say(f"ranks start on {node}")
        return nullcontext(FakeRunner(lambda plan, before: self._steps(node, plan)))

    def _steps(self, node: str, plan: Plan) -> Iterator[Step]:
        self.ran.append((node, plan))
        self._now.append(node)
        try:
            for at in itertools.count():
                if at == 1:
                    with suppress(BrokenBarrierError):  # whoever is alone goes on alone
                        self._both.wait(0.2)
                    self.together.add(tuple(sorted(self._now)))
                if node == self.loses and not plan.as_found:
                    raise HostLost(node, "the connection was cut")
                yield Step(seconds(plan) * self.slower[node], samples=8)
        finally:
            self._now.remove(node)
            self._both.reset()


class TestAtOnce:
    SLOWER = {"alpha": 1.0, "beta": 1.5, "gamma": 0.8, "delta": 1.0}  # noqa: RUF012

    def found(self, runner: FakeRunner, hosts: RankHosts, **options: object) -> Result:
        return tune(hosts, runner, fix={"nodes": 1}, **options)

    def test_trials_run_side_by_side_and_count_as_on_the_first_node(self) -> None:
        runner, hosts = FakeSpreading(self.SLOWER), four_hosts()
        result = self.found(runner, hosts)
        assert any(len(nodes) > 1 for nodes in runner.together)
        away = [trial for trial in result.trials if trial.elsewhere]
        assert away
        for trial in result.trials:
            if trial.state == COMPLETED:
                assert trial.samples_per_second is not None
                true = 8 / seconds(trial.plan)
                assert trial.samples_per_second.median == pytest.approx(true, rel=1e-6)

    def test_todays_launch_comes_first_on_every_node(self) -> None:
        runner, hosts = FakeSpreading(self.SLOWER), four_hosts()
        self.found(runner, hosts)
        first = dict(reversed(runner.ran))
        assert len(first) > 1
        assert all(plan.as_found for plan in first.values())

    def test_the_confirmation_stays_on_the_first_node(self) -> None:
        runner, hosts = FakeSpreading(self.SLOWER), four_hosts()
        begun: list[int] = []

        def hear(event: object) -> None:
            if isinstance(event, ConfirmStarted):
                begun.append(len(runner.ran))

        self.found(runner, hosts, on_event=hear)
        assert {node for node, _ in runner.ran[begun[0] :]} == {"alpha"}

    def test_a_lost_node_ends_its_trial_alone(self) -> None:
        runner, hosts = FakeSpreading(self.SLOWER, loses="beta"), four_hosts()
        result = self.found(runner, hosts)
        lost = [trial for trial in result.trials if trial.kind == "host lost"]
        assert [trial.reason for trial in lost] == ["beta was lost: the connection was cut"]
        assert hosts.names == ("alpha", "gamma", "delta")
        assert result.speedup.pairs > 0

    def test_events_come_in_the_thread_of_the_study_and_each_trial_begins_before_it_ends(
        self,
    ) -> None:
        told: list[object] = []
        threads = set()

        def hear(event: object) -> None:
            told.append(event)
            threads.add(get_ident())

        self.found(FakeSpreading(self.SLOWER), four_hosts(), on_event=hear)
        assert threads == {get_ident()}
        for ended in (event for event in told if isinstance(event, TrialEnded)):
            before = told[: told.index(ended)]
            assert ended.trial.number in {e.number for e in before if isinstance(e, TrialStarted)}

    def test_an_interrupt_ends_what_runs_on_all_nodes(self) -> None:
        runner, hosts = FakeSpreading(self.SLOWER), four_hosts()

        def hear(event: object) -> None:
            if isinstance(event, TrialStarted) and event.number == 3:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            self.found(runner, hosts, on_event=hear)
        assert runner._now == []

    def test_plans_of_several_nodes_have_theirs_alone(self) -> None:
        runner, hosts = FakeSpreading(self.SLOWER), four_hosts()
        tune(hosts, runner)
        assert {plan.nodes for _, plan in runner.ran} > {1}
        assert all(node == "alpha" for node, plan in runner.ran if plan.nodes > 1)

    @pytest.mark.parametrize("off", ["one host", "all hosts", "other kind"])
    def test_where_it_cannot_pay_one_trial_follows_the_other(self, off: str) -> None:
        hosts = (
            four_hosts(SMALL.facts, EIGHT, EIGHT, EIGHT) if off == "other kind" else four_hosts()
        )
        for name in ("beta", "gamma", "delta") if off == "one host" else ():
            hosts.leave_out(name)
        runner = FakeSpreading(self.SLOWER)
        tune(hosts, runner, fix={"nodes": 4 if off == "all hosts" else 1})
        assert {node for node, _ in runner.ran} == {"alpha"}


class TestInterfaces:
    def test_what_leads_to_all_hosts_is_tried_with_plans_for_several_nodes(self) -> None:
        space = over(EIGHT, EIGHT, interfaces=("ib0", "eth0"))
        named = {(plan.nodes, plan.setting("interface")) for plan in space.plans()}
        assert named == {(1, "default"), (2, "default"), (2, "eth0")}
        assert any(plan.describe().startswith("2 nodes, over eth0, ") for plan in space.plans())

    def test_one_that_leads_nowhere_is_refused_with_those_that_do(self) -> None:
        with pytest.raises(UsageError) as caught:
            over(EIGHT, EIGHT, interfaces=("ib0",), fix={"interface": "wlan0"})
        assert caught.value.hint == "the interfaces that lead to all hosts are ib0"

    def test_the_result_says_which_one_it_was(self) -> None:
        hosts = four_hosts()
        assert tune(hosts, loses(hosts, "nobody", when=1), budget=4).interface == "ib0"


class TestLosing:
    def test_nothing_is_lost_and_more_nodes_win(self) -> None:
        hosts = four_hosts()
        result = tune(hosts, loses(hosts, "nobody", when=1))
        assert result.hosts == ("alpha", "beta", "gamma", "delta")
        assert result.best.plan.nodes == 4

    def test_the_last_host_ends_one_trial_and_the_study_goes_on(self) -> None:
        hosts = four_hosts()
        result = tune(hosts, loses(hosts, "delta", when=1))
        (lost,) = [trial for trial in result.trials if trial.kind == "host lost"]
        assert lost.reason == "delta was lost: the connection was cut"
        assert {trial.plan.nodes for trial in result.trials if trial.state == COMPLETED} == {1, 2}
        assert result.best.plan.nodes == 2
        assert any("goes on with alpha, beta, gamma" in note for note in result.notes)

    def test_the_first_host_is_lost_with_todays_launch(self) -> None:
        hosts = four_hosts()
        result = tune(hosts, loses(hosts, "alpha", when=1), budget=4)
        assert hosts.names == ("beta", "gamma", "delta")
        assert [trial.plan.as_found for trial in result.trials[:2]] == [True, True]
        assert result.baseline.plan.as_found
        assert result.speedup.pairs > 0

    def test_the_only_host_is_lost_and_what_was_found_is_told(self) -> None:
        hosts = four_hosts()
        for name in ("beta", "gamma", "delta"):
            hosts.leave_out(name)
        result = tune(hosts, loses(hosts, "alpha", when=3))
        assert [trial.kind for trial in result.trials][-1] == "host lost"
        assert any("no host is left" in note for note in result.notes)

    def test_no_host_and_no_trial_is_an_error(self) -> None:
        hosts = four_hosts()
        for name in ("beta", "gamma", "delta"):
            hosts.leave_out(name)
        with pytest.raises(NoValidTrialError) as caught:
            tune(hosts, loses(hosts, "alpha", when=1))
        assert "alpha was lost" in (caught.value.hint or "")
