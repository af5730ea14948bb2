"""``doctor --record DIR``: records what a replay needs, without names of people and machines.

The probe examines the machine through a host that records each question and its answer, so the
recording has exactly what a replay asks for.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from cputune.host import Host, Process, RecordedHost, write_tree
from cputune.host.probing import probe
from cputune.host.probing.installed import is_looked_for
from cputune.host.probing.network import ADDRESSED, LINKS
from cputune.host.probing.restraints import NICE, POLICY, STAT
from cputune.host.probing.scrub import HOST_NAME, Scrubber, read_environment
from cputune.host.probing.settings import OS_RELEASE, OS_RELEASE_LINE
from cputune.host.recorded import RECORD_FILE, RECORD_SCHEMA
from cputune.text import cpulist

_CGROUPS = "/sys/fs/cgroup/"
_TREES = ("/proc/", "/sys/")
_NUMBERED = re.compile(r"(cpu|node|policy|memory_tier)\d+")


def record(host: Host, directory: str | os.PathLike[str]) -> RecordedHost:
    """Record a machine in a new directory, and return the host that replays it.

    Placeholders replace host names, addresses, serial numbers, ids of containers, users and their
    homes. Raises UsageError if the directory is not empty, CannotError if it cannot be written.
    """
    noted = _Noting(host)
    facts = probe(cast(Host, noted))
    answers = noted.answers
    affinity, busy = host.affinity(), {process.pid for process in facts.load.busy}
    scrub = Scrubber.of(host)
    texts, files = _texts(answers["read_text"], scrub)
    unreadable = {}
    for path, code in noted.refused["read_text"].items():
        if code != errno.ENOENT:
            unreadable[_place(path, scrub)] = code
    packages = []
    for package in host.distributions():
        location = package.location and scrub.text(package.location)
        packages.append(asdict(package) | {"location": location})
    paths = {}
    for path, there in sorted(answers["exists"].items()):
        if host.knows(path):
            paths[_place(path, scrub, file=False)] = there
    sizes, free = {}, {}
    for path, (size, free_bytes) in answers["disk_bytes"].items():
        sizes[path], free[path] = size, free_bytes
    directories = {}
    for folder, names in sorted(answers["list_dir"].items()):
        directories[scrub.text(folder)] = _names(folder, names, scrub)
    document: dict[str, object] = {
        "schema": RECORD_SCHEMA,
        "python": facts.python,
        "affinity": None if affinity is None else cpulist.render(affinity),
        "environment": read_environment(host.environment(), scrub),
        "packages": packages,
        "launchers": _launchers(noted, scrub),
        "processes": _processes(answers["processes"][None], busy, scrub),
        "disk_bytes": sizes,
        "disk_free_bytes": free,
        "surroundings": scrub.document(
            json.loads(json.dumps(asdict(answers["surroundings"][None])))
        ),
        "cpuid": {f"{leaf}.{sub}": answer for (leaf, sub), answer in answers["cpuid"].items()},
        "unreadable": unreadable,
        "files": texts,
        "directories": directories,
        "real_paths": {scrub.text(k): scrub.text(v) for k, v in answers["real_path"].items()},
        "paths": paths,
    }
    files[RECORD_FILE] = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    write_tree(Path(directory), files)
    return RecordedHost(directory)


def _texts(read: Mapping[str, str], scrub: Scrubber) -> tuple[dict[str, str], dict[str, str]]:
    """The texts that the document contains, and those that are files of the recording."""
    texts, files = {}, {}
    for path, text in sorted(read.items()):
        if path in ADDRESSED:
            continue
        place = _place(path, scrub)
        if place.startswith(_TREES):
            files[place[1:]] = _clean(path, text, scrub)
        else:
            texts[place] = _clean(path, text, scrub)
    return texts, files


def _processes(
    visible: tuple[Process, ...] | None, busy: set[int], scrub: Scrubber
) -> list[dict[str, object]] | None:
    """The busy ones of the processes. None if processes cannot be seen."""
    if visible is None:
        return None
    processes = []
    for process in visible:
        if process.pid in busy:
            processes.append(asdict(process) | {"name": scrub.value(process.name)})
    return processes


def _place(path: str, scrub: Scrubber, *, file: bool = True) -> str:
    """The path under which a file is recorded: cgroups and interfaces without their ids."""
    if path.startswith(_CGROUPS):
        parts = path.removeprefix(_CGROUPS).split("/")
        names = [scrub.group(part) for part in parts]
        if file:
            names[-1] = parts[-1]
        return _CGROUPS + "/".join(names)
    if path.startswith(f"{LINKS}/"):
        name, _, rest = path.removeprefix(f"{LINKS}/").partition("/")
        return f"{LINKS}/{scrub.interface(name)}/{rest}"
    return scrub.text(path)


def _names(directory: str, names: tuple[str, ...], scrub: Scrubber) -> list[str]:
    if directory == LINKS:
        return [scrub.interface(name) for name in names]
    looked_for: Callable[[str], object] = is_looked_for
    if directory.startswith(_TREES):
        looked_for = _NUMBERED.fullmatch
    return [name for name in names if looked_for(name)]


def _clean(path: str, text: str, scrub: Scrubber) -> str:
    if path == "/proc/cpuinfo":
        return re.sub(r"(?mi)^serial\b.*\n?", "", text)
    if path == "/proc/sys/kernel/hostname":
        return HOST_NAME + "\n"
    if path == "/etc/hosts":
        return _own_addresses(scrub.value(text))
    if path in OS_RELEASE:
        return "".join(f"{line[0]}\n" for line in OS_RELEASE_LINE.finditer(text))
    if path == STAT:
        return _priority_alone(text)
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


def _own_addresses(hosts: str) -> str:
    """/etc/hosts with only the lines that name this machine."""
    lines = []
    for line in hosts.splitlines():
        row = line.partition("#")[0].split()
        if HOST_NAME in row[1:]:
            lines.append(f"{row[0]} {HOST_NAME}\n")
    return "".join(lines)


def _priority_alone(text: str) -> str:
    """/proc/self/stat with only the nice value and the policy."""
    parts = text.rpartition(")")[2].split()
    kept = []
    for number, part in enumerate(parts):
        if number not in (NICE - 2, POLICY - 2):
            part = "0"
        kept.append(part)
    return f"0 (python) {' '.join(kept)}\n"


def _mount_line(line: str, scrub: Scrubber) -> str:
    """One line of mountinfo. Empty for mounts that do not concern limits or containers."""
    before, _, after = line.partition(" - ")
    mount, filesystem = before.split(), after.split()
    if len(mount) < 6 or len(filesystem) < 3:
        return ""
    kind, options = filesystem[0], filesystem[2]
    if kind in ("cgroup", "cgroup2"):
        mount[3] = scrub.group_path(mount[3])
        mount[4] = _place(mount[4], scrub, file=False)
    elif mount[4] == "/":
        options = (
            ",".join(re.findall(r"/var/lib/(?:docker|containerd|containers)/", options)) or "rw"
        )
    else:
        return ""
    return f"{' '.join(mount[:6])} - {kind} none {options}\n"


def _launchers(noted: _Noting, scrub: Scrubber) -> dict[str, dict[str, object]]:
    launchers: dict[str, dict[str, object]] = {}
    for name, path in noted.answers["which"].items():
        if path is not None:
            launchers[name] = {"path": scrub.text(path)}
    for launcher in launchers.values():
        for question, code in noted.refused["run"].items():
            if scrub.text(question.argv[0]) == launcher["path"]:
                launcher["error"] = code
        for question, answer in noted.answers["run"].items():
            if scrub.text(question.argv[0]) == launcher["path"]:
                launcher["answer"] = {
                    "returncode": answer.returncode,
                    "stdout": scrub.value(answer.stdout),
                    "stderr": scrub.value(answer.stderr),
                }
    return launchers


class _Noting:
    """A host that records the questions and answers of another one.

    ``answers`` and the error numbers in ``refused`` are by method and by its argument (a tuple if
    there are several, None without one).
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.answers: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        self.refused: defaultdict[str, dict[Any, int]] = defaultdict(dict)

    def __getattr__(self, name: str) -> object:
        method = getattr(self._host, name)
        if not callable(method):
            return method

        def noted(*arguments: object) -> object:
            key = arguments if len(arguments) > 1 else next(iter(arguments), None)
            try:
                self.answers[name][key] = answer = method(*arguments)
            except OSError as error:
                self.refused[name][key] = error.errno or 0
                raise
            return answer

        return noted
