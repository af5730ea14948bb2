"""Layouts over several hosts: each has CPUs by its own cores, and hosts of a kind are alike."""

from __future__ import annotations

from machines import machine

import cputune
from cputune.facts import HostFacts
from cputune.tuner.space import SearchSpace

SMALL, LARGE = machine(sockets=2, cores_per_socket=4), machine(sockets=2, cores_per_socket=6)


def space_of(*machines: HostFacts) -> SearchSpace:
    hosts = [(f"node{number}", facts) for number, facts in enumerate(machines)]
    job = cputune.Workload.from_recipe("bert-mini")
    return cputune.search_space(machines[0], job, hosts=hosts)


def test_alike_hosts_have_one_list_for_all() -> None:
    plans = [plan for plan in space_of(SMALL, SMALL, SMALL, SMALL).plans() if plan.nodes == 4]
    assert plans
    assert not any(plan.node_cpus for plan in plans)


def test_each_kind_is_laid_out_by_its_own_cores_and_once() -> None:
    plans = space_of(SMALL, LARGE, SMALL, LARGE).plans()
    (plan,) = [p for p in plans if (p.nodes, p.processes_per_node) == (4, 2) and is_largest(p)]
    first, second, third, fourth = plan.node_cpus
    assert first == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert second == ((0, 1, 2, 3), (6, 7, 8, 9))
    assert third is first
    assert fourth is second


def is_largest(plan: cputune.Plan) -> bool:
    return plan.threads_per_process == 4 and plan.precision == "bf16"
