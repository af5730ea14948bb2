"""The recorded machines: what the doctor says of them is what lscpu said in them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hosts import recordings
from hosts.lscpu import assert_as_lscpu
from hosts.reasons import without_reason

from cputune import RecordedHost, diagnose, probe
from cputune.report.machine_text import host_document

pytestmark = pytest.mark.parametrize("name", recordings.NAMES)
GIB = 1 << 30


@pytest.fixture
def host(name: str, tmp_path: Path) -> RecordedHost:
    return recordings.open_recording(name, tmp_path)


def test_counts_cpus_and_nodes_are_those_of_lscpu(name: str, host: RecordedHost) -> None:
    assert_as_lscpu(host_document(probe(host))["topology"], recordings.lscpu_of(name))


def test_every_null_has_its_reason(name: str, host: RecordedHost) -> None:
    assert without_reason(host) == []


def test_what_was_limited_is_limited_in_the_replay(name: str, host: RecordedHost) -> None:
    facts = probe(host)

    limited = name == "container"
    assert facts.limits.cpu_quota == (1.5 if limited else None)
    assert facts.limits.memory_bytes == (GIB if limited else None)
    assert facts.topology.allowed == ((2, 3, 4, 5) if limited else facts.topology.online)
    assert facts.settings.smt == ("off" if name == "smt-off" else "on")
    assert facts.settings.numa_balancing


def test_the_doctor_finds_what_was_done_to_the_machine(name: str, host: RecordedHost) -> None:
    codes = {finding.code for finding in diagnose(probe(host)).findings}

    assert ("cpus-offline" in codes) == (name == "cpus-offline")
    assert ("quota-threads" in codes) == (name == "container")
    assert "numa-balancing" in codes


def test_no_one_and_no_place_is_named(name: str, host: RecordedHost) -> None:
    texts = [path.read_text() for path in Path(host.root).rglob("*") if path.is_file()]

    assert not any(re.search(r"trainer07|/root\b", text) for text in texts)
    assert json.loads(host.read_text("/record.json"))["schema"] == "cputune.record/1"
