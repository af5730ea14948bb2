"""Another machine behind the ``Host`` door: ``cputune.probe(FarHost(line))`` looks at it.

Each question to a host far away takes a while, so what every probe reads is fetched in one answer
first. A path that this answer tells of, or whose directory it lists, is not asked for again.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import time
from collections.abc import Mapping
from typing import Any

from cputune import cpulist
from cputune.errors import UsageError
from cputune.host import Command, Completed, Distribution, Host, Process
from cputune.host.interpreter import ANSWER_SECONDS, ELSEWHERE, QUESTION
from cputune.host.live import SHORTEST_LOOK_SECONDS
from cputune.host.metadata import read_distributions
from cputune.nodes.far_metadata import FarMetadata
from cputune.nodes.line import Line

_CPU, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"

READ = (
    "/proc/cpuinfo", "/proc/meminfo", "/proc/loadavg", "/proc/stat", "/proc/version",
    "/proc/pressure/*", "/proc/self/status", "/proc/self/stat", "/proc/self/limits",
    "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/osrelease", "/proc/sys/kernel/numa_balancing",
    "/sys/class/net/*/operstate", "/sys/class/net/*/speed", "/proc/net/route",
    "/proc/net/fib_trie", "/proc/net/if_inet6", "/proc/net/ipv6_route",
    "/etc/hosts", "/etc/os-release", "/sys/kernel/mm/transparent_hugepage/enabled",
    f"{_CPU}/online", f"{_CPU}/offline", f"{_CPU}/present", f"{_CPU}/smt/control",
    f"{_CPU}/cpu[0-9]*/online", f"{_CPU}/cpu[0-9]*/cpu_capacity",
    f"{_CPU}/cpu[0-9]*/topology/*_list", f"{_CPU}/cpu[0-9]*/topology/*_id",
    f"{_CPU}/cpu[0-9]*/cpufreq/cpuinfo_max_freq", f"{_CPU}/cpu[0-9]*/acpi_cppc/nominal_perf",
    f"{_CPU}/cpufreq/boost", f"{_CPU}/cpufreq/policy*/scaling_governor",
    f"{_CPU}/cpufreq/policy*/scaling_driver", f"{_CPU}/cpufreq/policy*/affected_cpus",
    f"{_CPU}/cpufreq/policy*/energy_performance_preference", f"{_CPU}/intel_pstate/no_turbo",
    f"{_NODE}/online", f"{_NODE}/has_*", f"{_NODE}/node[0-9]*/cpulist",
    f"{_NODE}/node[0-9]*/meminfo",
)  # fmt: skip
"""Files that the probe reads on most machines, as patterns of glob."""

LISTED = (
    "/", "/dev", "/etc", "/proc/self", "/proc/driver", "/proc/pressure", "/run", "/sys/class/net",
    "/sys/devices", _CPU, f"{_CPU}/cpu[0-9]*", f"{_CPU}/cpu[0-9]*/topology",
    f"{_CPU}/cpu[0-9]*/cpufreq", f"{_CPU}/cpufreq", f"{_CPU}/cpufreq/policy*",
    "/sys/devices/system", _NODE, f"{_NODE}/node[0-9]*", "/sys/kernel/mm", "/sys/fs/cgroup",
)  # fmt: skip
"""Directories that tell what is not there either."""


class FarHost(Host):
    """The machine at the other end of a line; ``python`` is the interpreter that trains there.

    Without it that which runs the agent: the path of ours, where there is one. Raises Unreachable,
    and UsageError where ``python`` is none.
    """

    live = True

    def __init__(self, line: Line, python: str | None = None) -> None:
        self._line = line
        told, itself, trees = line.many(
            [
                {"do": "interpreter"},
                {"do": "process_itself"},
                {"do": "trees", "read_these": READ, "list_these": LISTED},
            ]
        )
        for answer in (told, itself, trees):
            if isinstance(answer, Exception):
                raise answer
        self.itself: Mapping[str, Any] = itself
        self._texts: dict[str, str] = trees["texts"]
        self._errors: dict[str, int] = trees["errors"]
        self._names: dict[str, tuple[str, ...]] = {k: tuple(v) for k, v in trees["names"].items()}
        self._there: dict[str, bool] = {}
        self._python: Mapping[str, Any] = told if python is None else self._other(python)
        self.executable = str(self._python["executable"])
        self._is_other = python is not None
        self._looked: tuple[float, dict[tuple[int, int], float]] | None = None

    def read_text(self, path: str) -> str:
        if path in self._texts:
            return self._texts[path]
        if path in self._errors:
            raise OSError(self._errors[path], os.strerror(self._errors[path]), path)
        self._refuse_absent(path)
        try:
            self._texts[path] = str(self._line.ask("read", path=path))
        except OSError as error:
            self._errors[path] = error.errno or errno.EIO
            raise
        return self._texts[path]

    def list_dir(self, path: str) -> tuple[str, ...]:
        if path not in self._names:
            self._refuse_absent(path)
            self._names[path] = tuple(self._line.ask("names", path=path))
        return self._names[path]

    def exists(self, path: str) -> bool:
        if path in self._texts or path in self._names:
            return True
        if path not in self._there:
            absent = self._is_absent(path)
            self._there[path] = not absent and bool(self._line.ask("exists", path=path))
        return self._there[path]

    def is_readable_file(self, path: str) -> bool:
        return not self._is_absent(path) and bool(self._line.ask("is_readable_file", path=path))

    def knows(self, path: str) -> bool:
        return True

    def real_path(self, path: str) -> str:
        return str(self._line.ask("real_path", path=path))

    def environment(self) -> Mapping[str, str]:
        return dict(self.itself["environment"])

    def affinity(self) -> tuple[int, ...] | None:
        return tuple(self.itself["affinity"])

    def which(self, program: str) -> str | None:
        beside = posixpath.join(self._python["prefix"], "bin")
        places = (beside, None) if self._is_other else (None, beside)  # as LiveHost
        found = self._line.ask("which", program=program, places=places)
        return None if found is None else str(found)

    def run(self, command: Command) -> Completed:
        return self._line.run(command)

    def distributions(self) -> tuple[Distribution, ...]:
        shelf = FarMetadata(self._line, tuple(self._python["paths"]))
        return read_distributions(self._python["paths"], self._python["prefix"], shelf)

    def python_version(self) -> str | None:
        return str(self._python["version"])

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        try:
            a, b, c, d = self._line.ask("cpuid", leaf=leaf, subleaf=subleaf)
        except OSError:
            return None
        return a, b, c, d

    def processes(self) -> tuple[Process, ...] | None:
        if self._looked is not None:
            time.sleep(SHORTEST_LOOK_SECONDS)
        told = self._line.ask("processes")
        before, self._looked = self._looked, (told["seconds"], {})
        found = []
        for pid, name, used, started, cpus in told["processes"]:
            share = None
            if before is not None and (pid, started) in before[1]:
                passed = max(1e-3, told["seconds"] - before[0])
                share = max(0.0, used - before[1][pid, started]) / passed
            self._looked[1][pid, started] = used
            found.append(Process(pid=pid, name=name, cpus=cpulist.parse(cpus), cpu_share=share))
        return tuple(found)

    def disk_bytes(self, path: str) -> int | None:
        return self._disk(path, 0)

    def disk_free_bytes(self, path: str) -> int | None:
        return self._disk(path, 1)

    def resource_limit(self, name: str) -> int | None:
        limit = self._line.ask("limit", name=name)
        return None if limit is None else int(limit)

    def _disk(self, path: str, which: int) -> int | None:
        try:
            return int(self._line.ask("disk", path=path)[which])
        except OSError:
            return None

    def _is_absent(self, path: str) -> bool:
        """Whether a listing that is here shows that a path is not there."""
        while path not in ("", "/"):
            above, name = posixpath.split(path.rstrip("/"))
            if above in self._names:
                return name not in self._names[above]
            path = above
        return False

    def _refuse_absent(self, path: str) -> None:
        if self._is_absent(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _other(self, python: str) -> Mapping[str, Any]:
        """A Python over there by its path, as ``cputune.host.interpreter`` asks one here."""
        name = self._line.node.name
        ask = Command(argv=(python, "-c", ELSEWHERE + QUESTION), timeout_seconds=ANSWER_SECONDS)
        try:
            done = self._line.run(ask)
            version, prefix, paths = json.loads(done.stdout)
        except OSError as error:
            said = error.strerror or str(error)
        except (ValueError, TypeError):
            said = (done.stderr.strip().splitlines() or ["it does not answer as Python does"])[-1]
        else:
            told = {"version": version, "prefix": prefix, "paths": paths, "executable": python}
            return {**told, "version": str(version)}
        raise UsageError(
            f"{python} is no Python that can be asked on {name}: {said[:200]}",
            hint="--python names one that lies at the same path on every host",
        )
