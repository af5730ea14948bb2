"""Machines built by hand: ``machine(tmp_path, sockets=2, cores=28)`` writes proc/ and sys/.

    facts = cputune.probe(machine(tmp_path, sockets=2, cores=28, smt=2))

What is built is what Linux shows, file by file, so that the probe reads it as it reads
a real one. Without a directory, ``machine(None, ...)``, it stays in memory. ``like``
picks the processor, ``cgroup`` the limits; ``files`` adds or replaces any file, and
removes one where its text is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cputune import RecordedHost
from cputune.host import Host
from cputune.text import cpulist

_AVX2 = "fpu sse sse2 sse4_2 lm avx f16c fma avx2"
_AVX512 = f"{_AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
_VNNI = f"{_AVX512} avx512_vnni"
_AMX = f"{_VNNI} avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"


@dataclass(frozen=True)
class Processor:
    vendor: str
    family: int
    model: int
    stepping: int
    name: str
    flags: str


PROCESSORS = {
    "broadwell": Processor("GenuineIntel", 6, 79, 1, "Intel(R) Xeon(R) CPU E5-2690 v4", _AVX2),
    "skylake": Processor("GenuineIntel", 6, 85, 4, "Intel(R) Xeon(R) Platinum 8180", _AVX512),
    "cascade-lake": Processor("GenuineIntel", 6, 85, 7, "Intel(R) Xeon(R) Gold 6230", _VNNI),
    "cooper-lake": Processor(
        "GenuineIntel", 6, 85, 11, "Intel(R) Xeon(R) Platinum 8380H", f"{_VNNI} avx512_bf16"
    ),
    "ice-lake": Processor("GenuineIntel", 6, 106, 6, "Intel(R) Xeon(R) Platinum 8380", _VNNI),
    "sapphire-rapids": Processor(
        "GenuineIntel", 6, 143, 8, "Intel(R) Xeon(R) Platinum 8480+", _AMX
    ),
    "emerald-rapids": Processor("GenuineIntel", 6, 207, 2, "INTEL(R) XEON(R) PLATINUM 8592+", _AMX),
    "granite-rapids": Processor("GenuineIntel", 6, 173, 1, "Intel(R) Xeon(R) 6980P", _AMX),
    "sierra-forest": Processor(
        "GenuineIntel", 6, 175, 3, "Intel(R) Xeon(R) 6780E", f"{_AVX2} avx_vnni"
    ),
    "alder-lake": Processor(
        "GenuineIntel", 6, 151, 2, "12th Gen Intel(R) Core(TM) i9-12900K", f"{_AVX2} avx_vnni"
    ),
    "zen2": Processor("AuthenticAMD", 23, 49, 0, "AMD EPYC 7742 64-Core Processor", _AVX2),
    "zen3": Processor("AuthenticAMD", 25, 1, 1, "AMD EPYC 7763 64-Core Processor", _AVX2),
    "zen4": Processor(
        "AuthenticAMD", 25, 17, 1, "AMD EPYC 9654 96-Core Processor", f"{_VNNI} avx512_bf16"
    ),
    "xeon-max": Processor("GenuineIntel", 6, 143, 8, "Intel(R) Xeon(R) CPU Max 9480", _AMX),
    "zen5": Processor("AuthenticAMD", 26, 17, 0, "AMD EPYC 9965", f"{_VNNI} avx512_bf16 avx_vnni"),
}

_NEOVERSE = "fp asimd evtstrm aes atomics fphp asimdhp cpuid asimdrdm asimddp"
ARM_PROCESSORS = {
    # implementer, part, Features
    "graviton2": (0x41, 0xD0C, _NEOVERSE),
    "graviton3": (0x41, 0xD40, f"{_NEOVERSE} sve svebf16 svei8mm i8mm bf16"),
    "graviton4": (0x41, 0xD4F, f"{_NEOVERSE} sve sve2 svebf16 svei8mm i8mm bf16"),
}


@dataclass(frozen=True)
class Cgroup:
    """Limits of one cgroup and, in ``above``, of its ancestors from the parent upwards.

    ``quota`` is in CPUs; None writes "no limit". ``path`` is what /proc/self/cgroup
    says; ``root`` is the part of it that the mount shows (a container's view).
    """

    version: int = 2
    path: str = "/"
    quota: float | None = None
    memory_bytes: int | None = None
    cpuset: str | None = None
    throttled: tuple[int, int] | None = None
    above: tuple[Cgroup, ...] = ()
    root: str = "/"


def machine(
    root: Path | None,
    *,
    sockets: int = 1,
    cores: int | Sequence[int] = 4,
    smt: int = 1,
    siblings: str = "apart",
    nodes: int | None = None,
    memory_only_nodes: int = 0,
    memoryless_nodes: Iterable[int] = (),
    node_gib: int = 64,
    offline: str = "",
    e_cores: int = 0,
    l3: int | None = None,
    l3_mib: int = 105,
    like: str = "sapphire-rapids",
    flags: str | None = None,
    hypervisor: bool = False,
    kernel: str = "new",
    cgroup: Cgroup | None = None,
    status_allowed: str | None = None,
    record: Mapping[str, Any] | None = None,
    files: Mapping[str, str | bytes | None] | None = None,
) -> RecordedHost | FakeTree:
    """Write a machine below ``root`` and return the host that reads it.

    Args:
        cores: of each socket; a list makes the sockets differ.
        smt: logical CPUs of each core. ``siblings`` numbers them as servers do (``apart``:
            first all cores, then all second threads) or as clouds do (``together``).
        nodes: NUMA nodes with CPUs, cut evenly over all cores (a node per socket where
            None; 0 for a kernel without NUMA). Memory-only nodes follow after them.
        offline: CPUs that are switched off; they have no topology directory.
        e_cores: of the cores of each socket, how many at its end are E cores, without SMT.
        l3: cores that share an L3 cache of ``l3_mib`` (a socket where None, as Intel has it; 0
            for a kernel that shows no caches).
        kernel: ``new``, ``old`` (before 5.3: other names of files), ``bare`` (no topology
            directories at all: only /proc/cpuinfo).
        status_allowed: Cpus_allowed_list of /proc/self/status.
    """
    per_socket = [cores] * sockets if isinstance(cores, int) else list(cores)
    layout = _number_cpus(per_socket, smt, siblings, e_cores)
    off = set(cpulist.parse(offline))
    online = sorted(cpu for core in layout for cpu in core.cpus if cpu not in off)
    tree: Tree | FakeTree = FakeTree() if root is None else Tree(root)
    everything = sorted(cpu for core in layout for cpu in core.cpus)
    _write_cpus(tree, layout, online, everything, kernel, hybrid=e_cores > 0)
    _write_nodes(
        tree,
        layout,
        set(online),
        nodes=len(per_socket) if nodes is None else nodes,
        memory_only=memory_only_nodes,
        memoryless=set(memoryless_nodes),
        gib=node_gib,
    )
    if kernel == "new" and l3 != 0:
        _write_caches(tree, layout, set(online), l3 or max(per_socket), l3_mib)
    _write_cpuinfo(tree, layout, online, like, flags, hypervisor, kernel)
    total_kib = max(1, nodes or len(per_socket)) * node_gib << 20
    tree.write(
        "proc/meminfo",
        f"MemTotal: {total_kib:14} kB\nMemFree: {total_kib // 2:15} kB\n"
        f"MemAvailable: {total_kib // 2:10} kB\nSwapTotal: {0:13} kB\nSwapFree: {0:14} kB\n",
    )
    tree.write("proc/loadavg", "0.10 0.20 0.30 1/500 4242\n")
    if status_allowed is not None:
        tree.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{status_allowed}\n")
    if cgroup is not None:
        _write_cgroup(tree, cgroup)
    if record is not None:
        tree.write("record.json", json.dumps({"schema": "cputune.record/1", **record}))
    for path, content in (files or {}).items():
        tree.write(path, content)
    return tree if isinstance(tree, FakeTree) else RecordedHost(tree.root)


@dataclass(frozen=True)
class Tree:
    root: Path

    def write(self, path: str, content: str | bytes | None) -> None:
        target = self.root / path.lstrip("/")
        if content is None:
            target.unlink()
            return
        os.makedirs(target.parent, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


class FakeTree(Host):
    """A recorded tree in memory, for machines of many thousand files."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.children: dict[str, set[str]] = {}

    def write(self, path: str, content: str | bytes | None) -> None:
        assert isinstance(content, str), "a machine in memory holds text"
        at = "/" + path.lstrip("/")
        self.files[at] = content
        while at != "/" and at:
            at, _, name = at.rpartition("/")
            self.children.setdefault(at, set()).add(name)

    def read_text(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def list_dir(self, path: str) -> tuple[str, ...]:
        if path not in self.children:
            raise FileNotFoundError(path)
        return tuple(sorted(self.children[path]))

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.children


@dataclass(frozen=True)
class _Core:
    socket: int
    number: int
    cpus: tuple[int, ...]
    efficient: bool = False


def _number_cpus(per_socket: list[int], smt: int, siblings: str, e_cores: int) -> list[_Core]:
    cores = [
        _Core(socket, number, (), efficient=number >= count - e_cores)
        for socket, count in enumerate(per_socket)
        for number in range(count)
    ]
    threads = [
        (0 if siblings == "together" else thread, i, thread)
        for i, c in enumerate(cores)
        for thread in range(1 if c.efficient else smt)
    ]
    members: dict[int, list[int]] = {}
    for cpu, (_, index, _) in enumerate(sorted(threads)):
        members.setdefault(index, []).append(cpu)
    return [replace(core, cpus=tuple(sorted(members[i]))) for i, core in enumerate(cores)]


def _write_cpus(
    tree: Tree | FakeTree,
    layout: list[_Core],
    online: list[int],
    everything: list[int],
    kernel: str,
    *,
    hybrid: bool,
) -> None:
    base = "sys/devices/system/cpu"
    on = set(online)
    tree.write(f"{base}/online", cpulist.render(online) + "\n")
    tree.write(f"{base}/present", cpulist.render(everything) + "\n")
    tree.write(f"{base}/possible", cpulist.render(everything) + "\n")
    tree.write(f"{base}/offline", cpulist.render(set(everything) - on) + "\n")
    if kernel == "bare":
        return
    core_file, package_file = "core_cpus_list", "package_cpus_list"
    if kernel == "old":
        core_file, package_file = "thread_siblings_list", "core_siblings_list"
    sockets = {core.socket: set() for core in layout}
    for core in layout:
        sockets[core.socket] |= {cpu for cpu in core.cpus if cpu in on}
    texts = {socket: cpulist.render(cpus) + "\n" for socket, cpus in sockets.items()}
    for core in layout:
        together = cpulist.render(cpu for cpu in core.cpus if cpu in on) + "\n"
        for cpu in core.cpus:
            directory = f"{base}/cpu{cpu}"
            if cpu != min(everything):
                tree.write(f"{directory}/online", f"{int(cpu in on)}\n")
            if cpu not in on:
                continue
            tree.write(f"{directory}/topology/core_id", f"{core.number}\n")
            tree.write(f"{directory}/topology/physical_package_id", f"{core.socket}\n")
            tree.write(f"{directory}/topology/{core_file}", together)
            tree.write(f"{directory}/topology/{package_file}", texts[core.socket])
            if hybrid:
                khz = 3_900_000 if core.efficient else 5_200_000
                tree.write(f"{directory}/cpufreq/cpuinfo_max_freq", f"{khz}\n")
    if hybrid:
        for kind, efficient in (("core", False), ("atom", True)):
            cpus = [cpu for core in layout if core.efficient is efficient for cpu in core.cpus]
            tree.write(f"sys/devices/cpu_{kind}/cpus", cpulist.render(cpus) + "\n")


def _write_caches(
    tree: Tree | FakeTree, layout: list[_Core], online: set[int], cores: int, mib: int
) -> None:
    base = "sys/devices/system/cpu"
    groups: dict[tuple[int, int], set[int]] = {}
    for core in layout:
        groups.setdefault((core.socket, core.number // cores), set()).update(core.cpus)
    texts = {place: cpulist.render(cpus & online) + "\n" for place, cpus in groups.items()}
    for core in layout:
        shared = texts[core.socket, core.number // cores]
        for cpu in online.intersection(core.cpus):
            tree.write(f"{base}/cpu{cpu}/cache/index3/level", "3\n")
            tree.write(f"{base}/cpu{cpu}/cache/index3/size", f"{mib << 10}K\n")
            tree.write(f"{base}/cpu{cpu}/cache/index3/shared_cpu_list", shared)


def _write_nodes(
    tree: Tree | FakeTree,
    layout: list[_Core],
    online: set[int],
    *,
    nodes: int,
    memory_only: int,
    memoryless: set[int],
    gib: int,
) -> None:
    base = "sys/devices/system/node"
    total = nodes + memory_only
    for node in range(total):
        start, end = (len(layout) * (node + i) // nodes for i in (0, 1)) if nodes else (0, 0)
        members = layout[start:end] if node < nodes else []
        cpus = [cpu for core in members for cpu in core.cpus if cpu in online]
        directory = f"{base}/node{node}"
        tree.write(f"{directory}/cpulist", cpulist.render(cpus) + "\n")
        kib = 0 if node in memoryless else gib << 20
        tree.write(
            f"{directory}/meminfo",
            f"Node {node} MemTotal: {kib:15} kB\nNode {node} MemFree: {kib // 2:16} kB\n",
        )
    if total:
        tree.write(f"{base}/online", cpulist.render(range(total)) + "\n")


def _write_cpuinfo(
    tree: Tree | FakeTree,
    layout: list[_Core],
    online: list[int],
    like: str,
    flags: str | None,
    hypervisor: bool,
    kernel: str,
) -> None:
    core_of = {cpu: core for core in layout for cpu in core.cpus}
    lines: list[str] = []
    on = set(online)
    threads: dict[int, int] = {}
    cores: dict[int, int] = {}
    for core in layout:
        here = len(on.intersection(core.cpus))
        threads[core.socket] = threads.get(core.socket, 0) + here
        cores[core.socket] = cores.get(core.socket, 0) + bool(here)
    for cpu in online:
        core = core_of[cpu]
        if like in ARM_PROCESSORS:
            implementer, part, features = ARM_PROCESSORS[like]
            lines += [
                f"processor\t: {cpu}",
                "BogoMIPS\t: 243.75",
                f"Features\t: {flags or features}",
                f"CPU implementer\t: {implementer:#04x}",
                "CPU architecture: 8",
                "CPU variant\t: 0x1",
                f"CPU part\t: {part:#05x}",
                "CPU revision\t: 1",
                "",
            ]
            continue
        processor = PROCESSORS[like]
        shown = (flags or processor.flags) + (" hypervisor" if hypervisor else "")
        lines += [
            f"processor\t: {cpu}",
            f"vendor_id\t: {processor.vendor}",
            f"cpu family\t: {processor.family}",
            f"model\t\t: {processor.model}",
            f"model name\t: {processor.name}",
            f"stepping\t: {processor.stepping}",
            f"physical id\t: {core.socket}",
            f"siblings\t: {threads[core.socket]}",
            f"core id\t\t: {core.number}",
            f"cpu cores\t: {cores[core.socket]}",
            f"flags\t\t: {shown}",
            "",
        ]
    tree.write("proc/cpuinfo", "\n".join(lines) + "\n")


def _write_cgroup(tree: Tree | FakeTree, group: Cgroup) -> None:
    point = "/sys/fs/cgroup"
    relative = group.path.removeprefix(group.root.rstrip("/")).strip("/")
    chain = (group, *group.above)
    if group.version == 2:
        tree.write("proc/self/cgroup", f"0::{group.path}\n")
        mounts = f"30 20 0:26 {group.root} {point} rw - cgroup2 cgroup2 rw\n"
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
    else:
        names = ("cpu,cpuacct", "cpuset", "memory")
        tree.write(
            "proc/self/cgroup", "".join(f"{9 - i}:{n}:{group.path}\n" for i, n in enumerate(names))
        )
        mounts = "".join(
            f"3{i} 20 0:2{i} {group.root} {point}/{name} rw - cgroup cgroup rw,{name}\n"
            for i, name in enumerate(names)
        )
    tree.write("proc/self/mountinfo", f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounts}")
    directory = relative
    for level in chain:
        _write_level(tree, level, group.version, directory)
        directory = directory.rpartition("/")[0]


def _write_level(tree: Tree | FakeTree, level: Cgroup, version: int, directory: str) -> None:
    base = "sys/fs/cgroup"
    quota = None if level.quota is None else round(level.quota * 100_000)
    statistics = ""
    if level.throttled is not None:
        statistics = f"nr_periods {level.throttled[1]}\nnr_throttled {level.throttled[0]}\n"
    if version == 2:
        at = f"{base}/{directory}".rstrip("/")
        top = directory == ""
        if not top or level.quota is not None:
            tree.write(f"{at}/cpu.max", f"{'max' if quota is None else quota} 100000\n")
        if not top or level.memory_bytes is not None:
            limit = "max" if level.memory_bytes is None else level.memory_bytes
            tree.write(f"{at}/memory.max", f"{limit}\n")
        if level.cpuset is not None:
            tree.write(f"{at}/cpuset.cpus.effective", level.cpuset + "\n")
        tree.write(f"{at}/cpu.stat", f"usage_usec 1\n{statistics}")
        return
    cpu, cpuset, memory = (
        f"{base}/{name}/{directory}".rstrip("/") for name in ("cpu,cpuacct", "cpuset", "memory")
    )
    tree.write(f"{cpu}/cpu.cfs_quota_us", f"{-1 if quota is None else quota}\n")
    tree.write(f"{cpu}/cpu.cfs_period_us", "100000\n")
    tree.write(f"{cpu}/cpu.stat", statistics)
    tree.write(f"{cpuset}/cpuset.cpus", (level.cpuset or "") + "\n")
    limit = 0x7FFFFFFFFFFFF000 if level.memory_bytes is None else level.memory_bytes
    tree.write(f"{memory}/memory.limit_in_bytes", f"{limit}\n")
