"""Ranks on cores: even slices, no rank astride a border that could be avoided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden_texts import Golden
from machines import IPEX_ERA, machine
from rows import every_row

from cputune import HostFacts
from cputune.host.facts import Core, Launcher
from cputune.plans.cores import nodes_spanned, usable_cores
from cputune.plans.layout import (
    advise,
    default_threads,
    fast_cores,
    guide_plan,
    make_plan,
    rank_counts,
    thinkable_ranks,
    thread_counts,
    why_not_ranks,
)

TWO_OF_28 = {"sockets": 2, "cores_per_socket": 28, "nodes_per_socket": 2}
TWO_OF_9 = {"sockets": 2, "cores_per_socket": 9}


class TestUsableCores:
    def test_are_as_many_as_the_quota_pays_for(self) -> None:
        assert len(usable_cores(machine(cores_per_socket=8, cpu_quota=0.5))) == 1

    def test_a_socket_shares_its_part_among_its_nodes(self) -> None:
        facts = machine(sockets=2, cores_per_socket=8, nodes_per_socket=2, cpu_quota=12)
        nodes = [core.numa_node for core in usable_cores(facts)]
        assert [nodes.count(node) for node in range(4)] == [3, 3, 3, 3]

    @every_row(
        "ordered",
        [
            [(0, 0, (0, 7)), (0, 0, (2, 5)), (1, 1, (1, 6)), (1, 1, (3, 4))],  # over the sockets
            [(0, 0, (0, 7)), (0, 0, (2, 5)), (0, 1, (1, 6)), (0, 1, (3, 4))],  # over the nodes
            [(0, 0, (0, 7)), (0, 0, (1, 6)), (0, 0, (2, 5)), (0, 0, (3, 4))],  # by first CPU
            [(0, None, (2, 5)), (0, None, (3, 4)), (0, 0, (0, 7)), (0, 0, (1, 6))],
        ],
    )
    def test_are_in_the_order_of_sockets_then_nodes_then_first_cpus(
        self, ordered: list[tuple[int, int | None, tuple[int, int]]]
    ) -> None:
        cores = tuple(Core(socket=s, numa_node=n, cpus=cpus) for s, n, cpus in ordered)
        facts = machine(cores_per_socket=4, threads_per_core=2)
        facts = replace(facts, topology=replace(facts.topology, cores=cores[::-1]))
        assert usable_cores(facts) == cores

    def test_fast_cores_come_first(self) -> None:
        facts = machine(cores_per_socket=4)
        cores = tuple(
            replace(core, max_khz=khz)
            for core, khz in zip(facts.topology.cores, (3, 3, 5, 5), strict=True)
        )
        facts = replace(facts, topology=replace(facts.topology, cores=cores, hybrid=True))
        assert [core.cpus[0] for core in usable_cores(facts)] == [2, 3, 0, 1]

    @every_row(
        ("shape", "quota", "cores"),
        [
            (TWO_OF_28, 40, (20, 20)),
            (TWO_OF_28, 30, (28, 0)),
            (TWO_OF_28, 3.9, (3, 0)),
            (TWO_OF_28, 56, (28, 28)),
            # On the largest sockets, and where they hold nine tenths of it.
            ({**TWO_OF_9, "allowed": (0, 1, *range(9, 15))}, 5, (0, 5)),
            (TWO_OF_9, 10, (9, 0)),
        ],
    )
    def test_a_quota_is_used_on_the_fewest_sockets(
        self, shape: dict[str, Any], quota: float, cores: tuple[int, ...]
    ) -> None:
        found = [core.socket for core in usable_cores(machine(**shape, cpu_quota=quota))]
        assert (found.count(0), found.count(1)) == cores


class TestCounts:
    def test_of_ranks_over_sockets_of_two_nodes_and_of_one(self) -> None:
        cores = tuple(Core(cpus=(cpu,), socket=cpu // 18, numa_node=cpu // 9) for cpu in range(27))
        assert why_not_ranks(cores, 2) is None

    @pytest.mark.parametrize(("paid", "good"), [(10, True), (11, False)])
    def test_of_ranks_use_nine_tenths_of_what_a_quota_pays_for(self, paid: int, good: bool) -> None:
        cores = usable_cores(machine(cores_per_socket=9))
        assert (why_not_ranks(cores, 3, paid=paid) is None) == good

    @pytest.mark.parametrize(
        ("cores", "each", "counts"),
        [
            (32, 2, (*range(1, 9), 16)),  # a rank for each cache, of two cores or more
            (16, 2, tuple(range(1, 9))),
            (20, 1, tuple(range(1, 9))),
        ],
    )
    def test_of_ranks_that_are_thought_of(
        self, cores: int, each: int, counts: tuple[int, ...]
    ) -> None:
        found = (Core(cpus=(cpu,), socket=0, numa_node=0, l3=cpu // each) for cpu in range(cores))
        assert thinkable_ranks(tuple(found)) == counts

    def test_without_a_core_no_number_of_threads_is_tried(self) -> None:
        assert thread_counts(()) == ()

    @every_row(
        ("shape", "counts"),
        [
            ({"cores_per_socket": 2}, (1, 2)),
            ({"cores_per_socket": 7}, (1, 2, 3, 6, 7)),
            ({"sockets": 2, "cores_per_socket": 8}, (1, 2, 4, 8)),
            ({"sockets": 2, "cores_per_socket": 8, "nodes_per_socket": 2}, (1, 2, 4, 8)),
            ({"sockets": 8, "cores_per_socket": 8}, (1, 2, 4, 8, 16, 32)),
            ({"sockets": 24, "cores_per_socket": 1}, (1, 2, 3, 4, 6, 8, 12, 24)),
            ({"cores_per_socket": 8}, (1, 2, 4, 7, 8)),
            ({"cores_per_socket": 9}, (1, 2, 3, 4)),
            ({"cores_per_socket": 32}, (1, 2, 3, 4, 5, 6, 7, 8)),
            ({"cores_per_socket": 12, "nodes_per_socket": 12}, (1, 2, 3, 4, 5, 6, 10, 11, 12)),
            ({"sockets": 2, "cores_per_socket": 10}, (1, 2, 4, 6, 8, 10)),
        ],
    )
    def test_of_ranks(self, shape: dict[str, int], counts: tuple[int, ...]) -> None:
        assert rank_counts(usable_cores(machine(**shape))) == counts

    def test_of_threads_include_the_borders(self) -> None:
        cores = usable_cores(machine(sockets=2, cores_per_socket=10, nodes_per_socket=2))
        assert thread_counts(cores) == (20, 15, 10, 5)
        assert thread_counts(cores[:10], ccl_workers=2) == (8, 6, 4, 3, 2)

        assert thread_counts(cores[:15]) == (15, 11, 10, 7, 5, 3)


def of_speeds(*khz: int, hybrid: bool) -> HostFacts:
    facts = machine(cores_per_socket=len(khz))
    cores = zip(facts.topology.cores, khz, strict=True)
    fast = tuple(replace(core, max_khz=of) for core, of in cores)
    return replace(facts, topology=replace(facts.topology, cores=fast, hybrid=hybrid))


TWO_OF_TWO = {"sockets": 2, "cores_per_socket": 2, "nodes_per_socket": 2}
DIVIDED = "a global batch of 2 is divided by 1 on each of 2 machines"


class TestAdvice:
    @every_row(
        ("shape", "asked", "layout", "why"),
        [
            # Two cores of a socket make a rank, one does not: then nodes count, of two cores too.
            (TWO_OF_TWO, {}, (2, 2), "one rank per socket"),
            ({"sockets": 2}, {"batch": 2, "nodes": 2}, (1, 16), DIVIDED),
            ({"cores_per_socket": 1}, {"ccl_workers": 1}, (1, 1), "one rank"),
        ],
    )
    def test_of_ranks_threads_and_workers(
        self, shape: dict[str, Any], asked: dict[str, int], layout: tuple[int, int], why: str
    ) -> None:
        found = advise(machine(**shape), **asked)
        assert (found.ranks, found.threads, found.ccl_workers) == (*layout, 0)
        assert found.why == why

    def test_threads_have_the_first_cpu_of_each_core_behind_the_workers(self) -> None:
        facts = machine(sockets=2, cores_per_socket=3, threads_per_core=2)
        assert advise(facts, ccl_workers=1).cpus == (1, 2, 4, 5)
        assert advise(machine(cores_per_socket=2), ranks=2).cpus == (0, 1)
        assert advise(machine(cores_per_socket=2), ranks=3).cpus == (0, 0, 0)

    def test_slow_cores_of_a_hybrid_machine_stay_out(self) -> None:
        found = advise(of_speeds(10, 10, 9, 6, hybrid=True))
        assert (found.threads, found.why) == (2, "one rank on the 2 fast ones of 4 cores")
        assert advise(of_speeds(10, 10, hybrid=True)).why == "one rank"
        # One that turbo favours is not of another kind.
        assert advise(of_speeds(10, 8, hybrid=False)).threads == 2
        assert fast_cores(()) == ()

    def test_sockets_of_one_core_say_nothing_of_the_hardware(self, golden: Golden) -> None:
        facts = machine(sockets=8, cores_per_socket=1)
        pairs = (replace(core, numa_node=core.socket // 2) for core in facts.topology.cores)
        found = advise(replace(facts, topology=replace(facts.topology, cores=tuple(pairs))))
        assert (found.ranks, found.threads) == (4, 2)
        golden(found.why)


class TestPlans:
    def test_threads_take_a_core_each_and_leave_the_rest(self) -> None:
        cores = usable_cores(machine(cores_per_socket=2, threads_per_core=2))
        assert make_plan(cores, 1, threads=1).cpus == ((0,),)
        assert make_plan(cores, 1, threads=3, smt=True).cpus == ((0, 1, 2, 3),)

    def test_workers_may_share_every_core_with_threads(self) -> None:
        cores = usable_cores(machine(cores_per_socket=2))
        plan = make_plan(cores, 1, ccl_workers=2, share_cores=True)
        assert (plan.cpus, plan.ccl_cpus) == (((0, 1),), ((0, 1),))

    @pytest.mark.parametrize(
        ("call", "why"),
        [
            ({"threads": 3}, "3 threads do not fit on the 2 CPUs"),
            ({"ccl_workers": 2}, "2 oneCCL workers leave no core of 2"),
            ({"ccl_workers": 3, "share_cores": True}, "3 oneCCL workers leave no core of 2"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, call: dict[str, Any], why: str) -> None:
        with pytest.raises(ValueError, match=why):
            make_plan(usable_cores(machine(cores_per_socket=2)), 1, **call)

    def test_sockets_and_nodes_under_cpus(self) -> None:
        facts = machine(sockets=2, cores_per_socket=4, nodes_per_socket=2)
        assert nodes_spanned(facts, (0, 1)) == (1, 1)
        assert nodes_spanned(facts, (0, 2)) == (1, 2)
        assert nodes_spanned(facts, tuple(range(8))) == (2, 4)

    @every_row(
        ("value", "threads"), [("1", 1), ("3", 3), ("2,1", 2), ("0", 8), ("all", 8), ("", 8)]
    )
    def test_threads_of_a_plain_run(self, value: str, threads: int) -> None:
        facts = machine(cores_per_socket=8, environment={"OMP_NUM_THREADS": value})
        assert default_threads(facts) == threads

    def test_a_rank_has_as_many_threads_as_the_smallest_has_cpus(self) -> None:
        facts = machine(cores_per_socket=2, threads_per_core=2, allowed=(0, 1, 3))
        plan = make_plan(usable_cores(facts), 2, smt=True)
        assert (plan.threads_per_process, plan.cpus) == (1, ((0,), (1, 3)))

    @every_row(
        ("sockets", "cores", "backend", "workers"),
        [(1, 8, "gloo", 0), (2, 8, "ccl", 1), (2, 2, "ccl", 1), (2, 1, "gloo", 0)],
    )
    def test_the_guide_has_oneccl_if_ranks_speak_and_have_a_core_for_it(
        self, sockets: int, cores: int, backend: str, workers: int
    ) -> None:
        facts = machine(sockets=sockets, cores_per_socket=cores, packages=IPEX_ERA)
        mpi = Launcher(name="mpirun", path="/opt/intel/mpirun", dialect="intelmpi")
        guide = guide_plan(replace(facts, launchers=(mpi,)))
        assert (guide.backend, guide.ccl_workers, guide.ipex) == (backend, workers, True)
        assert not make_plan(usable_cores(facts), 1).ipex
