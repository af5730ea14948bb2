"""One way to run a training job: ranks, threads, CPUs, precision, libraries.

A plan says everything that a launch needs and nothing about what is trained. The
tuner proposes plans, trials run them, the result stores them, emitters write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cputune.cpulist import MAX_CPUS
from cputune.errors import ResultError, UsageError
from cputune.knobs import KNOBS, KnobValue, knob_named
from cputune.knobs.allocator import ALLOCATORS
from cputune.knobs.backend import BACKENDS
from cputune.knobs.openmp import OPENMP_RUNTIMES
from cputune.knobs.precision import PRECISIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the ranks of a job are started on one node, and on how many nodes.

    Attributes:
        nodes: machines that take part.
        processes_per_node: ranks on each of them.
        threads_per_process: OpenMP threads of a rank (OMP_NUM_THREADS).
        ccl_workers: oneCCL worker threads of a rank (CCL_WORKER_COUNT); 0 without oneCCL.
        backend: torch.distributed backend; means nothing for a single rank.
        precision: what the forward pass runs in: fp32, bf16 or fp16 (autocast).
        ipex: whether intel_extension_for_pytorch optimizes model and optimizer.
        allocator: which malloc is preloaded.
        openmp: which OpenMP runtime is preloaded; "default" is the one torch brings.
        preload: real paths for LD_PRELOAD that allocator and openmp need.
        cpus: for each local rank, the logical CPUs it is bound to.
        ccl_cpus: for each local rank, the logical CPUs of its oneCCL workers.
        as_found: the launch that the user has today: nothing is set and nothing is
            bound; threads and cpus are then what such a process is expected to see.
        settings: (name, value) of the knobs that have no field of their own, sorted, without
            those that stay as they are today.
    """

    nodes: int = 1
    processes_per_node: int
    threads_per_process: int
    ccl_workers: int = 0
    backend: str = "gloo"
    precision: str = "fp32"
    ipex: bool = False
    allocator: str = "default"
    openmp: str = "default"
    preload: tuple[str, ...] = ()
    cpus: tuple[tuple[int, ...], ...]
    ccl_cpus: tuple[tuple[int, ...], ...] = ()
    as_found: bool = False
    settings: tuple[tuple[str, KnobValue], ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.processes_per_node < 1 or self.threads_per_process < 1:
            raise ValueError("nodes, processes and threads of a plan start at 1")
        if len(self.cpus) != self.processes_per_node:
            raise ValueError("a plan needs one CPU list for each local rank")
        if self.ccl_cpus and len(self.ccl_cpus) != self.processes_per_node:
            raise ValueError("a plan needs one oneCCL CPU list for each local rank, or none")
        shares = [cpus for cpus in (*self.cpus, *self.ccl_cpus) if cpus]
        if any(min(cpus) < 0 or max(cpus) >= MAX_CPUS for cpus in shares):
            raise ValueError("no machine has such a CPU")
        if self.ccl_workers < 0:
            raise ValueError("a plan cannot have fewer than 0 oneCCL workers")
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
        """The variables that every rank of this plan is started with.

        Empty for a plan that is run as found. MASTER_ADDR, MASTER_PORT and the rank
        numbers belong to the launch, not to the plan.
        """
        if self.as_found:
            return {}
        variables = {name: value for knob in KNOBS for name, value in knob.variables(self).items()}
        if self.preload:
            variables["LD_PRELOAD"] = ":".join(self.preload)
        return variables

    def setting(self, name: str) -> KnobValue:
        """The value of a knob that has no field of its own. Raises UsageError for no knob."""
        return dict(self.settings).get(name, knob_named(name).today)

    def with_setting(self, name: str, value: KnobValue) -> Plan:
        """The plan that differs in the value of such a knob."""
        settings = {**dict(self.settings), name: value}
        if value == knob_named(name).today:
            del settings[name]
        return replace(self, settings=tuple(sorted(settings.items())))

    def describe(self) -> str:
        """One line for people: ``2 × 14 threads, bf16, tcmalloc``."""
        parts = [f"{self.nodes} nodes"] if self.nodes > 1 else []
        parts += [words for knob in KNOBS if (words := knob.words(self)) is not None]
        if self.as_found:
            parts.append("as found")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values; ``from_json`` reads it back, equal."""
        document = asdict(self)
        document["cpus"] = [list(cpus) for cpus in self.cpus]
        document["ccl_cpus"] = [list(cpus) for cpus in self.ccl_cpus]
        document["preload"] = list(self.preload)
        document["settings"] = dict(self.settings)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read what ``to_json`` wrote. Raises ResultError where it is not a plan."""
        try:
            values = dict(document)
            values["cpus"] = tuple(tuple(map(int, cpus)) for cpus in values["cpus"])
            values["ccl_cpus"] = tuple(tuple(map(int, c)) for c in values.get("ccl_cpus", ()))
            values["preload"] = tuple(map(str, values.get("preload", ())))
            values["settings"] = tuple(sorted(dict(values.get("settings", {})).items()))
            return cls(**values)
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise ResultError(
                f"not a plan: {error}", hint="the file was changed by hand, or is damaged"
            ) from error


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")


def _check_settings(settings: tuple[tuple[str, KnobValue], ...]) -> None:
    """One way to write each plan: sorted, every knob once, nothing that is as it is today."""
    if list(settings) != sorted(dict(settings).items()):
        raise ValueError("the settings of a plan are sorted by knob, each once")
    for name, value in settings:
        knob = knob_named(name)
        if not knob.in_settings or knob.parse(value) != value or value == knob.today:
            raise ValueError(f"a plan does not say that {name} is {value!r}")
