"""Sockets, cores, CPUs and nodes of machines that are hard to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import machine
from rows import every_row

from cputune import HostFacts, probe
from cputune.text import cpulist


def counts(facts: HostFacts) -> tuple[int, int, int, int]:
    """Sockets, cores, threads of a core, online CPUs."""
    topology = facts.topology
    assert topology.cores_known
    assert topology.sockets_known
    return (
        topology.sockets,
        topology.physical_cores,
        topology.threads_per_core,
        len(topology.online),
    )


@every_row("kernel", ["new", "old", "bare"])
@every_row("siblings", ["apart", "together"])
def test_two_sockets_with_smt(tmp_path: Path, kernel: str, siblings: str) -> None:
    facts = probe(machine(tmp_path, sockets=2, cores=28, smt=2, kernel=kernel, siblings=siblings))

    assert counts(facts) == (2, 56, 2, 112)
    assert facts.topology.cores[0].cpus == ((0, 56) if siblings == "apart" else (0, 1))
    assert facts.topology.cores_per_socket == (28, 28)


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_offline_cpus_leave_sockets_that_differ(tmp_path: Path, kernel: str) -> None:
    facts = probe(
        machine(
            tmp_path, sockets=4, cores=2, smt=2, kernel=kernel, offline="2,5,13-14", like="skylake"
        )
    )

    topology = facts.topology
    assert cpulist.render(topology.online) == "0-1,3-4,6-12,15"
    assert (topology.sockets, topology.physical_cores) == (4, 7)
    assert [len(core.cpus) for core in topology.cores] == [2, 2, 2, 2, 1, 2, 1]
    assert topology.present == tuple(range(16))


def test_p_and_e_cores(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, cores=14, smt=2, e_cores=8, like="alder-lake"))

    assert counts(facts) == (1, 14, 2, 20)
    assert facts.topology.hybrid
    assert sorted(len(core.cpus) for core in facts.topology.cores) == [1] * 8 + [2] * 6
    fast = {core.cpus for core in facts.topology.cores if core.max_khz == 5_200_000}
    assert len(fast) == 6


def test_nodes_without_cpus_and_without_memory(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, sockets=2, cores=4, memory_only_nodes=1, memoryless_nodes=[1]))

    assert [(n.id, len(n.cpus), n.memory_bytes) for n in facts.topology.numa_nodes] == [
        (0, 4, 64 << 30),
        (1, 4, 0),
        (2, 0, 64 << 30),
    ]


def test_a_kernel_without_numa(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, cores=4, nodes=0))

    assert facts.topology.numa_nodes == ()
    assert facts.why_unknown("topology.numa_nodes") is not None
    assert facts.topology.cores[0].numa_node is None


def test_a_single_cpu_is_one_core_of_one_socket(tmp_path: Path) -> None:
    facts = probe(
        machine(tmp_path, files={"proc/cpuinfo": "processor : 0\n\n"}, kernel="bare", cores=1)
    )

    assert counts(facts) == (1, 1, 1, 1)


def test_a_mask_that_leaves_nothing_is_passed_over(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, cores=4, status_allowed="64-71"))

    assert facts.topology.allowed == (0, 1, 2, 3)
    assert "affinity" in (facts.why_unknown("topology.allowed") or "")
