"""What differs between hosts: machines, limits, software.

All ranks wait for the slowest one, one plan has to fit all hosts, and different versions may fail
late or train different models without an error. Checks get all hosts, also those that were not
reached. An unknown fact is not a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cputune.doctor.finding import Check, Finding, FoundOn, Severity, check, checks_of, fault
from cputune.host.facts import HostFacts
from cputune.host.remote.named import Node, folded
from cputune.text import cpulist
from cputune.text.plain import count

# A finding names at most this many hosts, and the number of the others.
MOST_NAMES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHost:
    """One host. If it was not examined it has no ``facts``, and ``reason`` and ``remedy`` say why.

    ``started``: it was reached, and the program of cputune failed there.

    ``seconds`` is how long its answer took. ``python`` is the path of the interpreter that was
    examined there. ``findings`` are those of this host alone. ``machine`` is the same for two names
    of one machine (``Probed.machine``).
    """

    node: Node
    seconds: float
    facts: HostFacts | None = None
    reason: str | None = None
    remedy: str | None = None
    started: bool = False
    python: str | None = None
    findings: tuple[Finding, ...] = ()
    machine: str | None = None

    @property
    def name(self) -> str:
        """The name by which the host was asked for."""
        return self.node.name


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HostsDiagnosis(FoundOn):
    """Findings about several hosts, the worst first."""

    hosts: tuple[SeenHost, ...]


Reading = Callable[[HostFacts], "str | None"]

# Total sizes of equal memory differ by less than this: firmware reserves some of it.
MEMORY_SHARE = 0.05


def grouped(values: Iterable[tuple[str, str | None]]) -> dict[str, list[str]]:
    """Names of hosts by value, the largest group first; hosts with None are left out."""
    names: dict[str, list[str]] = {}
    for name, value in values:
        if value is not None:
            names.setdefault(value, []).append(name)
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def as_text(groups: Mapping[str, Sequence[str]]) -> str:
    """``2.13.0 on a, b; 2.6.0 on c``."""
    return "; ".join(f"{value} on {names_of(names)}" for value, names in groups.items())


def names_of(names: Sequence[str]) -> str:
    """``a, b, c``, or of many hosts ``n[1-12], a, b, c, d and 35 more``."""
    names = folded(names)
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} more"


def difference(hosts: Iterable[SeenHost], read_by_name: Mapping[str, Reading]) -> str:
    """What differs and on which hosts, in words; empty if nothing does.

    ``read_by_name`` returns each value to compare by name; None is unknown.
    """
    facts_of = {host.name: host.facts for host in hosts if host.facts is not None}
    differs = []
    for what, read in read_by_name.items():
        groups = grouped((name, read(facts)) for name, facts in facts_of.items())
        if len(groups) > 1:
            differs.append(f"{what}: {as_text(groups)}" if what else as_text(groups))
    return ". ".join(differs)


def differing(
    code: str, severity: Severity, read_by_name: Mapping[str, Reading]
) -> Callable[[Callable[[], None]], Check]:
    """A check that compares values; the decorated function only carries the docstring."""

    def find(described: Check, hosts: Sequence[SeenHost]) -> Iterator[Finding]:
        if evidence := difference(hosts, read_by_name):
            yield described.finding(evidence)

    return fault(code, severity, find)


def _gib(number: int | None) -> str | None:
    if number is None:
        return None
    return f"{number / (1 << 30):.1f} GiB"


def _limit(name: str, *, size: bool = False) -> Reading:
    def read(facts: HostFacts) -> str | None:
        number = getattr(facts.limits, name)
        if number is None:
            if name in facts.limits.unlimited:
                return "none"
            return None
        if size:
            return _gib(number)
        return f"{number:g}"

    return read


def _has(flag: str) -> Reading:
    def read(facts: HostFacts) -> str | None:
        if not facts.cpu.isa:
            return None
        if facts.cpu.has(flag):
            return "yes"
        return "no"

    return read


_PROCESSOR: Mapping[str, Reading] = {
    "": lambda facts: facts.cpu.codename or facts.cpu.model_name,
    "avx2": _has("avx2"),
    "avx512f": _has("avx512f"),
    "avx512_bf16": _has("avx512_bf16"),
    "amx_bf16": _has("amx_bf16"),
}

_LIMITS: Mapping[str, Reading] = {
    "CPU quota": _limit("cpu_quota"),
    "memory limit": _limit("memory_bytes", size=True),
    "/dev/shm": _limit("shm_bytes", size=True),
    "open files": _limit("open_files"),
    "locked memory": _limit("memlock_bytes", size=True),
    "processes": _limit("processes"),
}


def _versions(*names: str) -> Mapping[str, Reading]:
    def version(facts: HostFacts, name: str) -> str | None:
        package = facts.package(name)
        if package is None:
            return "none"
        build = ""
        if package.build not in (None, "cpu"):
            build = f" ({package.build})"
        return package.version and package.version + build

    return {name: partial(version, name=name) for name in names}


def _shape(facts: HostFacts) -> str | None:
    topology = facts.topology
    if not (topology.cores_known and topology.sockets_known and topology.online):
        return None
    nodes = len(topology.numa_nodes)
    return (
        f"{topology.sockets} × {'/'.join(map(str, sorted(set(topology.cores_per_socket))))} cores, "
        f"{count(topology.threads_per_core, 'thread')} each, {count(nodes, 'NUMA node')}"
    )


@check("hosts-unreachable", Severity.ERROR)
def unreachable(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """A host cannot be reached

    Symptom: mpirun or another launcher hangs, or ends with an error of ssh.

    Cause: launchers log in as the doctor does, without a password. If ssh refuses the doctor's key,
    it refuses the launcher's too.

    Remedy: Make the host reachable without a password, or remove it from the list.

    Source: https://man.openbsd.org/ssh
    """
    yield from _without_answer(unreachable, [host for host in hosts if not host.started])


@check("hosts-one-machine", Severity.ERROR)
def one_machine(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Several names lead to one machine

    Symptom: a job over "two nodes" is no faster than on one, or much slower.

    Cause: the ranks of both names share the same cores. The names have the same boot id and the
    same host name.

    Remedy: Name each machine once.

    Source: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html
    """
    for names in grouped((host.name, host.machine) for host in hosts).values():
        if len(names) > 1:
            yield one_machine.finding(f"{names_of(names)} are one machine")


@check("hosts-not-examined", Severity.ERROR)
def not_examined(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """A host is reached, but what the doctor starts there fails

    Cause: the login works. The doctor starts a Python on the host and sends it a script; there is
    no Python, it is too old, the script failed, or the login prints something itself.

    Remedy: Fix what the evidence says. cputune doctor --symptom reads an error text.

    Source: https://docs.python.org/3/using/cmdline.html
    """
    yield from _without_answer(not_examined, [host for host in hosts if host.started])


def _without_answer(described: Check, hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """A finding for each reason why hosts gave no answer."""
    for reason, names in grouped((host.name, host.reason) for host in hosts).items():
        remedy = next(host.remedy for host in hosts if host.name == names[0])
        if remedy and len(names) > 1:
            remedy = remedy.replace(names[0], "HOST")
        yield described.finding(
            f"{names_of(names)}: {reason}",
            remedy=remedy if remedy is None or remedy.endswith((".", "?")) else f"{remedy}.",
        )


@differing("hosts-architecture", Severity.ERROR, {"": lambda facts: facts.cpu.architecture})
def architecture() -> None:
    """The hosts have different architectures

    Symptom: a rank ends with "Exec format error", or results differ between ranks.

    Cause: wheels and libraries are built for one architecture, and oneDNN rounds differently on
    each.

    Remedy: Train on hosts of one architecture.

    Source: https://pytorch.org/docs/stable/distributed.html
    """


@differing("hosts-cpu", Severity.WARNING, _PROCESSOR)
def cpu() -> None:
    """The hosts have different processors

    Symptom: adding a host makes training slower.

    Cause: after every step all ranks wait for the slowest: an older generation, or one without AMX
    or bf16, which may make bf16 slow.

    Remedy: Use hosts of one kind (a partition, a constraint, a node pool), or fewer.

    Source: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#skewed-processing-speeds
    """


@differing(
    "hosts-cores",
    Severity.WARNING,
    {"": _shape, "allowed CPUs": lambda facts: cpulist.render(facts.topology.allowed) or None},
)
def cores() -> None:
    """The hosts differ in sockets, cores, NUMA nodes or allowed CPUs

    Symptom: a rank ends with "cannot be bound" and the others wait for it, or cores stay idle.

    Cause: a launch binds the ranks of all hosts to the same CPUs. A host with fewer CPUs (affinity,
    a cpuset, offline CPUs) cannot start its ranks.

    Remedy: Use hosts of one shape, allow all CPUs (cpuset, taskset, the Slurm request), or tune
    over the hosts: cputune tune --hosts gives each host its own CPUs.

    Source: https://www.kernel.org/doc/html/latest/admin-guide/cputopology.html,
    https://man7.org/linux/man-pages/man7/cpuset.7.html
    """


@check("hosts-limits", Severity.WARNING)
def limits(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Limits and memory differ between hosts

    Symptom: one host runs out of memory, files or shared memory, or is throttled; others do not.

    Cause: limits come from each host and from the program that starts the process: a login by ssh
    may have others than the job. The smallest limit decides for the whole job.

    Remedy: Give all hosts the same limits (limits.conf, the unit of sshd or slurmd, the pod).

    Source: https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    totals = []
    for host in hosts:
        if host.facts is not None and host.facts.memory.total_bytes:
            totals.append(host.facts.memory.total_bytes)
    unlike = totals and max(totals) - min(totals) > MEMORY_SHARE * max(totals)
    read_by_name: dict[str, Reading] = {}
    if unlike:
        read_by_name["memory"] = lambda f: _gib(f.memory.total_bytes)
    if evidence := difference(hosts, {**_LIMITS, **read_by_name}):
        yield limits.finding(evidence)


# What computes and communicates: all hosts need the same versions.
_STACK = _versions("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl", "numpy")

# These decide the order of batches and the names of arguments.
_LIBRARIES = _versions(
    "transformers", "accelerate", "datasets", "tokenizers", "peft", "evaluate", "optimum"
)


@check("hosts-python", Severity.ERROR)
def python(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """The hosts have different Pythons

    Symptom: "No such file or directory" for the interpreter on one host, or missing packages.

    Cause: a launch starts the interpreter by one path on all hosts. One Python may not read what
    another pickled.

    Remedy: Give all hosts the same environment at the same path (a shared file system, an image,
    conda-pack); --python PATH names it.

    Source: https://conda.github.io/conda-pack/,
    https://www.open-mpi.org/faq/?category=running#run-prereqs
    """
    pythons = []
    for host in hosts:
        if host.facts is not None and host.python is not None:
            pythons.append((host.name, f"{host.python} ({host.facts.python})"))
    groups = grouped(pythons)
    if len(groups) > 1:
        yield python.finding(as_text(groups))


@differing("hosts-training-stack", Severity.ERROR, _STACK)
def training_stack() -> None:
    """The hosts have different versions of torch, IPEX, oneCCL or numpy

    Symptom: init_process_group hangs or ends with "connectFullMesh failed", or losses differ.

    Cause: different versions of torch need not understand each other, and torch does not compare
    them: a rank may wait for a message that another never sends. Builds of one version (``+cpu``,
    CUDA) have different kernels.

    Remedy: Install the same versions on every host, from one lock file or image.

    Source: pytorch/pytorch#24273
    """


@differing("hosts-libraries", Severity.WARNING, _LIBRARIES)
def libraries() -> None:
    """The hosts have different versions of transformers, accelerate or datasets

    Symptom: one rank ends with an unknown argument, or the ranks see different batches.

    Cause: flags and defaults differ between versions, and so does the division of a shuffled data
    set: some samples are then used twice in an epoch and others never.

    Remedy: Install the same versions on every host, from one lock file or image.

    Source: huggingface/accelerate#2157
    """


CHECKS = checks_of(__name__)
