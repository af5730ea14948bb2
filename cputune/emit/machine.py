"""Whether a result is of this machine: the facts on which its plan rests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune.facts import HostFacts

_COMPARED = (
    ("cpu", "model_name", "processor"),
    ("topology", "sockets", "sockets"),
    ("topology", "physical_cores", "cores"),
    ("topology", "threads_per_core", "threads per core"),
    ("topology", "logical_cpus", "CPUs"),
)


def host_of(facts: HostFacts) -> dict[str, Any]:
    """The machine as a result file describes it, as far as emission needs it."""
    topology = facts.topology
    return {
        "cpu": {"model_name": facts.cpu.model_name, "codename": facts.cpu.codename},
        "topology": {
            "sockets": topology.sockets,
            "physical_cores": topology.physical_cores,
            "threads_per_core": topology.threads_per_core,
            "logical_cpus": len(topology.online),
        },
    }


def machine_difference(host: Mapping[str, Any], facts: HostFacts) -> str | None:
    """In what the machine of a result differs from this one; None where it does not.

    What either of them does not say is not compared.
    """
    here = host_of(facts)
    for group, key, words in _COMPARED:
        section = host.get(group)
        there = section.get(key) if isinstance(section, Mapping) else None
        ours = here[group][key]
        if there is not None and ours is not None and there != ours:
            return f"{words} {there} there, {ours} here"
    return None
