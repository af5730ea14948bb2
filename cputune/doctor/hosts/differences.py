"""What differs between hosts: machines, software, clocks, the launch that lies on them.

The slowest rank sets the pace, one plan has to fit all, and versions that differ fail late or train
apart without a word. The checks are given the hosts that were reached and those that were not; what
is not known of a host is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from cputune import cpulist
from cputune.doctor.finding import Finding, FoundOn, Severity, check, checks_of
from cputune.facts import HostFacts, Launcher
from cputune.probing.installed import MPI_PROGRAMS
from cputune.remote.named import Node

MOST_NAMES = 6
"""How many hosts are named in a row; where there are more, their number is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHost:
    """One host; where ``facts`` is None it was not reached: ``reason`` and ``cure`` tell more.

    ``seconds`` is how long it took. ``clock_offset_seconds`` is how far its clock is ahead of ours,
    give or take ``clock_uncertainty_seconds``. ``python`` is the path of the interpreter that was
    looked at there. ``machine`` tells whether two names lead to one machine. ``launch`` holds of
    each path of a launch what lies there: a digest, ``folder``, or None for nothing. ``findings``
    are what the doctor says of this host alone.
    """

    node: Node
    seconds: float
    facts: HostFacts | None = None
    reason: str | None = None
    cure: str | None = None
    clock_offset_seconds: float | None = None
    clock_uncertainty_seconds: float | None = None
    python: str | None = None
    machine: str | None = None
    launch: Mapping[str, str | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The name by which the host was asked for."""
        return self.node.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsDiagnosis(FoundOn):
    """What the doctor has to say about several hosts; the worst findings come first."""

    hosts: tuple[SeenHost, ...]


Key = TypeVar("Key", bound=Hashable)


def grouped(
    hosts: Iterable[SeenHost], value: Callable[[HostFacts], Key | None]
) -> dict[Key, list[str]]:
    """The names of the hosts, grouped by what is known of them; the largest group first."""
    found: dict[Key, list[str]] = {}
    for host in hosts:
        told = None if host.facts is None else value(host.facts)
        if told is not None:
            found.setdefault(told, []).append(host.name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def told(groups: Mapping[str, Sequence[str]]) -> str:
    """``2.13.0 on a, b; 2.6.0 on c``."""
    return "; ".join(f"{value} on {names_of(names)}" for value, names in groups.items())


def names_of(names: Sequence[str]) -> str:
    """``a, b, c``; of many the first ones, and how many more."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} more"


def difference(
    hosts: Iterable[SeenHost], value: Callable[[HostFacts], str | None], what: str = ""
) -> str | None:
    """What differs, in words, and where; None where everything that is known is the same."""
    groups = grouped(hosts, value)
    if len(groups) < 2:
        return None
    return f"{what}: {told(groups)}" if what else told(groups)


Told = Callable[[HostFacts], "str | None"]


def differing(hosts: Iterable[SeenHost], told_of: Iterable[tuple[str, Told]]) -> str:
    """What of this differs, each by its name and where; empty where all is alike."""
    return ". ".join(filter(None, (difference(hosts, value, what) for what, value in told_of)))


MEMORY_SHARE = 0.05
"""Firmware and kernel keep different amounts of equal memory; they differ by less than this."""

_GIB = 1 << 30


CLOCK_SECONDS = 1.0
"""NTP keeps hosts within milliseconds; from one second on make, caches and logs go wrong."""


_LIMITS: tuple[tuple[str, Told], ...] = (
    ("CPU quota", lambda f: _limit(f, "cpu_quota")),
    ("memory limit", lambda f: _limit(f, "memory_bytes", size=True)),
    ("/dev/shm", lambda f: _gib(f.limits.shm_bytes)),
    ("open files", lambda f: _limit(f, "open_files")),
    ("locked memory", lambda f: _limit(f, "memlock_bytes", size=True)),
    ("processes", lambda f: _limit(f, "processes")),
)


_SETTINGS: tuple[tuple[str, Told], ...] = (
    ("governor", lambda f: f.settings.governor),
    ("turbo", lambda f: _switch(f.settings.turbo)),
    ("transparent huge pages", lambda f: f.settings.transparent_huge_pages),
    ("NUMA balancing", lambda f: _switch(f.settings.numa_balancing)),
    ("SMT", lambda f: f.settings.smt),
)


@check("hosts-unreachable", Severity.ERROR)
def unreachable(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """A host cannot be reached

    Symptom: mpirun or the launcher hangs, or ends with the error of its ssh. Cause: as told.

    Launchers go to other hosts as the doctor does, without anybody to type a password: a key that
    is refused here is refused there.

    Remedy: Mend the way to it, or leave it out of the list.

    Source: https://man.openbsd.org/ssh
    """
    found: dict[tuple[str, str | None], list[SeenHost]] = {}
    for host in hosts:
        if host.reason is not None:
            generic = host.cure and host.cure.replace(host.name, "HOST")
            found.setdefault((host.reason, generic), []).append(host)
    for (reason, cure), those in found.items():
        names = names_of([host.name for host in those])
        remedy = those[0].cure if len(those) == 1 else cure
        yield unreachable.finding(f"{names}: {reason}", remedy=remedy and _sentence(remedy))


def _sentence(text: str) -> str:
    """A hint as a remedy; a command keeps its small letter."""
    return text if text.endswith((".", "?")) else f"{text}."


@check("hosts-clock", Severity.WARNING)
def clock(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """The clocks of the hosts differ

    Symptom: files "from the future", caches of data sets that are made anew, logs out of order.

    Cause: a clock that nobody sets. Kerberos and munge (which Slurm trusts) refuse tickets that are
    minutes off, so a job does not start there at all.

    Remedy: Let all hosts follow one time server (chrony, systemd-timesyncd).

    Source: https://chrony-project.org/documentation.html
    """
    known = [
        (host.clock_offset_seconds, host.clock_uncertainty_seconds or 0.0, host)
        for host in hosts
        if host.clock_offset_seconds is not None
    ]
    if not known:
        return
    middle = sorted(offset for offset, _, _ in known)[(len(known) - 1) // 2]
    # With two hosts our own clock is the third: else nobody can say which one is right.
    truth = middle if len(known) > 2 else 0.0
    off: dict[str, list[str]] = {}
    for offset, uncertainty, host in known:
        if abs(offset - truth) - uncertainty > CLOCK_SECONDS:
            ahead = "ahead" if offset > truth else "behind"
            off.setdefault(f"{_span(abs(offset - truth))} {ahead}", []).append(host.name)
    if off and len(known) > 1 and not _all_alike(known):
        yield clock.finding(told(off))


def _all_alike(known: Sequence[tuple[float, float, SeenHost]]) -> bool:
    """Whether it is our own clock alone that is off."""
    offsets = [offset for offset, _, _ in known]
    doubt = 2 * max(uncertainty for _, uncertainty, _ in known)
    return max(offsets) - min(offsets) - doubt <= CLOCK_SECONDS


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@check("hosts-launch-files", Severity.ERROR)
def launch_files(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """The launch is not the same on every host

    Symptom: "No such file or directory" on one host, or one rank trains something else.

    Cause: a launcher starts the same path on every host and copies nothing. An older copy of the
    script is worse than none: its ranks meet the others and compute with other numbers.

    Remedy: Copy it to the same path on every host, or put it on a file system that they share:
    rsync -a DIR/ HOST:DIR/

    Source: https://www.open-mpi.org/faq/?category=running#do-i-need-a-common-filesystem
    """
    seen = [host for host in hosts if host.launch]
    for path in sorted({path for host in seen for path in host.launch}):
        lacking = [host.name for host in seen if host.launch.get(path) is None]
        if lacking:
            yield launch_files.finding(f"{path} is not on {names_of(lacking)}")
            continue
        kinds: dict[str | None, list[str]] = {}
        for host in seen:
            kinds.setdefault(host.launch[path], []).append(host.name)
        if len(kinds) > 1:
            apart = " / ".join(names_of(names) for names in kinds.values())
            yield launch_files.finding(f"{path} differs: {apart}")


@check("hosts-same-machine", Severity.ERROR)
def same_machine(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Two names lead to one machine

    Symptom: a launch over two hosts is slower than one. Cause: both names are one machine.

    Its ranks get the same CPUs twice, and each believes that it has them alone. The number that
    the kernel makes at its start and the network in which it lives tell machines apart.

    Remedy: Name each machine once; the ranks on it are its slots (a:2).

    Source: https://www.open-mpi.org/faq/?category=running#mpirun-hostfile
    """
    found: dict[str, list[str]] = {}
    for host in hosts:
        if host.machine is not None:
            found.setdefault(host.machine, []).append(host.name)
    for names in found.values():
        if len(names) > 1:
            yield same_machine.finding(f"{names_of(names)} are the same machine")


@check("hosts-architecture", Severity.ERROR)
def architecture(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Hosts of different architecture

    Symptom: a rank ends with "Exec format error", or results differ between ranks.

    Cause: wheels and libraries are built for one architecture, and oneDNN computes in another way
    on each.

    Remedy: Train on hosts of one architecture: tensors and binaries of two do not fit together.

    Source: https://pytorch.org/docs/stable/distributed.html
    """
    if words := difference(hosts, lambda facts: facts.cpu.architecture):
        yield architecture.finding(words)


@check("hosts-cpu", Severity.WARNING)
def cpu(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Processors of different kinds

    Symptom: adding a host makes training slower. Cause: all ranks wait for the slowest one.

    After every step the gradients are summed over all ranks, so an older generation, or one without
    AMX or bf16 among others that have it, sets the pace for all. A plan in bf16 may be right for
    one generation and slow on another.

    Remedy: Take hosts of one kind (a partition, a constraint, a node pool), or fewer of them.

    Source: https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#skewed-processing-speeds
    """
    kind = difference(hosts, lambda facts: facts.cpu.codename or facts.cpu.model_name)
    flags = [facts.cpu.isa for host in hosts if (facts := host.facts) and facts.cpu.isa]
    some = sorted({flag for those in flags for flag in those if not all(flag in f for f in flags)})
    if kind:
        yield cpu.finding(kind + (f"; not all have {', '.join(some)}" if some else ""))
    elif some:
        yield cpu.finding(told(grouped(hosts, lambda facts: _of(facts, some))))


def _of(facts: HostFacts, flags: Sequence[str]) -> str | None:
    """Which of these flags a processor has; None where its flags are not known."""
    if not facts.cpu.isa:
        return None
    return " ".join(flag for flag in flags if facts.cpu.has(flag)) or f"none of {', '.join(flags)}"


@check("hosts-cores", Severity.WARNING)
def cores(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Different numbers of sockets, cores or NUMA nodes

    Symptom: a rank is bound to CPUs that its host does not have, or some cores stay idle.

    Cause: the CPUs of the ranks were chosen on one host and hold for all. Where others have fewer
    cores, their rank cannot start and the rest wait for it.

    Remedy: Take hosts of one shape, or let every host have CPUs of its own in the plan: cputune
    tune --hosts.

    Source: https://www.kernel.org/doc/html/latest/admin-guide/cputopology.html
    """
    if words := difference(hosts, _shape):
        yield cores.finding(words)


def _shape(facts: HostFacts) -> str | None:
    topology = facts.topology
    if not (topology.cores_known and topology.sockets_known and topology.online):
        return None
    nodes = len(topology.numa_nodes)
    return (
        f"{topology.sockets} × {'/'.join(map(str, sorted(set(topology.cores_per_socket))))} cores, "
        f"{topology.threads_per_core} thread{'s' * (topology.threads_per_core > 1)} each, "
        f"{nodes} NUMA node{'s' * (nodes != 1)}"
    )


@check("hosts-allowed-cpus", Severity.WARNING)
def allowed_cpus(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Not the same CPUs may be used on every host

    Symptom: one host's ranks end with "cannot be bound", the others wait for ever.

    Cause: affinity, cpuset or an offline CPU takes CPUs away on one host, and the plan names them.

    Remedy: Free the CPUs there (cpuset, taskset, what the job asks of Slurm), or let every host
    have CPUs of its own in the plan: cputune tune --hosts.

    Source: https://man7.org/linux/man-pages/man7/cpuset.7.html
    """
    words = difference(hosts, lambda f: cpulist.render(f.topology.allowed) or None)
    if words and not difference(hosts, _shape):
        yield allowed_cpus.finding(words)


@check("hosts-limits", Severity.WARNING)
def limits(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Limits and memory differ between hosts

    Symptom: one host runs out of memory, files or shared memory, or is throttled; others do not.

    Cause: limits belong to how a host was set up and to how we were let in: what ssh gives is not
    always what the job gets. The smallest one holds for the whole job.

    Remedy: Give all hosts the same limits (limits.conf, the unit of sshd or slurmd, the pod).

    Source: https://man7.org/linux/man-pages/man2/getrlimit.2.html
    """
    told_of = [*_LIMITS]
    memory = [f.memory.total_bytes for h in hosts if (f := h.facts) and f.memory.total_bytes]
    if memory and max(memory) - min(memory) > MEMORY_SHARE * max(memory):
        told_of.append(("memory", lambda f: _gib(f.memory.total_bytes)))
    if words := differing(hosts, told_of):
        yield limits.finding(words)


def _gib(number: int | None) -> str | None:
    return None if number is None else f"{number / _GIB:.1f} GiB"


def _limit(facts: HostFacts, name: str, *, size: bool = False) -> str | None:
    number = getattr(facts.limits, name)
    if number is None:
        return "none" if name in facts.limits.unlimited else None
    return _gib(number) if size else f"{number:g}"


@check("hosts-settings", Severity.WARNING)
def settings(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Kernel settings differ between hosts

    Symptom: equal hosts are not equally fast. Cause: governor, turbo, huge pages and the like.

    All ranks wait for the slowest one in every step.

    Remedy: Set all hosts as the fastest one is set; cputune doctor on a host says how.

    Source: https://www.kernel.org/doc/html/latest/admin-guide/pm/cpufreq.html
    """
    if words := differing(hosts, _SETTINGS):
        yield settings.finding(words)


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


STACK = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl", "numpy")
"""What talks to the other ranks, and what computes: the same everywhere."""

LIBRARIES = ("transformers", "accelerate", "datasets", "tokenizers", "peft", "evaluate", "optimum")
"""What decides the order of batches and the names of arguments."""

NONE = "none"


@check("hosts-python", Severity.ERROR)
def python(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Not the same Python on every host

    Symptom: "No such file or directory" of the interpreter on one host, or packages not found.

    Cause: a launch names the interpreter by its path, and an environment belongs to one Python.
    What is pickled by one version may not be read by another.

    Remedy: Give all hosts the same environment at the same path (a shared file system, an image,
    conda-pack); --python PATH names it.

    Source: https://conda.github.io/conda-pack/,
    https://www.open-mpi.org/faq/?category=running#run-prereqs
    """
    groups: dict[str, list[str]] = {}
    for host in hosts:
        if host.facts is not None and host.python is not None:
            key = f"{host.python} ({host.facts.python})"
            groups.setdefault(key, []).append(host.name)
    if len(groups) > 1:
        yield python.finding(told(groups))


@check("hosts-training-stack", Severity.ERROR)
def training_stack(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Not the same torch, IPEX, oneCCL or numpy on every host

    Symptom: init_process_group hangs or ends with "connectFullMesh failed", or losses differ.

    Cause: nothing is promised between versions, and torch does not compare them when ranks meet: a
    rank waits for a message that the other never sends. Builds of one version (``+cpu``, CUDA)
    differ in their kernels too.

    Remedy: Install the same versions on every host, best from one lock file or image.

    Source: pytorch/pytorch#24273
    """
    if words := differing(hosts, _versions(STACK)):
        yield training_stack.finding(words)


@check("hosts-libraries", Severity.WARNING)
def libraries(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Not the same transformers, accelerate or datasets on every host

    Symptom: one rank ends with an unknown argument, or the ranks see different batches.

    Cause: flags and defaults change between versions, and so does how a data set is shuffled and
    cut into shards: then some samples are seen twice and others never.

    Remedy: Install the same versions on every host, best from one lock file or image.

    Source: huggingface/accelerate#2157
    """
    if words := differing(hosts, _versions(LIBRARIES)):
        yield libraries.finding(words)


@check("hosts-mpi", Severity.ERROR)
def mpi(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Not the same MPI on every host

    Symptom: "ORTE was unable to reliably start one or more daemons", or a hang at the start.

    Cause: mpirun starts a helper of its own kind on each host (orted, prted, hydra_pmi_proxy). What
    ssh finds on PATH there is another MPI, or none: ~/.bashrc often sets PATH for terminals alone.

    Remedy: Put one MPI first on PATH of every host, also for logins without a terminal: ssh HOST
    mpirun --version shows which it is.

    Source: open-mpi/ompi#11936, open-mpi/ompi#599
    """
    if words := difference(hosts, _mpi):
        yield mpi.finding(words)


def _mpi(facts: HostFacts) -> str | None:
    launcher = next((one for one in facts.launchers if one.name in MPI_PROGRAMS), None)
    if launcher is None:
        return NONE
    return None if launcher.dialect is None else f"{_family(launcher)} {launcher.version}"


def _family(launcher: Launcher) -> str:
    names = {"intelmpi": "Intel MPI", "mpich": "MPICH"}
    return names.get(launcher.dialect or "", "Open MPI")


def _version(facts: HostFacts, name: str) -> str | None:
    package = facts.package(name)
    if package is None:
        return NONE
    build = "" if package.build in (None, "cpu") else f" ({package.build})"
    return None if package.version is None else f"{package.version}{build}"


def _versions(names: Iterable[str]) -> list[tuple[str, Told]]:
    return [(name, partial(_version, name=name)) for name in names]


CHECKS = checks_of(__name__)
