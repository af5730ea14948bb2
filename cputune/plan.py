"""One way to run a training job: ranks, threads, CPUs, precision, libraries.

A plan says everything that a launch needs and nothing about what is trained. The
tuner proposes plans, trials run them, the result stores them, emitters write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cputune.cpulist import MAX_CPUS
from cputune.errors import ResultError

PRECISIONS = ("fp32", "bf16", "fp16")
BACKENDS = ("gloo", "ccl", "mpi")
ALLOCATORS = ("default", "tcmalloc", "jemalloc")
OPENMP_RUNTIMES = ("default", "libgomp", "libiomp5")

JEMALLOC_SETTINGS = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""What the Intel launcher sets for jemalloc (intel_extension_for_pytorch/cpu/launch)."""


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
        variables = {
            "OMP_NUM_THREADS": str(self.threads_per_process),
            # accelerate >= 1.13 trains every rank alone without it (accelerate#3883).
            "ACCELERATE_USE_CPU": "true",
        }
        if self.precision != "fp32":
            variables["ACCELERATE_MIXED_PRECISION"] = self.precision
        if self.ipex:
            variables["ACCELERATE_USE_IPEX"] = "true"
        if self.preload:
            variables["LD_PRELOAD"] = ":".join(self.preload)
        if self.allocator == "jemalloc":
            variables["MALLOC_CONF"] = JEMALLOC_SETTINGS
        if self.openmp == "libiomp5":
            # Threads that spin 200 ms after each region steal cores from other ranks;
            # no KMP_AFFINITY, which shrinks the process's own mask (pytorch#91989).
            variables["KMP_BLOCKTIME"] = "1"
        if self.backend == "ccl" and self.ccl_workers:
            variables["CCL_WORKER_COUNT"] = str(self.ccl_workers)
            workers = [str(cpu) for cpus in self.ccl_cpus for cpu in cpus]
            if workers:
                variables["CCL_WORKER_AFFINITY"] = ",".join(workers)
        return variables

    def describe(self) -> str:
        """One line for people: ``2 × 14 threads, bf16, tcmalloc``."""
        parts = [f"{self.processes_per_node} × {self.threads_per_process} threads"]
        if self.nodes > 1:
            parts.insert(0, f"{self.nodes} nodes")
        parts.append(self.precision)
        if self.world_size > 1:
            workers = f", {self.ccl_workers} workers" if self.ccl_workers else ""
            parts.append(self.backend + workers)
        parts += [name for name in (self.allocator, self.openmp) if name != "default"]
        if self.ipex:
            parts.append("IPEX")
        if self.as_found:
            parts.append("as found")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """A mapping of plain JSON values; ``from_json`` reads it back, equal."""
        document = asdict(self)
        document["cpus"] = [list(cpus) for cpus in self.cpus]
        document["ccl_cpus"] = [list(cpus) for cpus in self.ccl_cpus]
        document["preload"] = list(self.preload)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Read what ``to_json`` wrote. Raises ResultError where it is not a plan."""
        try:
            values = dict(document)
            values["cpus"] = tuple(tuple(map(int, cpus)) for cpus in values["cpus"])
            values["ccl_cpus"] = tuple(tuple(map(int, c)) for c in values.get("ccl_cpus", ()))
            values["preload"] = tuple(map(str, values.get("preload", ())))
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ResultError(
                f"not a plan: {error}", hint="the file was changed by hand, or is damaged"
            ) from error


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known are {', '.join(known)}")
