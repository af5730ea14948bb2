"""One cut for tuner, launches and pods: a container's ranks lie as those of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hosts.recordings import NAMES, open_recording
from rows import every_row

from cputune import HostFacts, probe
from cputune.host.facts import Core
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan, rank_counts
from cputune.plans.placing import (
    SeenCore,
    by_caches,
    evenly,
    groups,
    pod_shares,
    rank_slices,
    seen_cores,
    team,
)


def cached(*sizes: int, nodes: tuple[int, ...] = ()) -> tuple[SeenCore, ...]:
    """Cores of L3 caches that have so many each, on these NUMA nodes."""
    of = [cache for cache, size in enumerate(sizes) for _ in range(size)]
    return tuple(
        SeenCore((cpu,), 0, nodes[cache] if nodes else 0, cache) for cpu, cache in enumerate(of)
    )


def first_cpus(*parts: Sequence[SeenCore | Core]) -> list[list[int]]:
    return [[core.cpus[0] for core in part] for part in parts]


def plans_and_pods(facts: HostFacts, root: Path) -> int:
    """Hold the shares of a pod that has the whole machine against every plan on it."""
    cores, held = usable_cores(facts), 0
    seen = seen_cores([cpu for core in cores for cpu in core.cpus], str(root / "sys"))
    for ranks in rank_counts(cores):
        for smt in (False, True):
            for workers in (0, 1):
                try:
                    plan = make_plan(cores, ranks, smt=smt, ccl_workers=workers)
                except ValueError:
                    continue
                if len({len(cpus) for cpus in plan.cpus}) > 1:
                    continue  # a core without its sibling: threads are fewer than CPUs
                shares = pod_shares(seen, ranks, plan.threads_per_process, workers)
                assert shares is not None
                assert tuple(tuple(cpus) for cpus, _ in shares) == plan.cpus
                if workers:
                    assert tuple(tuple(own) for _, own in shares) == plan.ccl_cpus
                held += 1
    return held


@pytest.mark.parametrize("name", NAMES)
def test_on_every_recorded_machine_too(name: str, tmp_path: Path) -> None:
    assert plans_and_pods(probe(open_recording(name, tmp_path)), tmp_path)


def test_what_does_not_fit_is_not_cut() -> None:
    assert pod_shares(seen_cores((0, 1), "/nowhere"), 2, 2, 0) is None
    assert pod_shares(seen_cores((0,), "/nowhere"), 2, 1, 0) is None
    assert pod_shares(seen_cores((0, 1, 2, 3), "/nowhere"), 2, 2, 0) == [([0, 1], []), ([2, 3], [])]


def test_cores_are_in_the_order_of_their_first_cpus(tmp_path: Path) -> None:
    for cpu, together in enumerate(("0,3", "1-2", "1-2", "0,3")):
        at = tmp_path / f"devices/system/cpu/cpu{cpu}"
        (at / "topology").mkdir(parents=True)
        (at / "topology/core_cpus_list").write_text(together + "\n")
        (at / "cache/index3").mkdir(parents=True)
        (at / "cache/index3/shared_cpu_list").write_text(together)
        (at / "cache/index3/level").write_text("3\n" if together == "1-2" else "2\n")
    assert seen_cores((3, 1, 2, 0), str(tmp_path)) == [
        SeenCore((0, 3), 0, 0, None),
        SeenCore((1, 2), 0, 0, 0),
    ]


def test_ranks_have_whole_caches_if_few_cores_are_idle_for_it() -> None:
    assert first_cpus(*rank_slices(cached(2, 2, 3, 3), 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert first_cpus(*rank_slices(cached(3, 5), 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert first_cpus(*rank_slices(cached(2, 2, 2), 3)) == [[0, 1], [2, 3], [4, 5]]
    # Nodes come before caches: the last of the first node is idle.
    of_nodes = cached(2, 2, 1, 4, nodes=(0, 0, 0, 1))
    assert first_cpus(*rank_slices(of_nodes, 2)) == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_a_team_has_its_share_of_each_cache() -> None:
    cores = cached(4, 4)
    assert first_cpus(evenly(cores, 4), team(cores, 4)) == [[0, 1, 4, 5], [0, 1, 4, 5]]
    assert first_cpus(evenly(cached(1, 4), 4), evenly(cores, 9)) == [[0, 1, 2, 3], [*range(8)]]
    assert team(cores, 8) == cores
    of_nodes = cached(2, 2, 2, 2, nodes=(0, 0, 1, 1))
    assert first_cpus(evenly(of_nodes, 2), evenly(of_nodes, 4)) == [[0, 4], [0, 2, 4, 6]]
    assert first_cpus(team(of_nodes, 2), team(of_nodes, 6)) == [[0, 2], [0, 1, 2, 4, 5, 6]]
    assert len(groups(of_nodes, by_node=True)) == 2
    assert len(by_caches(of_nodes)) == 4
    assert first_cpus(team(of_nodes, 4)) == [[0, 1, 2, 3]]
    of_sockets = [
        core._replace(socket=core.cpus[0] // 6) for core in cached(3, 3, 6, nodes=(0, 1, 2))
    ]
    assert first_cpus(team(of_sockets, 4)) == [[0, 1, 3, 4]]
    assert pod_shares(cores, 1, 2, 0) == [([0, 4], [])]


@every_row(
    ("ranks", "threads", "workers", "shares"),
    [
        (2, 1, 0, [([0], []), ([2], [])]),  # a core each
        (2, 2, 0, [([0, 1], []), ([2, 3], [])]),  # more threads than cores: siblings too
        (1, 2, 0, [([0, 2], [])]),
        (2, 1, 1, [([1], [0]), ([3], [2])]),  # a worker on the first CPU of each share
        (3, 2, 0, None),  # fewer than its ranks need
    ],
)
def test_cores_with_siblings(ranks: int, threads: int, workers: int, shares: object) -> None:
    cores = [SeenCore((0, 1), 0, 0), SeenCore((2, 3), 0, 0)]
    assert pod_shares(cores, ranks, threads, workers) == shares
