"""One cut for tuner, launches and pods: a container's ranks lie as those of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.recordings import NAMES, open_recording
from rows import every_row

from cputune import HostFacts, probe
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan, rank_counts
from cputune.plans.placing import (
    SeenCore,
    pod_shares,
    seen_cores,
)


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


@every_row(
    ("ranks", "threads", "workers", "shares"),
    [
        (2, 1, 0, [([0], []), ([2], [])]),  # a core each
    ],
)
def test_cores_with_siblings(ranks: int, threads: int, workers: int, shares: object) -> None:
    cores = [SeenCore((0, 1), 0, 0), SeenCore((2, 3), 0, 0)]
    assert pod_shares(cores, ranks, threads, workers) == shares


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
