"""Machines that differ: the slowest rank sets the pace, and one plan has to fit all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cputune import cpulist
from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts.seen import SeenHost, between, difference, grouped, names_of, told
from cputune.facts import HostFacts

MEMORY_SHARE = 0.05
"""Firmware and kernel keep different amounts of equal memory; they differ by less than this."""

_GIB = 1 << 30


@between(
    "hosts-same-machine",
    Severity.ERROR,
    title="Two names lead to one machine",
    remedy="Name each machine once; the ranks on it are its slots (a:2).",
    source="https://www.open-mpi.org/faq/?category=running#mpirun-hostfile",
)
def same_machine(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: a launch over two hosts is slower than one. Cause: both names are one machine.

    Its ranks get the same CPUs twice, and each believes that it has them alone. The number that
    the kernel makes at its start and the network in which it lives tell machines apart.
    """
    found: dict[str, list[str]] = {}
    for host in hosts:
        if host.machine is not None:
            found.setdefault(host.machine, []).append(host.name)
    for names in found.values():
        if len(names) > 1:
            yield same_machine.finding(f"{names_of(names)} are the same machine")


@between(
    "hosts-architecture",
    Severity.ERROR,
    title="Hosts of different architecture",
    remedy="Train on hosts of one architecture: tensors and binaries of two do not fit together.",
    source="https://pytorch.org/docs/stable/distributed.html",
)
def architecture(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: a rank ends with "Exec format error", or results differ between ranks.

    Cause: wheels and libraries are built for one architecture, and oneDNN computes in another way
    on each.
    """
    if words := difference(hosts, lambda facts: facts.cpu.architecture):
        yield architecture.finding(words)


@between(
    "hosts-cpu",
    Severity.WARNING,
    title="Processors of different kinds",
    remedy="Take hosts of one kind (a partition, a constraint, a node pool), or fewer of them.",
    source="https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#skewed-processing-speeds",
)
def cpu(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: adding a host makes training slower. Cause: all ranks wait for the slowest one.

    After every step the gradients are summed over all ranks, so an older generation, or one without
    AMX or bf16 among others that have it, sets the pace for all. A plan in bf16 may be right for
    one generation and slow on another.
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


@between(
    "hosts-cores",
    Severity.WARNING,
    title="Different numbers of sockets, cores or NUMA nodes",
    remedy="Take hosts of one shape, or let every host have CPUs of its own in the plan: "
    "cputune tune --hosts.",
    source="https://www.kernel.org/doc/html/latest/admin-guide/cputopology.html",
)
def cores(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: a rank is bound to CPUs that its host does not have, or some cores stay idle.

    Cause: the CPUs of the ranks were chosen on one host and hold for all. Where others have fewer
    cores, their rank cannot start and the rest wait for it.
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


@between(
    "hosts-allowed-cpus",
    Severity.WARNING,
    title="Not the same CPUs may be used on every host",
    remedy="Free the CPUs there (cpuset, taskset, what the job asks of Slurm), or let every host "
    "have CPUs of its own in the plan: cputune tune --hosts.",
    source="https://man7.org/linux/man-pages/man7/cpuset.7.html",
)
def allowed_cpus(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: one host's ranks end with "cannot be bound", the others wait for ever.

    Cause: affinity, cpuset or an offline CPU takes CPUs away on one host, and the plan names them.
    """
    words = difference(hosts, lambda f: cpulist.render(f.topology.allowed) or None)
    if words and not difference(hosts, _shape):
        yield allowed_cpus.finding(words)


@between(
    "hosts-limits",
    Severity.WARNING,
    title="Limits and memory differ between hosts",
    remedy="Give all hosts the same limits (limits.conf, the unit of sshd or slurmd, the pod).",
    source="https://man7.org/linux/man-pages/man2/getrlimit.2.html",
)
def limits(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: one host runs out of memory, files or shared memory, or is throttled; others do not.

    Cause: limits belong to how a host was set up and to how we were let in: what ssh gives is not
    always what the job gets. The smallest one holds for the whole job.
    """
    parts = [difference(hosts, value, what) for what, value in _LIMITS]
    memory = [f.memory.total_bytes for h in hosts if (f := h.facts) and f.memory.total_bytes]
    if memory and max(memory) - min(memory) > MEMORY_SHARE * max(memory):
        parts.append(difference(hosts, lambda f: _gib(f.memory.total_bytes), "memory"))
    if any(parts):
        yield limits.finding(". ".join(part for part in parts if part))


def _gib(number: int | None) -> str | None:
    return None if number is None else f"{number / _GIB:.1f} GiB"


def _limit(facts: HostFacts, name: str, *, size: bool = False) -> str | None:
    number = getattr(facts.limits, name)
    if number is None:
        return "none" if name in facts.limits.unlimited else None
    return _gib(number) if size else f"{number:g}"


_LIMITS = (
    ("CPU quota", lambda f: _limit(f, "cpu_quota")),
    ("memory limit", lambda f: _limit(f, "memory_bytes", size=True)),
    ("/dev/shm", lambda f: _gib(f.limits.shm_bytes)),
    ("open files", lambda f: _limit(f, "open_files")),
    ("locked memory", lambda f: _limit(f, "memlock_bytes", size=True)),
    ("processes", lambda f: _limit(f, "processes")),
)


@between(
    "hosts-settings",
    Severity.WARNING,
    title="Kernel settings differ between hosts",
    remedy="Set all hosts as the fastest one is set; cputune doctor on a host says how.",
    source="https://www.kernel.org/doc/html/latest/admin-guide/pm/cpufreq.html",
)
def settings(hosts: Sequence[SeenHost]) -> Iterator[Finding]:
    """Symptom: equal hosts are not equally fast. Cause: governor, turbo, huge pages and the like.

    All ranks wait for the slowest one in every step.
    """
    parts = [difference(hosts, value, what) for what, value in _SETTINGS]
    if any(parts):
        yield settings.finding(". ".join(part for part in parts if part))


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


_SETTINGS = (
    ("governor", lambda f: f.settings.governor),
    ("turbo", lambda f: _switch(f.settings.turbo)),
    ("transparent huge pages", lambda f: f.settings.transparent_huge_pages),
    ("NUMA balancing", lambda f: _switch(f.settings.numa_balancing)),
    ("SMT", lambda f: f.settings.smt),
)

CHECKS = (same_machine, architecture, cpu, cores, allowed_cpus, limits, settings)
