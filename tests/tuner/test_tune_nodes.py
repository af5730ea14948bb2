"""Plans over several hosts: which there are, and a study that loses a host on its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from machines import machine
from tuner.fakes import SMALL, FakeRunner

import cputune
from cputune.errors import NoValidTrialError, UsageError
from cputune.facts import HostFacts
from cputune.knobs.affinity import node_counts
from cputune.plan import Plan
from cputune.ranks.hosts import RankHost, RankHosts
from cputune.remote.named import Node
from cputune.result import COMPLETED, Result
from cputune.steps import HostLost, Step
from cputune.tuner.space import SearchSpace, build_space

JOB = cputune.Workload.from_recipe("bert-mini")
EIGHT = machine(cores_per_socket=8)


def over(*facts: HostFacts, **options: object) -> SearchSpace:
    hosts = tuple((f"node{number}", one) for number, one in enumerate(facts, start=1))
    return build_space(facts[0], JOB, hosts=hosts, **options)  # type: ignore[arg-type]


def why(space: SearchSpace, what: str) -> str:
    return next(out.why for out in space.left_out if out.what == what)


class TestSpace:
    def test_one_node_two_four_and_all(self) -> None:
        counts = [tuple(node_counts(hosts)) for hosts in (1, 2, 3, 4, 6)]
        assert counts == [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 4, 6)]

    def test_two_hosts_double_the_ranks_of_one_global_batch(self) -> None:
        space = over(EIGHT, EIGHT)
        assert {plan.nodes for plan in space.plans()} == {1, 2}
        assert all(8 % plan.world_size == 0 for plan in space.plans())
        assert 8 in {plan.world_size for plan in space.plans() if plan.nodes == 2}

    def test_one_rank_on_each_of_two_nodes_speaks_over_gloo(self) -> None:
        plan = next(p for p in over(EIGHT, EIGHT).plans() if p.nodes == p.world_size == 2)
        assert plan.describe().startswith("2 nodes, 1 × ")
        assert plan.backend == "gloo"

    def test_a_host_with_too_few_cores_is_named(self) -> None:
        space = over(EIGHT, machine(cores_per_socket=2), fix={"threads": 8})
        assert {plan.nodes for plan in space.plans()} == {1}
        assert "does not fit on node2" in why(space, "nodes=2")

    def test_what_one_host_lacks_is_no_value_and_the_host_is_named(self) -> None:
        with_tcmalloc = machine(cores_per_socket=8, libraries=("tcmalloc",))
        space = over(with_tcmalloc, EIGHT)
        assert {plan.allocator for plan in space.plans()} == {"default"}
        assert why(space, "allocator=tcmalloc").startswith("on node2: ")

    def test_more_nodes_than_hosts_cannot_be_asked_for(self) -> None:
        with pytest.raises(UsageError, match="no plan of this machine has nodes=3") as caught:
            over(EIGHT, EIGHT, fix={"nodes": 3})
        assert caught.value.hint == "2 hosts can be used (--hosts names more)"

    def test_a_batch_that_so_many_nodes_cannot_divide_is_refused_before_a_trial(self) -> None:
        with pytest.raises(UsageError, match="no plan of this machine has nodes=3") as caught:
            over(EIGHT, EIGHT, EIGHT, fix={"nodes": 3})
        assert "global batch of 8 cannot be divided" in (caught.value.hint or "")

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
        RankHost(node=Node(name=name), facts=one)
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


class TestInterfaces:
    def test_what_leads_to_all_hosts_is_tried_with_plans_for_several_nodes(self) -> None:
        space = over(EIGHT, EIGHT, interfaces=("ib0", "eth0"))
        named = {(plan.nodes, plan.setting("interface")) for plan in space.plans()}
        assert named == {(1, "default"), (2, "default"), (2, "eth0")}
        assert any(plan.describe().startswith("2 nodes, over eth0, ") for plan in space.plans())

    def test_one_that_is_asked_for_leaves_the_plans_of_one_node_as_they_are(self) -> None:
        space = over(EIGHT, EIGHT, interfaces=("ib0", "eth0"), fix={"interface": "eth0"})
        named = {(plan.nodes, plan.setting("interface")) for plan in space.plans()}
        assert named == {(1, "default"), (2, "eth0")}

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
        assert any("went on with alpha, beta, gamma" in note for note in result.notes)

    def test_those_behind_move_up_where_they_have_the_same_cores(self) -> None:
        hosts = four_hosts()
        result = tune(hosts, loses(hosts, "beta", when=1))
        assert hosts.names == ("alpha", "gamma", "delta")
        assert result.best.plan.nodes == 2

    def test_those_with_other_cores_do_not(self) -> None:
        hosts = four_hosts(SMALL.facts, SMALL.facts, EIGHT, SMALL.facts)
        hosts.leave_out("beta")
        assert hosts.names == ("alpha",)

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
