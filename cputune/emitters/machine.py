"""Whether a result is of this machine: the facts on which its plan rests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cputune import cpulist
from cputune.facts import HostFacts
from cputune.plan import Plan
from cputune.result import host_fingerprint

_COMPARED = (
    ("cpu", "model_name", "processor"),
    ("topology", "sockets", "sockets"),
    ("topology", "physical_cores", "cores"),
    ("topology", "threads_per_core", "threads per core"),
    ("topology", "logical_cpus", "CPUs"),
)


def machine_difference(host: Mapping[str, Any], facts: HostFacts) -> str | None:
    """In what the machine of a result differs from this one; None where it does not.

    What either of them does not say is not compared.
    """
    return host_difference(host, host_fingerprint(facts))


def host_difference(
    there: Mapping[str, Any], here: Mapping[str, Any], *, names: tuple[str, str] = ("there", "here")
) -> str | None:
    """The first of these facts in which two machines differ; ``names`` is how they are called."""
    for group, key, words in _COMPARED:
        a, b = _fact(there, group, key), _fact(here, group, key)
        if a is not None and b is not None and a != b:
            return f"{words} {a} {names[0]}, {b} {names[1]}"
    return None


def untold(host: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of these facts that a machine does not say, in words."""
    return tuple(words for group, key, words in _COMPARED if _fact(host, group, key) is None)


def _fact(host: Mapping[str, Any], group: str, key: str) -> Any:
    section = host.get(group)
    return section.get(key) if isinstance(section, Mapping) else None


def missing_cpus(plan: Plan, facts: HostFacts) -> str | None:
    """The CPUs of a plan that this process may not use, as a list; None where it may use all."""
    wanted = {cpu for cpus in (*plan.cpus, *plan.ccl_cpus) for cpu in cpus}
    return cpulist.render(wanted - set(facts.topology.allowed)) or None
