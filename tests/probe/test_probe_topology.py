"""Sockets, cores, CPUs and nodes of machines that are hard to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.builder import machine

from cputune.facts import HostFacts
from cputune.probe import probe


def counts(facts: HostFacts) -> tuple[int, int, int, int]:
    topology = facts.topology
    return (
        topology.sockets,
        topology.physical_cores,
        topology.threads_per_core,
        len(topology.online),
    )


@pytest.mark.parametrize("kernel", ["new", "old", "bare"])
def test_two_sockets_with_smt(tmp_path: Path, kernel: str) -> None:
    facts = probe(machine(tmp_path, sockets=2, cores=28, smt=2, kernel=kernel))

    assert counts(facts) == (2, 56, 2, 112)
    assert facts.topology.cores[0].cpus == (0, 56)
    assert facts.topology.cores_per_socket == (28, 28)
    assert facts.cpu.codename == "Sapphire Rapids"
