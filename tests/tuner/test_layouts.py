"""Which layouts of ranks there are on a machine, or on several, and why there are no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from golden_texts import Golden
from machines import machine
from rows import every_row

import cputune
from cputune import HostFacts, SearchSpace, UsageError, Workload
from cputune.plans.knobs.record import Ask
from cputune.plans.memory import needed_bytes
from cputune.tuner.layouts import Layouts

JOB = Workload.from_recipe("bert-mini")  # 8 samples a step
SMALL, LARGE = machine(sockets=2, cores_per_socket=4), machine(sockets=2, cores_per_socket=6)
CCL = ("gloo", "ccl")


def laid(
    facts: HostFacts,
    *others: HostFacts,
    job: Workload = JOB,
    backends: tuple[str, ...] = ("gloo",),
    **fixed: Any,
) -> Layouts:
    hosts = tuple((f"node{n}", of) for n, of in enumerate((facts, *others))) if others else ()
    ask = Ask(workload=job, fixed=fixed, hosts=hosts)
    return Layouts(facts=facts, workload=job, ask=ask, backends=backends)


def told(layouts: Layouts) -> list[str]:
    """Ranks × threads of each layout, ``s`` with siblings, its oneCCL workers, its nodes."""
    found = []
    for plan, values in layouts.plans():
        name = f"{values['ranks']}×{values['threads']}{'s' if values['smt'] else ''}"
        name += f" ccl{values['ccl_workers']}" if values["backend"] == "ccl" else ""
        assert values["nodes"] == plan.nodes
        assert values["ranks"] == plan.processes_per_node
        assert values["threads"] == plan.threads_per_process
        assert (values["backend"], values["ccl_workers"]) == (plan.backend, plan.ccl_workers)
        found.append(name if plan.nodes == 1 else f"{plan.nodes} nodes {name}")
    return found


def left_out(layouts: Layouts) -> dict[str, str]:
    list(layouts.plans())
    assert len({out.what for out in layouts.left_out}) == len(layouts.left_out)
    return {out.what: out.why for out in layouts.left_out}


ONE, TWO, THREE, EIGHT = ({"cores_per_socket": cores} for cores in (1, 2, 3, 8))
TWO_OF_SMT = {**TWO, "threads_per_core": 2}
FOUR_OF_SMT = {"cores_per_socket": 4, "threads_per_core": 2}
QUOTA_OF_3_9 = {"sockets": 2, **EIGHT, "threads_per_core": 2, "cpu_quota": 3.9}
TWO_RANKS = {"ranks": 2, "backends": CCL}


@every_row(
    ("shape", "fixed", "layouts"),
    [
        # All cores, three quarters, half and a quarter of them, then all siblings.
        (FOUR_OF_SMT, {}, "1×4 1×3 1×2 1×1 1×8s 2×2 2×1 2×4s 4×1 4×2s"),
        (FOUR_OF_SMT, {"threads": "all"}, "1×4 1×8s 2×2 2×4s 4×1 4×2s"),
        (FOUR_OF_SMT, {"threads": 4}, "1×4 2×4s"),
        (FOUR_OF_SMT, {"threads": 8}, "1×8s"),
        (FOUR_OF_SMT, {"smt": False, "ranks": 2}, "2×2 2×1"),
        # Ranks that somebody asks for need only fit.
        (EIGHT, {"ranks": 2, "threads": 3}, "2×3"),
        (EIGHT, {"ranks": 8}, "8×1"),
        # As many workers as leave at least as many cores; half of them then have a thread or more.
        (EIGHT, TWO_RANKS, "2×4 2×3 2×2 2×1 2×3 ccl1 2×2 ccl1 2×2 ccl2 2×1 ccl2"),
        (EIGHT, {"ranks": 1, "backends": CCL}, "1×8 1×6 1×4 1×2"),
        (EIGHT, {"ranks": 4, "backends": CCL, "backend": "ccl"}, "4×1 ccl1"),
        (EIGHT, {**TWO_RANKS, "ccl_workers": 3}, "2×1 ccl3"),
        ({"cores_per_socket": 16}, {**TWO_RANKS, "threads": 4}, "2×4 2×4 ccl1 2×4 ccl2 2×4 ccl4"),
        (TWO, {**TWO_RANKS, "ccl_workers": 1}, "2×1 ccl1"),
        # A worker for each core runs beside the threads.
        (EIGHT, {**TWO_RANKS, "ccl_workers": 4}, "2×4 ccl4 2×3 ccl4 2×2 ccl4"),
        (TWO, {"backends": CCL, "backend": "ccl"}, "2×1 ccl1"),
        (TWO, {"backends": CCL}, "1×2 1×1 2×1"),
        # It pays for three cores, all on one socket.
        (QUOTA_OF_3_9, {}, "1×3 1×2 1×1"),
        ({**TWO, "cpu_quota": 0.5}, {}, "1×1"),
        ({"cores_per_socket": 1, "threads_per_core": 2, "cpu_quota": 0.5}, {}, "1×1"),
        ({**TWO_OF_SMT, "cpu_quota": 2}, {"ranks": 1}, "1×2 1×1"),
        ({**TWO_OF_SMT, "cpu_quota": 4}, {"ranks": 1}, "1×2 1×1 1×4s"),
    ],
)
def test_the_layouts_of_a_machine(
    shape: dict[str, Any], fixed: dict[str, Any], layouts: str
) -> None:
    of = told(laid(machine(**shape), **fixed))
    words = layouts.replace(" ccl", "ccl").split()
    assert [one.replace(" ", "") for one in of] == words


BATCH = (
    "a global batch of 8 cannot be divided over this number of ranks (--batch-per-rank keeps "
    "each rank's batch instead)"
)
ONE_EACH = "each rank needs a core"
NO_SIBLINGS = {"smt": "the cores have no SMT siblings online"}
TOO_FEW_FOR_CCL = {
    "backend=ccl": "a oneCCL worker takes a core from the threads of its rank, and no two ranks of "
    "this machine have two each (--fix backend=ccl lets them share one)"
}


@every_row(
    ("shape", "fixed", "reasons"),
    [
        (EIGHT, {"ranks": 2, "threads": 3}, NO_SIBLINGS),
        (
            {"sockets": 4, "cores_per_socket": 2, "cpu_quota": 1},
            {},
            {
                "cores": "a CPU quota of 1 allows 1 of 8 cores",
                **NO_SIBLINGS,
                "ranks=2,3,4": f"{ONE_EACH}; one core can be used",
            },
        ),
        (FOUR_OF_SMT, {}, {"ranks=3": "ranks of equal size would leave too many of 4 cores idle"}),
        (EIGHT, {"ranks": 3}, {"ranks=3": BATCH, **NO_SIBLINGS}),
        (EIGHT, {"ranks": 9}, {"ranks=9": f"{ONE_EACH}; 8 cores can be used", **NO_SIBLINGS}),
        (ONE, {"ranks": 2}, {"ranks=2": f"{ONE_EACH}; one core can be used", **NO_SIBLINGS}),
        (THREE, {"backends": CCL, "ranks": 1}, {**NO_SIBLINGS, **TOO_FEW_FOR_CCL}),
        ({"cores_per_socket": 4}, {"backends": CCL, "ranks": 1}, NO_SIBLINGS),
        (THREE, {**TWO_RANKS, "backend": "ccl"}, NO_SIBLINGS),
        (
            QUOTA_OF_3_9,
            {"ranks": 1},
            {
                "cores": "a CPU quota of 3.9 allows 3 of 16 cores",
                "smt": "threads on SMT siblings would exceed the CPU quota of 3.9",
            },
        ),
        (
            EIGHT,
            {"nodes": 2, "ranks": 1},
            {"nodes=2": "one host can be used (--hosts names more)", **NO_SIBLINGS},
        ),
    ],
)
def test_why_there_are_no_others(
    shape: dict[str, Any], fixed: dict[str, Any], reasons: dict[str, str]
) -> None:
    assert left_out(laid(machine(**shape), **fixed)) == reasons


def test_memory_that_does_not_suffice_is_reported_in_gibibytes(golden: Golden) -> None:
    job = Workload.from_recipe("bert-large-squad")
    small = machine(cores_per_socket=4, memory_limit_gib=20)
    assert told(laid(small, job=job, ranks=1, threads="all")) == ["1×4"]
    golden(left_out(laid(small, job=job, ranks=4))["ranks=4"])
    needed = needed_bytes(job, 4)
    just = replace(small, limits=replace(small.limits, memory_bytes=needed))
    assert told(laid(just, job=job, ranks=4)) == ["4×1"]
    # Of several hosts the smallest decides.
    large = machine(cores_per_socket=4)
    job = Workload.from_recipe("bert-large-squad", batch_per_rank=3)
    assert left_out(laid(large, small, job=job, ranks=4, nodes=2))["nodes=2"].startswith(
        "4 ranks on each: needs at least"
    )
    assert told(laid(large, small, job=job, ranks=4, nodes=1, threads="all")) == ["4×1"]


def test_of_a_machine_without_known_cpus_nothing_else_is_said(golden: Golden) -> None:
    facts = machine(cores_per_socket=1)
    bare = replace(facts, topology=replace(facts.topology, cores=(), allowed=()))
    layouts = laid(bare)
    assert told(layouts) == []
    golden({out.what: out.why for out in layouts.left_out}["ranks"])


class TestSeveralHosts:
    def test_the_batch_is_dealt_out_over_all_of_their_ranks(self) -> None:
        reasons = left_out(laid(SMALL, SMALL, ranks=8, threads="all"))
        assert reasons["nodes=2"] == f"8 ranks on each: {BATCH}"
        reasons = left_out(laid(*[SMALL] * 16, ranks=1, nodes=16))
        assert reasons["nodes=16"] == f"one rank on each: {BATCH}"

    def test_oneccl_stays_on_one_host(self) -> None:
        between = "between nodes: trials over several hosts add up gradients over gloo"
        found = told(laid(SMALL, SMALL, ranks=1, threads="all", backends=CCL))
        assert found == ["1×8", "2 nodes 1×8"]
        assert left_out(laid(SMALL, SMALL, ranks=1, backends=CCL))["backend=ccl"] == between
        assert "backend=ccl" not in left_out(laid(SMALL, SMALL, ranks=1, nodes=1, backends=CCL))
        assert "backend=ccl" not in left_out(laid(SMALL, SMALL, ranks=1))

    @staticmethod
    def space(*machines: HostFacts) -> SearchSpace:
        hosts = [(f"node{number}", facts) for number, facts in enumerate(machines)]
        return cputune.search_space(machines[0], JOB, hosts=hosts)

    def test_hosts_with_other_cpus_are_refused_by_name(self, golden: Golden) -> None:
        assert any(plan.nodes == 2 for plan in self.space(SMALL, SMALL).plans())
        with golden.raises(UsageError) as caught:
            self.space(SMALL, LARGE)
        assert "--exclusive" in (caught.value.hint or "")
