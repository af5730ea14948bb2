"""Records of the facts of a machine, filled by ``cputune.host.probing``.

An unknown fact has the value None, and ``HostFacts.unknown`` has the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cputune.host import Interpreter, Package as Package, Surroundings, this_interpreter
from cputune.host.metadata import normal_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A fact that is not known: its dotted name in the document, and the reason."""

    fact: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor. ``isa`` are names of kernel flags, sorted.

    ``microcode`` is the revision of the first CPU, as the kernel writes it.
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
        """Whether the kernel (or CPUID, for amx_fp16) reports this flag."""
        return flag in self.isa


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core: its online logical CPUs (SMT siblings), socket and NUMA node.

    ``socket`` numbers the packages from 0 in the order of their first CPU, so it is not the
    kernel's physical_package_id. ``capacity`` is the kernel's cpu_capacity or ACPI's nominal
    performance, without a unit. ``l3`` is the index of its cache in ``Topology.l3``, None if it has
    none or is not known.
    """

    cpus: tuple[int, ...]
    socket: int
    numa_node: int | None
    l3: int | None = None
    max_khz: int | None = None
    capacity: int | None = None

    @property
    def speed(self) -> int:
        """A number to compare the cores of a hybrid machine: larger for P cores.

        If neither capacity nor frequency is known, the number of SMT siblings is used: E cores have
        no SMT.
        """
        if self.capacity:
            return self.capacity
        return self.max_khz or len(self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node. ``cpus`` are the online CPUs: () if it has only memory, None if not known."""

    id: int
    cpus: tuple[int, ...] | None
    memory_bytes: int | None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDomain:
    """Online CPUs that share a last-level cache, and its size."""

    cpus: tuple[int, ...]
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sockets, cores and CPUs. ``cores`` are the online ones, in the order of their first CPU.

    ``allowed`` are the online CPUs on which this process may run (affinity and cpuset). If the
    machine does not report cores (sockets), ``cores_known`` (``sockets_known``) is false: each CPU
    is then taken as a core (all cores as one socket), so that ranks can be placed, and the document
    has null. ``l3`` are the L3 caches in the order of their first CPU (on AMD one per CCX), None if
    not known.
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
        """Number of packages with an online CPU."""
        return len({core.socket for core in self.cores})

    @property
    def physical_cores(self) -> int:
        """Number of cores with an online CPU."""
        return len(self.cores)

    @property
    def threads_per_core(self) -> int:
        """Largest number of online SMT siblings of a core."""
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
        """Cores that this process may use, each with its allowed CPUs only."""
        allowed = set(self.allowed)
        kept = []
        for core in self.cores:
            cpus = tuple(cpu for cpu in core.cpus if cpu in allowed)
            if cpus:
                kept.append(replace(core, cpus=cpus))
        return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the container and the shell. ``cpu_quota`` is in CPUs.

    A limit without value does not exist (then ``unlimited`` names it), or is not known.
    ``processes`` (ulimit -u, over all processes of the user) and ``pids`` (of the cgroup, with
    ``pids_used`` in use) count threads too. Of ulimit are also ``address_space_bytes`` (-v),
    ``data_bytes`` (-d), ``stack_bytes`` (-s), ``file_bytes`` (-f, size of one file) and
    ``cpu_seconds`` (-t, CPU time of all threads of a process). ``fixed`` names limits of ulimit
    whose hard limit is equal, so that only root can raise them.
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

    ``energy_preference`` exists for drivers that choose by themselves (intel_pstate and amd-pstate
    in active mode).
    """

    cpus: tuple[int, ...]
    governor: str
    driver: str | None = None
    energy_preference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyCap:
    """CPUs whose scaling_max_freq is below cpuinfo_max_freq."""

    cpus: tuple[int, ...]
    allowed_khz: int
    most_khz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restraints:
    """What slows the process down besides its limits. None or () if nothing does, or if not known.

    ``memory_high_bytes`` is memory.high, above which the kernel reclaims pages and slows the
    process. ``cpu_weight`` is the smallest cpu.weight of the cgroup and its parents (default 100),
    and ``cpu_idle`` whether one of them has cpu.idle. ``memory_nodes`` are the NUMA nodes from
    which memory may be allocated. ``nice`` and ``policy`` (``other``, ``batch``, ``idle``) are
    inherited by children. ``max_perf_percent`` is of intel_pstate. ``commit_left_bytes`` is the
    memory that can still be reserved if overcommit_memory is 2. ``throttled_share`` is the share of
    the time since boot in which the first package was throttled for heat.
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
    """The distribution by os-release(5): ``id`` (``debian``), what it is ``like``, its release
    (``12``).
    """

    id: str
    like: tuple[str, ...] = ()
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Kernel settings that change training speed. None if not known.

    ``governor`` joins the governors in ``frequencies`` with commas. ``numa_balancing`` is the mode
    that moves pages to the CPUs that use them. The other mode of that sysctl (memory tiering)
    counts as off.
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
    """A process that computes now. ``cpu_share`` is in CPUs: 1.5 is one and a half."""

    pid: int
    name: str
    cpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the machine is: load averages, pressure (percent) and steal (share 0 to 1).

    ``busy`` are the processes that computed while the machine was examined, the busiest first.
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

    ``up``: whether it has a carrier, None if not known. ``addresses`` have their networks
    (``10.0.0.7/24``), without link-local ones (fe80::). ``mbits_per_second``: None if the driver
    reports no speed.
    """

    name: str
    up: bool | None = None
    addresses: tuple[str, ...] = ()
    mbits_per_second: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How ranks on several machines find each other. None if not known.

    ``hostname_addresses`` are the addresses of this machine's own name in /etc/hosts, empty if DNS
    resolves it. ``default_link`` is the interface of the default route.
    """

    interfaces: tuple[str, ...] | None = None
    hostname_addresses: tuple[str, ...] | None = None
    links: tuple[Link, ...] | None = None
    default_link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HostFacts:
    """One machine, as one process on it sees it.

    ``preload_missing`` are the paths in LD_PRELOAD without a library, ``files_missing`` the
    variables that name a missing file, ``accelerators`` the GPUs on the PCI bus (``nvidia``,
    ``amd``; None if not known). ``sys_nice``: the process has CAP_SYS_NICE, which containers need
    to bind memory. ``sys_resource``: it has CAP_SYS_RESOURCE, so ulimit -u does not apply.
    ``interpreter`` is the Python that trains, of which ``python`` is the version and ``packages``
    are the distributions; None in a recording.
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
    interpreter: Interpreter | None = field(default=None, compare=False)

    @property
    def installed_versions(self) -> dict[str, str]:
        """The version of each package, by its name as it is imported."""
        return {one.name.replace("-", "_"): one.version or "" for one in self.packages}

    def __repr__(self) -> str:
        cpu = self.cpu.codename or self.cpu.model_name or "an unknown processor"
        torch = self.package("torch")
        memory_text, torch_text, source = "memory unknown", "no torch", "this machine"
        if self.memory.total_bytes is not None:
            memory_text = f"{self.memory.total_bytes / (1 << 30):.1f} GiB"
        if torch is not None:
            torch_text = f"torch {torch.version}"
        if self.recorded:
            source = "a recording"
        parts = [
            cpu,
            f"{self.topology.sockets} sockets",
            f"{self.topology.physical_cores} cores",
            f"{len(self.topology.allowed)} CPUs allowed",
            memory_text,
            f"Python {self.python}",
            torch_text,
        ]
        return f"<cputune.HostFacts of {source}: {', '.join(parts)}>"

    @property
    def training_python(self) -> Interpreter:
        """The Python that trains: the one that was examined, else the one that runs cputune."""
        if self.interpreter is None:
            return this_interpreter()
        return self.interpreter

    def package(self, name: str) -> Package | None:
        """The installed distribution with this name, in any PEP 503 spelling."""
        wanted = normal_name(name)
        return next((p for p in self.packages if normal_name(p.name) == wanted), None)

    def library(self, name: str) -> Library | None:
        """The first shared library with this name."""
        return next((lib for lib in self.libraries if lib.name == name), None)

    def why_unknown(self, fact: str) -> str | None:
        """The reason why a fact is not known, or None."""
        return next((u.reason for u in self.unknown if u.fact == fact), None)
