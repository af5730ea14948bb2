"""Another host as a ``Host``: replays what a probe script reported of it.

The script (``sent/probe.py``) prints a recording, which the same code reads as a recorded machine.
One question asks for everything that the probes read.
"""

from __future__ import annotations

import json
import posixpath
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cputune.host import Host, RecordedHost
from cputune.host.facts import HostFacts
from cputune.host.interpreter import Interpreter
from cputune.host.metadata import JUDGED, Shelf, read_distributions
from cputune.host.probing import probe
from cputune.host.probing.installed import (
    INSIDE_SITE_PACKAGES,
    LOOKED_FOR,
    MPI_PROGRAMS,
    OTHER_PROGRAMS,
    SYSTEM_DIRECTORIES,
    VERSION_TIMEOUT_SECONDS,
)
from cputune.host.recorded import RECORD_FILE, RECORD_SCHEMA
from cputune.host.remote.ask import ANSWER_SECONDS, Answer, ask_each, script_text
from cputune.host.remote.named import Node
from cputune.host.remote.reach import Reach
from cputune.text.documents import record_of

_CPU, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"

BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOST_NAME = "/proc/sys/kernel/hostname"

# Patterns of the files that a probe reads on most machines.
READ = (
    BOOT_ID,
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/stat",
    "/proc/version",
    "/proc/pressure/*",
    "/proc/self/status",
    "/proc/self/stat",
    "/proc/uptime",
    "/proc/sys/vm/overcommit_memory",
    "/proc/self/limits",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    HOST_NAME,
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/numa_balancing",
    "/sys/class/net/*/operstate",
    "/sys/class/net/*/speed",
    "/proc/net/route",
    "/proc/net/fib_trie",
    "/proc/net/if_inet6",
    "/etc/hosts",
    "/etc/os-release",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    f"{_CPU}/online",
    f"{_CPU}/offline",
    f"{_CPU}/present",
    f"{_CPU}/smt/control",
    f"{_CPU}/cpu[0-9]*/online",
    f"{_CPU}/cpu[0-9]*/cpu_capacity",
    f"{_CPU}/cpu[0-9]*/topology/*_list",
    f"{_CPU}/cpu[0-9]*/topology/*_id",
    f"{_CPU}/cpu[0-9]*/cache/index3/level",
    f"{_CPU}/cpu[0-9]*/cache/index3/size",
    f"{_CPU}/cpu[0-9]*/cache/index3/shared_cpu_list",
    f"{_CPU}/cpu[0-9]*/cpufreq/cpuinfo_max_freq",
    f"{_CPU}/cpu[0-9]*/acpi_cppc/nominal_perf",
    f"{_CPU}/cpufreq/boost",
    f"{_CPU}/cpufreq/policy*/scaling_governor",
    f"{_CPU}/cpufreq/policy*/scaling_driver",
    f"{_CPU}/cpufreq/policy*/affected_cpus",
    f"{_CPU}/cpufreq/policy*/scaling_max_freq",
    f"{_CPU}/cpufreq/policy*/cpuinfo_max_freq",
    f"{_CPU}/cpufreq/policy*/energy_performance_preference",
    f"{_CPU}/intel_pstate/no_turbo",
    f"{_CPU}/intel_pstate/max_perf_pct",
    f"{_CPU}/cpu0/thermal_throttle/package_throttle_total_time_ms",
    f"{_NODE}/online",
    f"{_NODE}/has_*",
    f"{_NODE}/node[0-9]*/cpulist",
    f"{_NODE}/node[0-9]*/meminfo",
)

# Directories to list, so that it is known what they do not contain.
LISTED = (
    "/",
    "/dev",
    "/etc",
    "/proc/self",
    "/proc/driver",
    "/proc/pressure",
    "/run",
    "/sys/class/net",
    "/sys/devices",
    _CPU,
    f"{_CPU}/cpu[0-9]*",
    f"{_CPU}/cpu[0-9]*/topology",
    f"{_CPU}/cpu[0-9]*/cpufreq",
    f"{_CPU}/cpufreq",
    f"{_CPU}/cpufreq/policy*",
    "/sys/devices/system",
    _NODE,
    f"{_NODE}/node[0-9]*",
    "/sys/kernel/mm",
    "/sys/fs/cgroup",
)

# Paths of which a probe asks only whether they exist.
PATHS = (
    "/.dockerenv",
    "/run/.containerenv",
    "/proc/driver/nvidia",
    "/dev/nvidiactl",
    "/dev/kfd",
    "/dev/dxg",
    "/sys/devices/cpu_core",
)

# Seconds for which each host's processes are watched.
LOOK_SECONDS = 0.2


class FarHost(RecordedHost):
    """A host as it reported itself a moment ago. Nothing is read from it later."""

    live = True
    __slots__ = ()

    def exists(self, path: str) -> bool:
        if super().exists(path):
            return True
        above, name = posixpath.split(path.rstrip("/"))
        return name in (self._record.directories.get(above) or ())

    def knows(self, path: str) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A host that was probed.

    Attributes:
        python: path of the Python that answered, which trains.
        content: for each requested path the size and digest of a file, ``folder``, or None if it
            does not exist.
        names: for each requested name its addresses, or the reason why it has none.
        own: the address that gloo would listen on by default. None without one.
    """

    node: Node
    facts: HostFacts
    host: Host = field(default_factory=Host)
    seconds: float = 0.0
    python: str | None = None
    content: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...] | str] = field(default_factory=dict)
    own: str | None = None

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def machine(self) -> str | None:
        """What two names of one machine have in common: its boot and its own name.

        Containers of one machine share the first, machines that were cloned share the second. None
        if one of them cannot be read.
        """
        try:
            read = [self.host.read_text(path).strip() for path in (BOOT_ID, HOST_NAME)]
        except OSError:
            return None
        return " ".join(read)


def probe_each(
    nodes: Sequence[Node],
    reach: Reach,
    seconds: float = ANSWER_SECONDS,
    *,
    python: str | None = None,
    content: Sequence[str] = (),
    names: Sequence[str] = (),
    on_probed: Callable[[Probed], None] = lambda probed: None,
) -> tuple[Probed | Answer, ...]:
    """Probe all hosts at once. The result of a host that cannot be reached is its Answer.

    Args:
        nodes: the hosts.
        reach: how to reach them.
        seconds: time limit of each.
        python: the Python of the training, if it is not ours.
        content: paths whose content is to be compared.
        names: host names that each host resolves.
        on_probed: called with each host as it arrives, from several threads.
    """
    request = question(content, names, without=reach.sets)
    hosts: dict[int, Probed | Answer] = {}

    def judge(answer: Answer) -> None:
        hosts[id(answer.node)] = judged = answer.read(partial(_judged, answer))
        if isinstance(judged, Probed):
            on_probed(judged)

    pythons: tuple[str, ...] = ()
    if python is not None:
        pythons = (python,)
    script = script_text("probe.py")
    ask_each(
        nodes, reach, script, lambda _: request, seconds, pythons=lambda _: pythons, on_answer=judge
    )
    return tuple(hosts[id(node)] for node in nodes)


def question(
    content: Sequence[str] = (), names: Sequence[str] = (), *, without: Sequence[str] = ()
) -> dict[str, Any]:
    """The question to ``sent/probe.py``. Variables that begin ``without`` are left out."""
    return {
        "read": READ,
        "list": LISTED,
        "paths": PATHS,
        "places": SYSTEM_DIRECTORIES,
        "inside": INSIDE_SITE_PACKAGES,
        "libraries": LOOKED_FOR,
        "judged": JUDGED.pattern,
        "programs": MPI_PROGRAMS + OTHER_PROGRAMS,
        "versions": MPI_PROGRAMS,
        "version_seconds": VERSION_TIMEOUT_SECONDS,
        "disks": ("/dev/shm",),
        "cpuid": ("7.1",),
        "content": tuple(content),
        "names": tuple(names),
        "look_seconds": LOOK_SECONDS,
        "without": tuple(without),
    }


def _judged(answer: Answer, content: Mapping[str, Any]) -> Probed:
    metadata, record = content["metadata"], content["record"] | {"schema": RECORD_SCHEMA}
    shelf = _Shelf(metadata["names"], metadata["heads"], metadata["ages"])
    packages = read_distributions(metadata["paths"], metadata["prefix"], shelf)
    record["packages"] = [asdict(package) for package in packages]
    with tempfile.TemporaryDirectory(prefix="cputune-") as folder:
        Path(folder, RECORD_FILE).write_text(json.dumps(record), encoding="utf-8")
        host = FarHost(folder)
        facts = probe(host)
    python = Interpreter(
        executable=str(content["executable"]),
        version=facts.python or "",
        prefix=str(metadata["prefix"]),
        paths=tuple(map(str, metadata["paths"])),
    )
    return Probed(
        node=answer.node,
        seconds=answer.seconds,
        host=host,
        facts=replace(facts, interpreter=python),
        python=python.executable,
        content={path: text and str(text) for path, text in content["content"].items()},
        names=record_of(dict[str, str | tuple[str, ...]], content["names"]),
        own=content["own"] and str(content["own"]),
    )


@dataclass(frozen=True, slots=True)
class _Shelf(Shelf):
    """The metadata of packages that a host reported."""

    listed: Mapping[str, Sequence[str]]
    heads: Mapping[str, list[str]]
    ages: Mapping[str, float]

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(self.listed.get(path, ()))

    def head(self, path: str) -> list[str]:
        return self.heads.get(path, [])

    def age(self, path: str) -> float:
        return self.ages.get(path, 0.0)
