"""``doctor --record DIR``: what a replay needs, and nothing that names person or machine.

The probe looks at the machine through a host that notes every question and its answer.
The answers are the recording, so that it holds exactly what a replay asks for.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar, cast

from cputune import cpulist
from cputune.host import (
    Command,
    Completed,
    Host,
    Process,
    RecordedHost,
    write_tree,
)
from cputune.host.recorded import RECORD_FILE, RECORD_SCHEMA
from cputune.probing import probe
from cputune.probing.installed import is_looked_for
from cputune.probing.network import ADDRESSED, LINKS
from cputune.probing.scrub import HOST_NAME, Scrubber, read_environment
from cputune.probing.settings import OS_RELEASE, OS_RELEASE_LINE

_CGROUPS = "/sys/fs/cgroup/"
_TREES = ("/proc/", "/sys/")
_NUMBERED = re.compile(r"(cpu|node|policy|memory_tier)\d+")


def record(host: Host, directory: str | os.PathLike[str]) -> RecordedHost:
    """Record a machine at a new directory and return the host that replays it.

    Host names, addresses, serial numbers, ids of containers, users and their homes are
    replaced by stand-ins; the document of the replay is the document of the recording.
    Raises UsageError where something lies there already, CannotError where it cannot
    be written.
    """
    noted = _Noting(host)
    facts = probe(cast(Host, noted))
    told_of = {p.pid for p in facts.bound_processes} | {p.pid for p in facts.load.busy}
    affinity = host.affinity()
    scrub = Scrubber.of(host)
    texts = {
        _place(path, scrub): _clean(path, text, scrub)
        for path, text in sorted(noted.texts.items())
        if path not in ADDRESSED
    }
    document: dict[str, object] = {
        "schema": RECORD_SCHEMA,
        "python": facts.python,
        "affinity": None if affinity is None else cpulist.render(affinity),
        "environment": read_environment(host.environment(), scrub),
        "packages": [
            {**asdict(package), "location": package.location and scrub.text(package.location)}
            for package in host.distributions()
        ],
        "launchers": _launchers(noted, scrub),
        "processes": None
        if noted.seen is None
        else [_process(p, scrub) for p in noted.seen if p.pid in told_of],
        "disk_bytes": {path: size for path, (size, _) in noted.disks.items()},
        "disk_free_bytes": {path: free for path, (_, free) in noted.disks.items()},
        "cpuid": noted.registers,
        "unreadable": {_place(path, scrub): code for path, code in noted.errors.items()},
        "files": {path: text for path, text in texts.items() if not path.startswith(_TREES)},
        "directories": {
            scrub.text(directory): _names(directory, names, scrub)
            for directory, names in sorted(noted.directories.items())
        },
        "real_paths": {scrub.text(k): scrub.text(v) for k, v in noted.real_paths.items()},
        "paths": {
            _place(path, scrub, file=False): there for path, there in sorted(noted.paths.items())
        },
    }
    files = {path[1:]: text for path, text in texts.items() if path.startswith(_TREES)}
    files[RECORD_FILE] = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    write_tree(Path(directory), files)
    return RecordedHost(directory)


def _place(path: str, scrub: Scrubber, *, file: bool = True) -> str:
    """Where a path of the machine lies in the recording: cgroups without their ids."""
    if path.startswith(_CGROUPS):
        parts = path.removeprefix(_CGROUPS).split("/")
        names = [*map(scrub.group, parts[:-1]), parts[-1]] if file else map(scrub.group, parts)
        return _CGROUPS + "/".join(names)
    if path.startswith(f"{LINKS}/"):
        name, _, rest = path.removeprefix(f"{LINKS}/").partition("/")
        return f"{LINKS}/{scrub.interface(name)}/{rest}"
    return scrub.text(path)


def _names(directory: str, names: tuple[str, ...], scrub: Scrubber) -> list[str]:
    """Of the names in a directory those that a replay looks for."""
    if directory == LINKS:
        return [scrub.interface(name) for name in names]
    numbered = directory.startswith(_TREES)
    return [n for n in names if (_NUMBERED.fullmatch(n) if numbered else is_looked_for(n))]


def _clean(path: str, text: str, scrub: Scrubber) -> str:
    """The text of a file without what names a person or a machine, and is not read anyway."""
    if path == "/proc/cpuinfo":
        return re.sub(r"(?mi)^serial\b.*\n?", "", text)
    if path == "/proc/sys/kernel/hostname":
        return HOST_NAME + "\n"
    if path == "/etc/hosts":
        rows = (line.partition("#")[0].split() for line in scrub.value(text).splitlines())
        return "".join(f"{row[0]} {HOST_NAME}\n" for row in rows if HOST_NAME in row[1:])
    if path in OS_RELEASE:
        return "".join(f"{line[0]}\n" for line in OS_RELEASE_LINE.finditer(text))
    if path == "/proc/stat":
        return text.partition("\n")[0] + "\n"
    if path == "/proc/self/status":
        return "".join(re.findall(r"(?m)^(?:CapEff|Cpus_allowed_list):.*\n", text))
    if path == "/proc/self/cgroup":
        lines = (line.rpartition(":") for line in text.splitlines())
        return "".join(f"{head}:{scrub.group_path(group)}\n" for head, _, group in lines)
    if path == "/proc/self/mountinfo":
        return "".join(_mount_line(line, scrub) for line in text.splitlines())
    return scrub.text(text)


def _mount_line(line: str, scrub: Scrubber) -> str:
    """One line of mountinfo; empty for mounts that say nothing about limits or containers."""
    before, _, after = line.partition(" - ")
    left, right = before.split(), after.split()
    if len(left) < 6 or len(right) < 3:
        return ""
    kind, options = right[0], right[2]
    if kind in ("cgroup", "cgroup2"):
        left[3] = scrub.group_path(left[3])
        left[4] = _place(left[4], scrub, file=False)
    elif left[4] == "/":
        options = (
            ",".join(re.findall(r"/var/lib/(?:docker|containerd|containers)/", options)) or "rw"
        )
    else:
        return ""
    return f"{' '.join(left[:6])} - {kind} none {options}\n"


def _launchers(noted: _Noting, scrub: Scrubber) -> dict[str, dict[str, object]]:
    launchers: dict[str, dict[str, object]] = {}
    for name, path in noted.programs.items():
        if path is None:
            continue
        launchers[name] = {"path": scrub.text(path)}
        question = (path, "--version")
        if question in noted.refusals:
            launchers[name]["error"] = noted.refusals[question]
        answer = noted.answers.get(question)
        if answer is not None:
            launchers[name]["answer"] = {
                "returncode": answer.returncode,
                "stdout": scrub.value(answer.stdout),
                "stderr": scrub.value(answer.stderr),
            }
    return launchers


def _process(process: Process, scrub: Scrubber) -> dict[str, object]:
    return {
        "pid": process.pid,
        "name": scrub.value(process.name),
        "cpus": cpulist.render(process.cpus),
        "cpu_share": process.cpu_share,
    }


Key = TypeVar("Key")
Told = TypeVar("Told")


def _noted(notes: dict[Key, Told], key: Key, answer: Told) -> Told:
    notes[key] = answer
    return answer


class _Noting:
    """A host that notes the answers to those questions of which there are many."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.texts: dict[str, str] = {}
        self.errors: dict[str, int] = {}
        self.directories: dict[str, tuple[str, ...]] = {}
        self.paths: dict[str, bool] = {}
        self.real_paths: dict[str, str] = {}
        self.programs: dict[str, str | None] = {}
        self.answers: dict[tuple[str, ...], Completed] = {}
        self.refusals: dict[tuple[str, ...], int] = {}
        self.seen: tuple[Process, ...] | None = None
        self.disks: dict[str, tuple[int | None, int | None]] = {}
        self.registers: dict[str, tuple[int, int, int, int] | None] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)

    def read_text(self, path: str) -> str:
        try:
            return _noted(self.texts, path, self._host.read_text(path))
        except OSError as error:
            if error.errno not in (None, errno.ENOENT):
                self.errors[path] = error.errno
            raise

    def list_dir(self, path: str) -> tuple[str, ...]:
        return _noted(self.directories, path, self._host.list_dir(path))

    def exists(self, path: str) -> bool:
        found = self._host.exists(path)
        return _noted(self.paths, path, found) if self._host.knows(path) else found

    def real_path(self, path: str) -> str:
        return _noted(self.real_paths, path, self._host.real_path(path))

    def which(self, program: str) -> str | None:
        return _noted(self.programs, program, self._host.which(program))

    def run(self, command: Command) -> Completed:
        try:
            return _noted(self.answers, command.argv, self._host.run(command))
        except OSError as error:
            self.refusals[command.argv] = error.errno or 0
            raise

    def cpuid(self, leaf: int, subleaf: int) -> tuple[int, int, int, int] | None:
        return _noted(self.registers, f"{leaf}.{subleaf}", self._host.cpuid(leaf, subleaf))

    def processes(self) -> tuple[Process, ...] | None:
        self.seen = self._host.processes()
        return self.seen

    def disk_bytes(self, path: str) -> tuple[int | None, int | None]:
        return _noted(self.disks, path, self._host.disk_bytes(path))
