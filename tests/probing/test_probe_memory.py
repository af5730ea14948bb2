"""L3 caches and NUMA nodes: read and laid out on machines that are well known."""

from __future__ import annotations

from functools import cache

import pytest
from hosts.builder import machine
from hosts.known import KNOWN

from cputune import HostFacts, probe
from cputune.report.machine_text import host_document


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
