"""L3 caches and NUMA nodes: read and laid out on machines that are well known."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden_texts import Golden
from hosts.builder import machine
from hosts.known import KNOWN
from rows import every_row

from cputune import HostFacts, RecordedHost, probe
from cputune.host.probing.recording import record
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan, rank_counts
from cputune.plans.placing import rank_slices
from cputune.report.machine_text import host_document, machine_lines


@cache
def known(name: str) -> HostFacts:
    return probe(machine(None, **KNOWN[name]))


@pytest.mark.parametrize(
    ("name", "caches", "mib"),
    [("milan-nps4", 16, 32), ("genoa-nps4", 12, 32), ("xeon-max-flat", 2, 112)],
)
def test_caches_and_their_sizes(name: str, caches: int, mib: int) -> None:
    topology = host_document(known(name))["topology"]
    assert [cache["size_bytes"] for cache in topology["l3"]] == [mib << 20] * caches


def test_caches_of_which_nothing_tells_are_not_known(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, l3=0))
    assert (facts.topology.l3, facts.topology.cores[0].l3) == (None, None)
    assert facts.why_unknown("topology.l3")


def test_a_recording_holds_all_of_it(tmp_path: Path) -> None:
    small = {**KNOWN["cxl"], "cores": 4, "smt": 1}
    host = machine(tmp_path / "live", **small)
    assert isinstance(host, RecordedHost)
    replayed = probe(record(host, tmp_path / "recorded"))
    assert host_document(replayed)["topology"] == host_document(probe(host))["topology"]


@every_row("name", KNOWN)
def test_a_rank_for_each_cache_and_node_is_offered_and_none_lies_astride(name: str) -> None:
    cores = usable_cores(known(name))
    parts = {(c.numa_node, c.l3) for c in cores}, {c.numa_node for c in cores}
    assert {len(part) for part in parts} <= set(rank_counts(cores))
    for ranks, key in zip(map(len, parts), ("l3", "numa_node"), strict=True):
        of_rank = [{getattr(core, key) for core in part} for part in rank_slices(cores, ranks)]
        assert all(len(values) == 1 for values in of_rank)


def test_ranks_have_whole_caches_if_one_core_is_missing() -> None:
    facts = probe(machine(None, **{**KNOWN["genoa-nps4"], "smt": 1, "offline": "3"}))
    for part in rank_slices(usable_cores(facts), 2):
        assert len({core.l3 for core in part}) == 6
        assert len(part) == 47


@every_row(
    ("name", "ranks", "threads", "each"),
    [
        # two ranks of 48: all four nodes of each socket, and all of their caches
        ("genoa-nps4", 1, 48, {"numa_node": 12, "l3": 4}),
        ("milan-nps4", 2, 32, {"numa_node": 8, "l3": 4}),
        # what fits on a node stays there, on all caches of it
        ("genoa-nps4", 2, 12, {"numa_node": 12, "l3": 4}),
        ("genoa-nps1", 2, 48, {"numa_node": 48, "l3": 4}),
    ],
)
def test_fewer_threads_than_cores_have_all_controllers_and_caches(
    name: str, ranks: int, threads: int, each: dict[str, int]
) -> None:
    cores = usable_cores(known(name))
    plan = make_plan(cores, ranks, threads=threads)
    where: Any = {cpu: core for core in cores for cpu in core.cpus}
    for key, count in each.items():
        for cpus in plan.cpus:
            counted = Counter(getattr(where[cpu], key) for cpu in cpus)
            assert set(counted.values()) == {count}


def test_people_see_the_cpus_and_the_memory_of_each_node(golden: Golden) -> None:
    told = dict(machine_lines(known("cxl")))["NUMA nodes"]
    golden(told)
    assert "NUMA nodes" not in dict(machine_lines(probe(machine(None, cores=4))))
