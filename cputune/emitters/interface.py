"""What every format is given (``Job``) and what it gives back (``EmittedFile``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cputune.nodes.named import Node
from cputune.plan import Plan
from cputune.workload import Workload

MPI_DIALECTS = ("intelmpi", "mpich", "openmpi4", "openmpi5")
"""Ways that an ``mpirun`` wants to be spoken to; see docs/clusters.md for the differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedFile:
    """One file of an artefact: text only, nothing is written.

    ``notes`` are what the reader must know and the file alone cannot do: what no
    launcher carries, what was left to guess, placeholders that only the user can fill.
    """

    name: str
    text: str
    executable: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Beside:
    """A word of a command that names a file of the same artefact."""

    name: str


@dataclass(frozen=True, slots=True)
class Output:
    """A word of a command that names where the training writes."""

    name: str


@dataclass(frozen=True, slots=True)
class Secret:
    """A word of a command whose value a variable holds, after what stands ``before`` it."""

    before: str
    variable: str


Word: TypeAlias = "str | Beside | Output | Secret"
"""A word of the training command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint of nodes that pods bear; without a value any value, without an effect any."""

    key: str
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """A variable whose value lies in a key of a Secret of the cluster."""

    variable: str
    secret: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What only the user knows of where the job runs: names, images, volumes, queues.

    None stands for a value that was not given: the artefact then shows a placeholder,
    or leaves the choice to the cluster.
    """

    job_name: str | None = None
    namespace: str | None = None
    image: str | None = None
    base_image: str | None = None
    pvc: str | None = None
    pvc_size: str | None = None
    storage_class: str | None = None
    memory: str | None = None
    shm: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    secret_variables: tuple[SecretKey, ...] = ()
    ttl_seconds: int | None = None
    user_id: int | None = None
    runtime: str | None = None
    time_limit: str | None = None
    partition: str | None = None
    account: str | None = None
    interface: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A plan made ready to be written down.

    Attributes:
        plan: never as found, and with the nodes that were asked for.
        command: the training script and all its arguments, flags of the plan included.
        environment: the variables of the plan, for every rank.
        companions: files that the command needs beside it.
        header: what was measured, where, when and how fast; lines without a sign.
        promise: the same for machines, as JSON values.
        notes: what holds for every format.
        threads_per_core: of the machine that was measured; 2 with SMT.
        physical_cores: of that machine; None where it is not known.
        mpi: the dialect of ``mpirun``; None where it is not known.
        python: the interpreter that the plan was tuned with, where it is known.
        versions: distributions of the environment that trains, by name.
        interface: between the nodes, for every layer; None where each chooses by itself.
        aloud: what whoever emits is told, beside the notes; the header has it already.
    """

    plan: Plan
    workload: Workload
    command: tuple[Word, ...]
    environment: Mapping[str, str]
    companions: tuple[EmittedFile, ...]
    header: tuple[str, ...]
    promise: Mapping[str, Any]
    notes: tuple[str, ...]
    threads_per_core: int
    physical_cores: int | None = None
    nodes: tuple[Node, ...] = ()
    mpi: str | None = None
    python: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    interface: str | None = None
    aloud: tuple[str, ...] = ()

    @property
    def script(self) -> str | None:
        """The user's script, as it was named; None for a recipe and for a module."""
        if self.workload.recipe is not None or self.workload.argv[0].startswith("-"):
            return None
        return self.workload.argv[0]

    @property
    def on_siblings(self) -> bool:
        """Whether the plan puts threads on SMT siblings: more threads than there are cores."""
        threads = self.plan.processes_per_node * self.plan.threads_per_process
        return self.physical_cores is not None and threads > self.physical_cores


Format = Callable[[Job], tuple[EmittedFile, ...]]
"""A format turns a job into its files, the one to start or submit first."""
