"""A statement about the speed of a plan, together with what it was measured on.

A ratio belongs to the workload, machine, nodes, versions and plan of its measurement. Code that
prints a claim calls ``in_context``: another context gets only what was measured and what was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from cputune.host.facts import HostFacts
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.text import cpulist
from cputune.text.documents import Amount, Count
from cputune.text.plain import count

# What the pairs show of a plan compared with the baseline.
Outcome = Literal["faster", "equivalent", "slower", "undecided", "not_compared"]

FASTER: Outcome = "faster"
EQUIVALENT: Outcome = "equivalent"
SLOWER: Outcome = "slower"
UNDECIDED: Outcome = "undecided"
NOT_COMPARED: Outcome = "not_compared"

# Two launches are equivalent if the whole interval of their ratio is within this share of 1.
EQUIVALENCE_MARGIN = 0.05


class Interval(Protocol):
    """A ratio of throughputs with its 95 % interval."""

    @property
    def ratio(self) -> float:
        """Throughput of the plan over that of the baseline."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""

    @property
    def high(self) -> float:
        """Upper end of the interval."""


def outcome_of(ratio: Interval | None) -> Outcome:
    """The outcome of a comparison; every statement about speed is based on it.

    ``faster`` and ``slower``: the whole interval is on one side of 1. ``equivalent``: it includes
    1, or ends just below it, and is within ``EQUIVALENCE_MARGIN``.
    """
    if ratio is None:
        return NOT_COMPARED
    if ratio.low > 1:
        return FASTER
    if ratio.low >= 1 - EQUIVALENCE_MARGIN and ratio.high <= 1 + EQUIVALENCE_MARGIN:
        return EQUIVALENT
    if ratio.high < 1:
        return SLOWER
    return UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Throughput of a plan over that of the baseline, from pairs measured side by side, with its
    95 % interval.
    """

    ratio: Amount
    low: Amount
    high: Amount
    pairs: Count = 0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"the interval ends at {self.high}, below its start {self.low}")

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self)

    @property
    def significant(self) -> bool:
        """True if the whole interval is above 1."""
        return self.outcome == FASTER

    @property
    def narrow(self) -> bool:
        """True if both ends are within a factor of 2, so that one factor can be stated."""
        return self.high < 2 * self.low


def factor(ratio: Interval) -> str:
    """Format a ratio for a table: ``×1.25 (1.20–1.31)``."""
    return f"×{ratio.ratio:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def host_fingerprint(facts: HostFacts) -> dict[str, Any]:
    """What identifies a machine: its CPU, topology and limits, but not its load."""
    topology = facts.topology
    return {
        "cpu": {
            "vendor": facts.cpu.vendor,
            "model_name": facts.cpu.model_name,
            "codename": facts.cpu.codename,
            "isa": list(facts.cpu.isa),
        },
        "topology": {
            "sockets": topology.sockets,
            "physical_cores": topology.physical_cores,
            "threads_per_core": topology.threads_per_core,
            "logical_cpus": len(topology.online),
            "numa_nodes": len(topology.numa_nodes),
            "allowed": cpulist.render(topology.allowed),
            "cores": [
                [core.socket, core.numa_node, cpulist.render(core.cpus)] for core in topology.cores
            ],
        },
        "limits": {
            "cpu_quota": facts.limits.cpu_quota,
            "memory_bytes": facts.limits.memory_bytes,
        },
    }


def section(host: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """Return a part of a host document, or an empty mapping."""
    part = host.get(name)
    if isinstance(part, Mapping):
        return part
    return {}


def counted(host: Mapping[str, object], name: str) -> int | None:
    """Return a number of the topology of a host document; None if it is not known."""
    number = section(host, "topology").get(name)
    if isinstance(number, int) and number > 0:
        return number
    return None


def machine_name(host: Mapping[str, object]) -> str:
    """Processor, sockets and cores, without the host name."""
    cpu, topology = section(host, "cpu"), section(host, "topology")
    processor = cpu.get("model_name") or cpu.get("codename")
    parts = [str(processor or "an unnamed processor")]
    units = {"sockets": "socket", "physical_cores": "core", "logical_cpus": "CPU"}
    for key, unit in units.items():
        number = topology.get(key)
        if number:
            parts.append(count(number, unit))
    return ", ".join(parts)


_COMPARED = (
    ("cpu", "model_name", "processor"),
    ("topology", "sockets", "sockets"),
    ("topology", "physical_cores", "cores"),
    ("topology", "threads_per_core", "threads per core"),
    ("topology", "logical_cpus", "CPUs"),
)


def host_difference(
    there: Mapping[str, object],
    here: Mapping[str, object],
    *,
    names: tuple[str, str] = ("there", "here"),
) -> str | None:
    """The first compared fact in which two machines differ, or None. ``names`` are words for the
    two.
    """
    for group, key, label in _COMPARED:
        a, b = section(there, group).get(key), section(here, group).get(key)
        if a is not None and b is not None and a != b:
            return f"{label} {a} {names[0]}, {b} {names[1]}"
    return None


def unknown_facts(host: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the compared facts that a host document does not have."""
    names: list[str] = []
    for group, key, label in _COMPARED:
        if section(host, group).get(key) is None:
            names.append(label)
    return tuple(names)


# Packages whose version may change the speed.
DECIDES_SPEED = ("torch", "transformers", "accelerate", "intel_extension_for_pytorch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimContext:
    """The context for a statement about speed. Empty fields are not compared.

    Attributes:
        host: the machine that will train, as ``host_fingerprint`` returns it.
        versions: of packages, by name.
        files: digests of the files in the training command, by path.
    """

    workload: Workload | None = None
    host: Mapping[str, Any] | None = None
    nodes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InContext:
    """A claim in a context.

    ``ratio``: None if the context differs, or if nothing was compared. ``differs`` lists what was
    not measured, ``measured`` what was, on what and when.
    """

    ratio: Speedup | None
    differs: tuple[str, ...]
    measured: str

    @property
    def applies(self) -> bool:
        """True if the claim was measured in this context."""
        return not self.differs

    @property
    def not_measured(self) -> str:
        """For example ``measured for bert-mini on MACHINE; not measured for run_qa.py``."""
        return f"measured {self.measured}; not measured {', '.join(self.differs)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A ratio, and what it was measured on: the fields of ``ClaimContext``.

    ``speedup``: None if nothing was compared. ``nodes`` are those of the best plan. ``date`` is
    ``2026-11-27``.
    """

    speedup: Speedup | None
    workload: Workload
    host: Mapping[str, Any]
    nodes: int
    versions: Mapping[str, str]
    plan: Plan
    date: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> str:
        """For example ``for bert-mini on AMD EPYC, 1 socket, 2 cores, on 2026-11-27``."""
        machine = machine_name(self.host)
        if self.nodes != 1:
            machine = f"{count(self.nodes, 'node')} of {machine}"
        text = f"for {self.workload.name} on {machine}"
        if self.date is not None:
            text += f", on {self.date}"
        return text

    def in_context(self, context: ClaimContext) -> InContext:
        """Return what can be said about the speed in this context."""
        differs = tuple(self._differences(context))
        if differs:
            return InContext(ratio=None, differs=differs, measured=self.measured)
        return InContext(ratio=self.speedup, differs=(), measured=self.measured)

    def _differences(self, context: ClaimContext) -> Iterator[str]:
        """Yield what was not measured: ``for run_qa.py``, ``on 2 nodes``."""
        if context.workload is not None:
            yield from _other_work(self.workload, context.workload)
        changed = sorted(
            path for path, digest in context.files.items() if self.files.get(path, digest) != digest
        )
        if changed:
            yield f"since {changed[0]} was changed"
        if context.host is not None:
            other = host_difference(self.host, context.host)
            if other is not None:
                yield f"on this machine ({other})"
        if context.nodes is not None and context.nodes != self.nodes:
            yield f"on {count(context.nodes, 'node')}"
        for name in DECIDES_SPEED:
            then, now = self.versions.get(name), context.versions.get(name)
            if then and now and _release(then) != _release(now):
                yield f"with {name} {now}"
        if context.plan is not None:
            # Nodes are compared above. as_found differs if the plan comes from a launch file, which
            # writes out what the launch had by default.
            plan = replace(context.plan, nodes=self.plan.nodes, as_found=self.plan.as_found)
            if plan != self.plan:
                yield f"with this plan ({context.plan.short()})"


def _release(version: str) -> str:
    return version.partition("+")[0]


_DESCRIPTIVE = ("name", "description", "source")


def _other_work(measured: Workload, now: Workload) -> Iterator[str]:
    if _recipe(measured) != _recipe(now) or measured.program != now.program:
        name = now.name
        if name == measured.name:
            name = " ".join(now.program)  # another file of that name
        yield f"for {name}"
        return
    if measured.argv != now.argv:
        yield "with these arguments"
    batches = (
        (measured.global_batch_size, now.global_batch_size),
        (measured.batch_per_rank, now.batch_per_rank),
    )
    # The batch is unknown until a workload has been started once.
    if any(now_size is not None and then != now_size for then, now_size in batches):
        yield "with this batch"
    if measured.data is not None and now.data is not None and measured.data != now.data:
        yield f"for {count(now.data, 'sample')} of data"


def _recipe(workload: Workload) -> Mapping[str, Any] | None:
    if workload.recipe is None:
        return None
    values = workload.recipe.to_json().items()
    by_name = {}
    for name, value in values:
        if name not in _DESCRIPTIVE:
            by_name[name] = value
    return by_name
