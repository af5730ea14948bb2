"""What a machine is: frozen records, filled by ``cputune.host.probing``.

A fact that could not be learnt is None, and ``HostFacts.unknown`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cputune.host import Package as Package, Surroundings
from cputune.host.metadata import normal_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A fact that could not be learnt: its dotted name in the document, and the reason."""

    fact: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor as it names itself. ``isa`` holds kernel flag names, sorted.

    ``microcode`` is the revision that the first CPU runs, as the kernel writes it.
    """

    vendor: str | None
    model_name: str | None
    codename: str | None
    family: int | None
    model: int | None
    stepping: int | None
    architecture: str | None
    hypervisor: bool | None
    isa: tuple[str, ...]
    microcode: str | None = None

    def has(self, flag: str) -> bool:
        """Whether the kernel (or CPUID, for amx_fp16) shows this flag."""
        return flag in self.isa


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core: its online logical CPUs (SMT siblings), socket and NUMA node.

    ``socket`` counts distinct packages from 0 in the order of their first CPU; it is
    not the kernel's physical_package_id. ``capacity`` is the kernel's cpu_capacity, or
    ACPI's nominal performance: a number without unit. ``l3`` is the place of its cache in
    ``Topology.l3``; None where it has none, or nobody tells.
    """

    cpus: tuple[int, ...]
    socket: int
    numa_node: int | None
    l3: int | None = None
    max_khz: int | None = None
    capacity: int | None = None

    @property
    def speed(self) -> int:
        """A number to compare the cores of a hybrid machine by; of P cores it is larger.

        Where neither capacity nor frequency is told, SMT tells: E cores have none.
        """
        return self.capacity or self.max_khz or len(self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node; ``cpus`` are the online ones: () has memory only, None is not known."""

    id: int
    cpus: tuple[int, ...] | None
    memory_bytes: int | None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDomain:
    """The online CPUs that share one last-level cache, and its size."""

    cpus: tuple[int, ...]
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sockets, cores and CPUs. ``cores`` are the online ones, in the order of their first CPU.

    ``allowed`` are the online CPUs this process may run on (affinity and cpuset).
    Where the machine does not tell its cores (sockets), ``cores_known``
    (``sockets_known``) is false: each CPU stands as a core (all cores as one socket),
    so that work can be laid out, and the document says null.

    ``l3`` are the L3 caches in the order of their first CPU (on AMD a CCX each); None is not told.
    """

    cores: tuple[Core, ...]
    online: tuple[int, ...]
    present: tuple[int, ...] | None
    allowed: tuple[int, ...]
    numa_nodes: tuple[NumaNode, ...]
    l3: tuple[CacheDomain, ...] | None = None
    hybrid: bool = False
    cores_known: bool = True
    sockets_known: bool = True

    @property
    def sockets(self) -> int:
        """Distinct packages with an online CPU."""
        return len({core.socket for core in self.cores})

    @property
    def physical_cores(self) -> int:
        """Distinct sibling sets among the online CPUs."""
        return len(self.cores)

    @property
    def threads_per_core(self) -> int:
        """The most online SMT siblings that any core has."""
        return max((len(core.cpus) for core in self.cores), default=1)

    @property
    def cores_per_socket(self) -> tuple[int, ...]:
        """Online cores of each socket, by socket number."""
        counts = dict.fromkeys(sorted({core.socket for core in self.cores}), 0)
        for core in self.cores:
            counts[core.socket] += 1
        return tuple(counts.values())

    @property
    def allowed_cores(self) -> tuple[Core, ...]:
        """The cores this process may use, each with only its allowed CPUs."""
        allowed = set(self.allowed)
        kept = []
        for core in self.cores:
            cpus = tuple(cpu for cpu in core.cpus if cpu in allowed)
            if cpus:
                kept.append(replace(core, cpus=cpus))
        return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the container and the shell allow; ``cpu_quota`` is in CPUs.

    A limit that is None either does not exist, and then ``unlimited`` names it, or is not
    known. ``processes`` (ulimit -u, over all of the user's) and ``pids`` (of the cgroup, of
    which ``pids_used`` exist) count threads too. ``address_space_bytes`` is ulimit -v,
    ``data_bytes`` -d, ``stack_bytes`` -s, ``file_bytes`` -f: the most that one file may have, and
    ``cpu_seconds`` -t: the CPU time that a process may use, of all its threads. ``fixed`` names
    those of ulimit whose hard limit is as low: only root raises them.
    """

    cpu_quota: float | None
    cpuset: tuple[int, ...] | None
    memory_bytes: int | None
    shm_bytes: int | None
    open_files: int | None
    memlock_bytes: int | None
    cgroup_version: int | None = None
    cgroup_path: str | None = None
    throttled_periods: int | None = None
    periods: int | None = None
    shm_free_bytes: int | None = None
    open_files_hard: int | None = None
    processes: int | None = None
    pids: int | None = None
    pids_used: int | None = None
    address_space_bytes: int | None = None
    file_bytes: int | None = None
    data_bytes: int | None = None
    stack_bytes: int | None = None
    cpu_seconds: int | None = None
    fixed: tuple[str, ...] = ()
    unlimited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the whole machine, from /proc/meminfo."""

    total_bytes: int | None
    available_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequency:
    """How the frequency of some CPUs is chosen.

    ``energy_preference`` is what drivers that choose by themselves (intel_pstate and
    amd-pstate in active mode) are asked for; other drivers have none.
    """

    cpus: tuple[int, ...]
    governor: str
    driver: str | None = None
    energy_preference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyCap:
    """CPUs whose frequency is kept below what they can: scaling_max_freq, cpuinfo_max_freq."""

    cpus: tuple[int, ...]
    allowed_khz: int
    most_khz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restraints:
    """What slows the process down beside its limits; None and () if nothing does or is shown.

    ``memory_high_bytes`` is memory.high, above which the kernel takes pages back and slows the
    process; ``cpu_weight`` the smallest cpu.weight of the cgroup and those above it (100 is
    usual); ``cpu_idle`` whether one of them runs only if others do not. ``memory_nodes`` are the
    NUMA nodes that memory may come from. ``nice`` and ``policy`` (``other``, ``batch``, ``idle``)
    are inherited by what is started here. ``max_perf_percent`` is intel_pstate's.
    ``commit_left_bytes``: what can still be reserved if overcommit_memory is 2.
    ``throttled_share``: of the time since the machine started, in which the first package was
    throttled for its heat.
    """

    memory_high_bytes: int | None = None
    cpu_weight: int | None = None
    cpu_idle: bool | None = None
    memory_nodes: tuple[int, ...] | None = None
    nice: int | None = None
    policy: str | None = None
    frequency_caps: tuple[FrequencyCap, ...] = ()
    max_perf_percent: int | None = None
    commit_left_bytes: int | None = None
    throttled_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinuxDistribution:
    """Which one it is, by os-release(5): ``debian``, ``like`` what, and its release (``12``)."""

    id: str
    like: tuple[str, ...] = ()
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Kernel knobs that change training speed; None where the kernel does not say.

    ``governor`` joins by commas what ``frequencies`` tells of each group of online CPUs.
    ``numa_balancing`` is the mode that moves pages to the CPUs that use them; the other
    mode of that sysctl (tiering between fast and slow memory) leaves it off.
    """

    governor: str | None
    turbo: bool | None
    transparent_huge_pages: str | None
    numa_balancing: bool | None
    smt: str | None
    kernel: str | None
    container: str | None
    frequencies: tuple[Frequency, ...] = ()
    distribution: LinuxDistribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library that can be preloaded: ``tcmalloc``, ``jemalloc``, ``libiomp5``..."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A program that starts ranks. ``dialect``: intelmpi, mpich, openmpi4, openmpi5, ..."""

    name: str
    path: str
    dialect: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyProcess:
    """A process that computes at the moment; ``cpu_share`` 1.5 is one and a half CPUs."""

    pid: int
    name: str
    cpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the machine is: load averages, pressure (percent) and steal (share 0 to 1).

    ``busy`` are the processes that computed while the machine was looked at, the busiest first.
    """

    average_1min: float | None
    cpu_pressure_percent: float | None
    memory_pressure_percent: float | None
    steal_share: float | None
    running_threads: int | None = None
    busy: tuple[BusyProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One network interface.

    ``up``: whether it carries; None where the kernel does not say. ``addresses`` stand with
    their networks (``10.0.0.7/24``), without those that mean nothing beyond the cable
    (fe80::). ``mbits_per_second`` is None where the driver knows no speed.
    """

    name: str
    up: bool | None = None
    addresses: tuple[str, ...] = ()
    mbits_per_second: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What ranks on several machines find each other by; None where it is not known.

    ``hostname_addresses`` are those that /etc/hosts gives to this machine's own name
    (none, where it does not name it: DNS answers then). ``links`` are the interfaces with
    their addresses, ``default_link`` is the one that leads out. ``host_name`` is not in
    the doctor's document.
    """

    interfaces: tuple[str, ...] | None = None
    hostname_addresses: tuple[str, ...] | None = None
    links: tuple[Link, ...] | None = None
    default_link: str | None = None
    host_name: str | None = None

    def link(self, name: str) -> Link | None:
        """The interface of this name."""
        return next((link for link in self.links or () if link.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HostFacts:
    """One machine, as one process on it sees it.

    ``preload_missing`` are the paths in LD_PRELOAD that no library has, ``files_missing`` the
    variables that name a file which is not there, ``accelerators``
    the GPUs on the PCI bus (``nvidia``, ``amd``; None is not known), ``sys_nice``
    whether the process holds CAP_SYS_NICE, which containers need to bind memory, and
    ``sys_resource`` whether it holds CAP_SYS_RESOURCE, to which ulimit -u does not apply.
    """

    cpu: Cpu
    topology: Topology
    limits: Limits
    memory: Memory
    settings: Settings
    load: Load
    python: str | None
    packages: tuple[Package, ...] = ()
    libraries: tuple[Library, ...] = ()
    launchers: tuple[Launcher, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[Unknown, ...] = ()
    recorded: bool = False
    preload_missing: tuple[str, ...] = ()
    accelerators: tuple[str, ...] | None = None
    sys_nice: bool | None = None
    sys_resource: bool | None = None
    network: Network = field(default_factory=Network)
    surroundings: Surroundings = field(default_factory=Surroundings)
    restraints: Restraints = field(default_factory=Restraints)
    files_missing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        cpu = self.cpu.codename or self.cpu.model_name or "an unknown processor"
        topology, memory, torch = self.topology, self.memory.total_bytes, self.package("torch")
        parts = [
            cpu,
            f"{topology.sockets} sockets",
            f"{topology.physical_cores} cores",
            f"{len(topology.allowed)} CPUs allowed",
            "memory unknown" if memory is None else f"{memory / (1 << 30):.1f} GiB",
            f"Python {self.python}",
            "no torch" if torch is None else f"torch {torch.version}",
        ]
        whose = "a recording" if self.recorded else "this machine"
        return f"<cputune.HostFacts of {whose}: {', '.join(parts)}>"

    def package(self, name: str) -> Package | None:
        """The installed distribution of this name (PEP 503 spelling does not matter)."""
        wanted = normal_name(name)
        return next((p for p in self.packages if normal_name(p.name) == wanted), None)

    def library(self, name: str) -> Library | None:
        """The first shared library of this name that was found."""
        return next((lib for lib in self.libraries if lib.name == name), None)

    def why_unknown(self, fact: str) -> str | None:
        """Why this fact is None, or None where it is known."""
        return next((u.reason for u in self.unknown if u.fact == fact), None)
