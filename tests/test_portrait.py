"""What a result keeps of its machine: every core where it is, and what the doctor found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hosts.builder import machine
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune.portrait import NodeCores, places_of
from cputune.probing import probe


def test_cores_stand_by_socket_and_node_with_their_siblings(tmp_path: Path) -> None:
    topology = probe(machine(tmp_path, sockets=2, cores=2, smt=2)).topology
    assert places_of(topology) == (
        NodeCores(
            socket=0, numa_node=0, cores=((0, 4), (1, 5)), memory_bytes=64 << 30, memory="dram"
        ),
        NodeCores(
            socket=1, numa_node=1, cores=((2, 6), (3, 7)), memory_bytes=64 << 30, memory="dram"
        ),
    )


def test_of_a_machine_that_does_not_tell_its_cores_nothing_is_made_up(tmp_path: Path) -> None:
    topology = probe(machine(tmp_path, cores=2)).topology
    assert places_of(replace(topology, cores_known=False)) == ()
    assert places_of(replace(topology, sockets_known=False)) == ()


def test_a_study_keeps_them_and_what_the_doctor_says_of_the_machine() -> None:
    result = cputune.tune(SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()))
    assert result.places == places_of(SMALL.facts.topology)
    said = cputune.diagnose(SMALL.facts).findings
    assert result.findings is not None
    assert [found.code for found in result.findings] == [finding.code for finding in said]
    assert cputune.result.Result.from_json(result.to_json()) == result
