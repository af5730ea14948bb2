"""What every format gets (``LaunchJob``) and returns (``EmittedFile``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cputune.emitters.checked_words import Argument, HostName, VariableName, Variables
from cputune.emitters.promise import Promise
from cputune.errors import UsageError
from cputune.host import Host
from cputune.host.facts import HostFacts
from cputune.host.remote.named import Node
from cputune.inside.applying.force import Force
from cputune.launch.launch import Launch
from cputune.launch.target import HERE, Target
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import Claim, ClaimContext
from cputune.records.options import Cluster, EmitOptions
from cputune.text.documents import plain


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EmittedFile:
    """One file of an artefact: text only, nothing is written.

    Attributes:
        name: of the file.
        text: all of it.
        executable: whether it is started.
        notes: what the reader must know and the file alone cannot do: what no launcher carries,
            what was left to guess, placeholders that only the user can fill.
        launches: what it starts; in place of its text these are judged before it is written. A
            script that finds out which mpirun there is has one for each dialect.
        target: the machines that it asks for.
        document: what it says, if it is YAML that starts ranks.
    """

    name: str
    text: str
    executable: bool = False
    notes: tuple[str, ...] = ()
    launches: tuple[Launch, ...] = field(default=(), compare=False)
    target: Target = field(default=HERE, compare=False)
    document: Mapping[str, Any] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        kind = ", executable" if self.executable else ""
        return f"<cputune.EmittedFile {self.name}: {len(self.text.splitlines())} lines{kind}>"


@dataclass(frozen=True, slots=True)
class Beside:
    """A word of a command that names a file of the same artefact."""

    name: str


@dataclass(frozen=True, slots=True)
class Output:
    """A word of a command that names an output of the training, after ``before``."""

    name: Argument
    before: Argument = Argument("")  # noqa: RUF009 - a word never changes


@dataclass(frozen=True, slots=True)
class Secret:
    """A word of a command whose value is in a variable, after ``before``."""

    before: Argument
    variable: VariableName


# A word of the training command.
Word: TypeAlias = Argument | Beside | Output | Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission(EmitOptions):
    """What ``emit`` is given beside the result and the format.

    Attributes:
        importable: whether the Python that trains finds cputune, so that launches of this machine
            can run ``cputune.apply``; False if that is not known.
        facts: the machine: needed without a result, and tells which ``mpirun`` there is.
        workload: what to launch, where it is not what was tuned.
        hosts: their names and slots, from ``parse_hostfile`` or ``parse_hosts``.
        python: path of the interpreter that trains; the scripts take it where it exists and PYTHON
            names no other. By default ``python3``.
        named: the word by which commands name the result.
        host: is asked for the training script, which tells who reads its flags; without one the
            script's name and flags do.
        patch: fields of the user's own, merged into a job of Kubernetes.
    """

    facts: HostFacts | None = None
    workload: Workload | None = None
    hosts: tuple[Node, ...] = ()
    python: str | None = None
    named: str = "cputune.json"
    host: Host | None = None
    patch: Mapping[str, Any] | None = None
    importable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is known of the machine that runs a job, and of the one that was measured.

    Attributes:
        target: facts of the machine that runs it, with the packages that it has there.
        versions: distributions of the environment that trains, by name.
        python: the interpreter that the plan was tuned with; None if it is not known.
        threads_per_core: of the machine that was measured; 2 with SMT.
        physical_cores: of that machine; None if they are not known.
        rank_bytes: the most that a rank of the measured plan was seen to hold; None: not measured.
        surrounding: names of the variables that are set here now.
        host: see ``Emission``.
    """

    target: HostFacts
    versions: Mapping[str, str]
    python: str | None
    threads_per_core: int
    physical_cores: int | None
    rank_bytes: int | None
    surrounding: frozenset[str]
    host: Host | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where the user lets a job run.

    Attributes:
        nodes: the hosts, if they are named.
        mpi: the dialect of ``mpirun``; None if it is not known.
        mpi_asked: whether the user has named it.
        interface: between the nodes, for every layer; None if each chooses by itself.
        patch: see ``Emission``.
    """

    nodes: tuple[Node, ...]
    mpi: str | None
    mpi_asked: bool
    cluster: Cluster
    interface: str | None
    patch: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What can be said about the speed of a job.

    Attributes:
        claim: what was measured; None without a result.
        context: what a statement about its speed is made for.
        named: the word by which commands name the result; None if there is none.
        printed_notes: lines of the header that are also printed as notes.
    """

    claim: Claim | None
    context: ClaimContext
    named: str | None
    printed_notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """How the plan gets into the process of a rank.

    Attributes:
        guard: whether several ranks are compared while they train.
        draws_apart: whether each of them draws random numbers of its own.
        left_out: parts of the plan that changed nothing in its trials, and what shows that.
        flags: those flags of the command that are the plan's.
    """

    guard: bool
    draws_apart: bool
    left_out: Mapping[str, str]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """A plan made ready to be written down, of names and words that every format can represent.

    Raises UsageError if it is made of others.

    Attributes:
        plan: never the baseline as it runs, and with the nodes that were asked for.
        command: the training script and all its arguments, flags of the plan included.
        environment: the variables of the plan, for every rank.
        header: what was measured, where, when and how fast; lines without a sign.
        notes: what is printed and is in the header of every format.
        companions: files that the command needs beside it.
        promise: the header for `cputune verify`.
        self_contained: whether it needs nothing of ours installed; else ``cputune.apply`` runs it.
        force: what ``cputune.apply`` or apply_plan.py sets in the script's process; None: nothing.
    """

    plan: Plan
    workload: Workload
    command: tuple[Word, ...]
    environment: Variables
    header: tuple[str, ...]
    notes: tuple[str, ...]
    machine: Machine
    site: Site
    speed: Speed
    inside: Inside
    companions: tuple[EmittedFile, ...] = ()
    promise: Promise = field(default_factory=Promise)
    self_contained: bool = True
    force: Force | None = None

    def __post_init__(self) -> None:
        """Look at what comes from outside, before any format is given it."""
        for node in self.site.nodes:
            HostName(node.name)
        for name in self.workload.secrets:
            VariableName(name)
        Argument(self.machine.python or "")
        for text in _texts(plain(self.site.cluster)):
            if not re.fullmatch(r"(?!-)[A-Za-z0-9_.,:/@<>-]*", text):
                raise UsageError(
                    f"{text!r} cannot be a value of a Slurm or Kubernetes job",
                    hint="letters, digits and . _ - / : @, without spaces",
                )

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
        cores = self.machine.physical_cores
        return cores is not None and threads > cores


def _texts(document: object) -> Iterator[str]:
    """Every text in plain JSON values."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, (list, dict)):
        for value in document.values() if isinstance(document, dict) else document:
            yield from _texts(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way to write a launch down; everything that is asked of formats goes over these.

    Attributes:
        name: what ``--format`` takes.
        main: the file to start or submit.
        write: turns a job into its files, the main one first. Raises UsageError.
        consumers: who takes its main file, by their names in ``cputune.verifier``, readers
            before runners.
        alone: whether a job of one rank starts without ``rank.py``.
        printed: whether it is read from the output and launches nothing.
        elsewhere: whether other machines run it, which need not have cputune.
    """

    name: str
    main: str
    write: Callable[[LaunchJob], tuple[EmittedFile, ...]]
    consumers: tuple[str, ...] = ()
    printed: bool = False
    alone: bool = False
    elsewhere: bool = False
