"""Plans over several hosts: which there are, and a study that loses a host on its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from golden_texts import Golden
from machines import machine
from tuner.fakes import SMALL, FakeRunner

import cputune
from cputune import HostFacts, Node, Plan, Result, SearchSpace, Step, UsageError, search_space
from cputune.host.remote.probed import Probed
from cputune.ranks.hosts import RankHosts
from cputune.records.result import COMPLETED
from cputune.records.steps import HostLost

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

    def test_more_nodes_than_hosts_cannot_be_asked_for(self, golden: Golden) -> None:
        with golden.raises(UsageError) as caught:
            over(EIGHT, EIGHT, fix={"nodes": 3})
        golden(caught.value.hint)

    def test_the_guide_is_tried_on_all_nodes_and_the_topology_on_one(self) -> None:
        space = over(EIGHT, EIGHT, EIGHT)  # 3 do not divide the global batch
        assert {origin: p.nodes for origin, p in space.suggestions} == {"guide": 2, "topology": 1}
        assert "global batch of 8 cannot be divided" in why(space, "nodes=3")


NAMES = ("alpha", "beta", "gamma", "delta")
HOSTS = RankHosts(
    hosts=[Probed(node=Node(name=name), facts=SMALL.facts) for name in NAMES], interface="ib0"
)
"""Hosts that nobody speaks to."""


def seconds(plan: Plan) -> float:
    """A second node helps."""
    return SMALL.seconds(replace(plan, nodes=1)) / plan.nodes**0.5


def loses(name: str) -> FakeRunner:
    """A runner to which a host is lost in the first trial on it."""

    def script(plan: Plan, before: int) -> Iterator[Step]:
        if name in HOSTS.names[: plan.nodes]:
            raise HostLost(name, "the connection was cut")
        while True:
            yield Step(seconds(plan), samples=8)

    return FakeRunner(script)


def tune(runner: FakeRunner, **options: object) -> Result:
    return cputune.tune(SMALL.workload, hosts=HOSTS, runner=runner, **options)  # type: ignore[arg-type]


class TestLosing:
    def test_a_lost_host_ends_the_study_with_what_was_found(self) -> None:
        runner = loses("delta")
        result = tune(runner)
        *ran, lost = result.trials
        assert (lost.kind, lost.reason) == ("host lost", "delta was lost: the connection was cut")
        assert {trial.state for trial in ran} == {COMPLETED}
        assert lost.plan == runner.started[-1]
        assert not result.confirmation
        assert any("the study ends here" in note for note in result.notes)

    def test_a_study_goes_on_if_the_host_is_back(self, tmp_path: Path) -> None:
        study = tmp_path / "s.db"
        before = tune(loses("delta"), study=study)
        result = tune(loses("nobody"), study=study, resume=True)
        assert before.trials[:-1] == result.trials[: len(before.trials) - 1]
        assert result.best.plan.nodes == 4
        assert result.speedup.pairs > 0
