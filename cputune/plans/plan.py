"""One plan for a training job: ranks, threads, CPUs, precision, libraries.

It contains all that a launch needs and nothing about what is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from cputune.plans.values import (
    ALLOCATORS,
    BACKENDS,
    OPENMP_RUNTIMES,
    PRECISIONS,
    Allocator,
    Backend,
    KnobValue,
    OpenMP,
    Precision,
    as_text,
)
from cputune.text.cpulist import MAX_CPUS
from cputune.text.documents import plain
from cputune.text.plain import count

if TYPE_CHECKING:
    from cputune.plans.knobs.record import Knob

MOST_RANKS = 4096  # per node: more than any machine has cores

# A number of nodes, ranks or threads; no machine has more CPUs than MAX_CPUS.
AtLeastOne = Annotated[int, Meta(ge=1, le=MAX_CPUS)]

# The number of a logical CPU.
Cpu = Annotated[int, Meta(ge=0, lt=MAX_CPUS)]


# The logical CPUs of each local rank of a node.
CpuLists: TypeAlias = tuple[tuple[Cpu, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the ranks of a job are started on one node, and on how many nodes.

    Attributes:
        nodes: machines that take part.
        processes_per_node: ranks on each of them.
        threads_per_process: OpenMP threads of a rank (OMP_NUM_THREADS).
        ccl_workers: oneCCL worker threads of a rank (CCL_WORKER_COUNT); 0 without oneCCL.
        backend: of torch.distributed; without effect for a single rank.
        precision: of the forward pass: fp32, bf16 or fp16 (autocast).
        ipex: whether intel_extension_for_pytorch optimizes model and optimizer.
        allocator: which malloc is preloaded.
        openmp: which OpenMP runtime is preloaded; "default" is torch's own.
        preload: real paths for LD_PRELOAD that allocator and openmp need.
        cpus: for each local rank the logical CPUs it is bound to, the same on every node.
        ccl_cpus: for each local rank the logical CPUs of its oneCCL workers.
        as_found: the current launch: nothing is set or bound; threads and cpus are those that
            such a process is expected to see.
        settings: knobs without a field, by name, except those with their current value.
    """

    nodes: AtLeastOne = 1
    processes_per_node: Annotated[int, Meta(ge=1, le=MOST_RANKS)]
    threads_per_process: AtLeastOne
    ccl_workers: Annotated[int, Meta(ge=0, le=MAX_CPUS)] = 0
    backend: Backend = "gloo"
    precision: Precision = "fp32"
    ipex: bool = False
    allocator: Allocator = "default"
    openmp: OpenMP = "default"
    preload: tuple[str, ...] = ()
    cpus: CpuLists
    ccl_cpus: CpuLists = ()
    as_found: bool = False
    settings: Mapping[str, KnobValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        least = min(self.nodes, self.processes_per_node, self.threads_per_process)
        if least < 1 or self.ccl_workers < 0:
            raise ValueError("nodes, processes and threads of a plan start at 1, workers at 0")
        if len(self.cpus) != self.processes_per_node:
            raise ValueError("a plan needs one CPU list for each local rank")
        if self.ccl_cpus and len(self.ccl_cpus) != self.processes_per_node:
            raise ValueError("a plan needs one oneCCL CPU list for each local rank, or none")
        cpus = set(chain.from_iterable(self.cpus + self.ccl_cpus))
        if cpus and (min(cpus) < 0 or max(cpus) >= MAX_CPUS):
            raise ValueError("no machine has a CPU of this number")
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("allocator", self.allocator, ALLOCATORS)
        _one_of("OpenMP runtime", self.openmp, OPENMP_RUNTIMES)
        _check_settings(self.settings)

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.processes_per_node

    @property
    def oversubscribed(self) -> bool:
        """Whether a rank has more threads than CPUs, so that it delays itself."""
        return any(self.threads_per_process > len(cpus) for cpus in self.cpus)

    def environment(self) -> dict[str, str]:
        """The variables of every rank; empty for a plan that runs as typed.

        MASTER_ADDR, MASTER_PORT and the rank numbers belong to the launch.
        """
        if self.as_found:
            return {}
        variables = {}
        for knob in _knobs():
            for name, value in knob.variables(self).items():
                variables[name] = value
        if self.preload:
            variables["LD_PRELOAD"] = ":".join(self.preload)
        return variables

    def setting(self, name: str) -> KnobValue:
        """The value of a knob without a field. Raises UsageError for an unknown knob."""
        return self.settings.get(name, _knob(name).baseline)

    def value(self, name: str) -> KnobValue:
        """The value of a knob that does not decide CPUs. Raises UsageError for an unknown knob."""
        return _knob(name).value_in(self)

    def with_setting(self, name: str, value: KnobValue) -> Plan:
        """The plan with another value of such a knob."""
        baseline = _knob(name).baseline
        if value == baseline and name not in self.settings:
            return self  # most plans of a space stay as they are in most knobs
        settings = {**self.settings, name: value}
        if value == baseline:
            del settings[name]
        return replace(self, settings=dict(sorted(settings.items())))

    def layout_words(self) -> str:
        """``2 × 14 threads``, ``2 nodes, each 1 rank with 14 threads``."""
        threads = count(self.threads_per_process, "thread")
        if self.nodes > 1:
            ranks = count(self.processes_per_node, "rank")
            return f"{self.nodes} nodes, each {ranks} with {threads}"
        return f"{self.processes_per_node} × {threads}"

    def describe(self) -> str:
        """``2 × 14 threads, bf16, tcmalloc``."""
        parts = []
        for knob in _knobs():
            text = knob.description(self)
            if text is not None:
                parts.append(text)
        if self.as_found:
            parts.append("as found")
        return ", ".join(parts)

    def short(self) -> str:
        """A name for tables: ``2×14 bf16 tcmalloc malloc=kept``; the current launch is ``1×2 fp32
        (baseline)``.

        Ranks of a node × threads of each, precision, preloaded libraries; other knobs as ``--fix``
        takes them.
        """
        if self.nodes > 1:
            parts = [f"{self.nodes} nodes"]
        else:
            parts = []
        parts += [f"{self.processes_per_node}×{self.threads_per_process}", self.precision]
        if self.world_size > 1 and self.backend != "gloo":
            parts.append(self.backend)
        if self.ipex:
            parts.append("ipex")
        parts += [name for name in (self.allocator, self.openmp) if name != "default"]
        parts += [f"{name}={as_text(value)}" for name, value in self.settings.items()]
        if self.as_found:
            parts.append("(baseline)")
        return " ".join(parts)

    def legend(self) -> str:
        """How to read its short name: ``2×14 means 2 ranks with 14 threads each``."""
        ranks, threads = self.processes_per_node, self.threads_per_process
        who = "1 rank"
        if ranks != 1:
            who = f"{ranks} ranks"
        each = "1 thread"
        if threads != 1:
            each = f"{threads} threads"
        return f"{ranks}×{threads} means {who} with {each}" + (" each" if ranks > 1 else "")

    def to_json(self) -> dict[str, object]:
        """A mapping of plain JSON values; ``documents.record_of`` reads it back, equal."""
        document: dict[str, object] = plain(self)
        return document


# A knob makes plans, so its module imports this one. A plan asks for the knobs when it needs them.


def _knobs() -> tuple[Knob, ...]:
    from cputune.plans.knobs import KNOBS

    return KNOBS


def _knob(name: str) -> Knob:
    from cputune.plans.knobs import knob_named

    return knob_named(name)


def _one_of(what: str, value: str, possible: tuple[str, ...]) -> None:
    if value not in possible:
        raise ValueError(f"unknown {what} {value!r}; known are {', '.join(possible)}")


def _check_settings(settings: Mapping[str, KnobValue]) -> None:
    """Each plan has one form: settings with their current value are left out."""
    for name, value in settings.items():
        knob = _knob(name)
        here = knob.put is not None and name not in Plan.__dataclass_fields__
        if not here or knob.parse(value) != value or value == knob.baseline:
            raise ValueError(f"a plan does not say that {name} is {value!r}")
