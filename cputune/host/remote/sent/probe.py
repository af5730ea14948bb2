"""Probes this machine, and prints the ``record.json`` that ``RecordedHost`` replays.

The question has glob patterns (``read``, ``list``), paths and names of programs. The answer has a
``record`` and what is not part of one: ``packages`` as names and headers of their metadata, the
Python, addresses of names, and the ``content`` of files to compare.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from typing import Any

# Largest file that is read. A read of 4 MiB at once below /proc/sys fails with ENOMEM.
PIECE_BYTES, MOST_PIECES = 1 << 16, 256

# Seconds. A resolver asks twice, five seconds each (resolv.conf(5)).
NAMES_SECONDS = 12.0

# Bytes of a file that are compared, besides its size. Hashing whole weights would take too
# long.
HASHED_BYTES = 4 << 20

GROUP_FILES = re.compile(
    r"(cpu|cpuset|memory|pids)\.(cfs|max|stat|limit|cpus|effective|usage|curr).*"
)


def read(path: str) -> str:
    """The text of a regular file."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(22, "not a regular file", path)
    with open(path, "rb", buffering=0) as file:
        pieces = iter(lambda: file.read(PIECE_BYTES), b"")
        return b"".join(itertools.islice(pieces, MOST_PIECES)).decode("utf-8", "replace")


def quiet(look: Any, *arguments: Any) -> Any:
    """The result of a function, or None if it raises."""
    try:
        return look(*arguments)
    except (OSError, ValueError):
        return None


def matching(patterns: list[str]) -> list[str]:
    paths = []
    for pattern in patterns:
        paths += glob.glob(pattern)
    return paths


def names_like(pattern: re.Pattern[str], folder: str) -> list[str]:
    return [name for name in quiet(os.listdir, folder) or () if pattern.fullmatch(name)]


def groups() -> list[str]:
    """The directories of our cgroups, as far up as they can be seen."""
    paths = [line.split(":", 2)[-1] for line in read("/proc/self/cgroup").splitlines()]
    directories = {}
    for line in read("/proc/self/mountinfo").splitlines():
        fields, _, kind = line.partition(" - ")
        root, point = fields.split()[3:5]
        if not kind.startswith(("cgroup", "cpuset")):
            continue
        for path in paths:
            below = "."
            if path.startswith(root):
                below = os.path.relpath(path, root)
            place = os.path.normpath(os.path.join(point, below))
            while place.startswith(point):
                directories[place] = 1
                place = os.path.dirname(place)
    return list(directories)


def record(request: dict[str, Any]) -> dict[str, Any]:
    """The recording."""
    files, unreadable, directories = {}, {}, {}
    paths = {path: os.path.exists(path) for path in request["paths"]}
    wanted = matching(request["read"])
    for group in quiet(groups) or ():
        names = quiet(os.listdir, group) or []
        wanted += [os.path.join(group, name) for name in names if GROUP_FILES.match(name)]
        paths[group] = bool(names)
    sites = list(filter(os.path.isdir, sys.path))
    for site in sites:
        wanted.append(os.path.join(site, "torch", "version.py"))
    for path in wanted:
        try:
            files[path] = read(path)
        except OSError as error:
            if error.errno != 2:  # a file that does not exist is not recorded
                unreadable[path] = error.errno
    for path in matching(request["list"]):
        directories[path] = quiet(os.listdir, path) or []
    variables, without = os.environ, tuple(request["without"])
    real = find_libraries(request, sites, directories)
    for entry in re.split(r"[:\s]+", variables.get("LD_PRELOAD", "")):
        if entry.startswith("/"):
            paths[entry] = os.path.isfile(entry) and os.access(entry, os.R_OK)
    sizes, free = disk_bytes(request["disks"])
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "affinity": ranges(sorted(os.sched_getaffinity(0))),
        "environment": {n: v for n, v in variables.items() if not n.startswith(without)},
        "launchers": launchers(request),
        "processes": processes(request["look_seconds"]),
        "disk_bytes": sizes,
        "disk_free_bytes": free,
        "cpuid": registers(request["cpuid"]),
        "unreadable": unreadable,
        "files": files,
        "directories": directories,
        "real_paths": real,
        "paths": paths,
    }


def disk_bytes(paths: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The size of each file system, and its free bytes."""
    sizes, free = {}, {}
    for path in paths:
        disk = quiet(os.statvfs, path)
        if disk:
            sizes[path] = disk.f_frsize * disk.f_blocks
            free[path] = disk.f_frsize * disk.f_bavail
    return sizes, free


def find_libraries(
    request: dict[str, Any], sites: list[str], directories: dict[str, list[str]]
) -> dict[str, str]:
    """The real paths of the libraries, in the folders of the loader and of packages.

    The names in each folder are added to ``directories``.
    """
    libraries, real = re.compile(request["libraries"]), {}
    variables = os.environ
    places = list(filter(None, variables.get("LD_LIBRARY_PATH", "").split(":")))
    places += request["places"]
    for prefix in (sys.prefix, variables.get("VIRTUAL_ENV"), variables.get("CONDA_PREFIX")):
        if prefix:
            places.append(os.path.join(prefix, "lib"))
    places += [path.partition("/lib/python")[0] + "/lib" for path in sites]
    for site in sites:
        places.append(site)
        places += [os.path.join(site, name) for name in request["inside"]]
        for name in names_like(libraries, site):
            places += [os.path.join(site, name), os.path.join(site, name, "lib")]
    for place in places:
        names = names_like(libraries, place)
        if os.path.isdir(place):
            directories.setdefault(place, names)
        for name in names:
            real[place + "/" + name] = os.path.realpath(os.path.join(place, name))
    return real


def registers(leaves: list[str]) -> dict[str, list[int]]:
    """The values of each leaf of CPUID that can be read."""
    values = {}
    for leaf in leaves:
        four = quiet(cpuid, leaf)
        if four:
            values[leaf] = four
    return values


def cpuid(leaf: str) -> list[int]:
    """The four registers of ``LEAF.SUBLEAF``. Only root may read the device."""
    number, sub = map(int, leaf.split("."))
    # The lower half of the offset is the leaf, the upper half the subleaf (cpuid(4)).
    with open("/dev/cpu/0/cpuid", "rb", buffering=0) as device:
        return list(struct.unpack("<4I", os.pread(device.fileno(), 16, number | sub << 32)))


def launchers(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The programs that exist, each with its path and what it answers."""
    answers = {}
    for name in request["programs"]:
        answer = launcher(name, request)
        if answer["path"]:
            answers[name] = answer
    return answers


def launcher(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """The path of a program, on PATH or beside this Python, and the version output of an MPI."""
    path = shutil.which(name) or shutil.which(name, path=os.path.join(sys.prefix, "bin"))
    launcher: dict[str, Any] = {"path": path}
    if path is not None and name in request["versions"]:
        argv, seconds = (path, "--version"), request["version_seconds"]
        code, texts = None, [b"", b""]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
            )
            code, texts = done.returncode, [done.stdout, done.stderr]
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            return {"path": path, "error": error.errno}
        out, err = (text.decode("utf-8", "replace") for text in texts)
        launcher["answer"] = {"returncode": code, "stdout": out, "stderr": err}
    return launcher


def processes(seconds: float) -> list[dict[str, Any]]:
    """The other processes except kernel threads, and the CPU that they use meanwhile."""
    before, started = used(), time.monotonic()
    time.sleep(seconds)
    after, passed = used(), time.monotonic() - started
    others = []
    for key, (name, ticks) in after.items():
        process: dict[str, Any] = {"pid": key[0], "name": name}
        if key in before:
            share = (ticks - before[key][1]) / os.sysconf("SC_CLK_TCK") / passed
            process["cpu_share"] = max(0.0, share)
        others.append(process)
    return others


def used() -> dict[tuple[int, str], tuple[str, int]]:
    """Name and CPU ticks by pid and start time. Fields of proc(5) after the name in parentheses."""
    times = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        text = quiet(read, f"/proc/{name}/stat")
        if not text:
            continue
        fields = text.rpartition(")")[2].split()
        if fields[20] != "0":  # a kernel thread has no virtual memory
            comm = text.partition("(")[2].rpartition(")")[0]
            times[int(name), fields[19]] = (comm, int(fields[11]) + int(fields[12]))
    return times


def ranges(numbers: list[int]) -> str:
    """A kernel list: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def metadata(judged: str) -> dict[str, Any]:
    """Names, headers and ages of the metadata of the packages on our path."""
    names, heads, ages = {}, {}, {}
    conda = os.path.join(sys.prefix, "conda-meta")
    for place in [*sys.path, conda]:
        entries = []
        if place:
            entries = sorted(quiet(os.listdir, place) or ())
        ends: tuple[str, ...] = (".dist-info", ".egg-info")
        if place == conda:
            ends += (".json",)
        names[place] = [entry for entry in entries if entry.endswith(ends)]
        for entry in names[place]:
            path = os.path.join(place, entry)
            ages[path] = quiet(os.path.getmtime, path) or 0.0
            plain = re.sub(r"[-_.]+", "-", entry.partition("-")[0].partition(".")[0]).lower()
            files = ["INSTALLER"]
            if re.fullmatch(judged, plain):
                files += ["METADATA", "PKG-INFO"]
            for name in files:
                text = quiet(head, os.path.join(path, name))
                if text:
                    heads[os.path.join(path, name)] = text
    return {"names": names, "heads": heads, "ages": ages, "paths": sys.path, "prefix": sys.prefix}


def head(path: str) -> list[str]:
    """The lines of a text file before its first empty one."""
    lines: list[str] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip() or len(lines) >= 2000:
                break
            lines.append(line.rstrip("\n"))
    return lines


def content(path: str) -> str:
    """What a path contains, for a comparison: size and SHA-256 of a file, else its kind."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    if not stat.S_ISREG(status.st_mode):
        return "other"
    with open(path, "rb") as file:
        return f"{status.st_size} {hashlib.sha256(file.read(HASHED_BYTES)).hexdigest()}"


def resolved(names: list[str]) -> dict[str, Any]:
    """The addresses of each name, or the reason why it has none. All are resolved at the same
    time.
    """
    answers: dict[str, Any] = dict.fromkeys(names, "no answer")

    def look(name: str) -> None:
        try:
            addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            answers[name] = list(dict.fromkeys(str(entry[4][0]) for entry in addresses))
        except (OSError, UnicodeError) as error:
            answers[name] = getattr(error, "strerror", None) or str(error)

    looking = [threading.Thread(target=look, args=(name,), daemon=True) for name in names]
    until = time.monotonic() + NAMES_SECONDS
    for process in looking:
        process.start()
    for process in looking:
        process.join(max(0.0, until - time.monotonic()))
    return dict(answers)


def own_address(name: str) -> Any:
    """The address that gloo listens on by default: the first of our own name that can be bound.

    ``ProcessGroupGloo::createDefaultDevice`` of torch.
    """
    addresses = resolved([name])[name]
    if not isinstance(addresses, list):
        return None
    for address in addresses:
        family = socket.AF_INET
        if ":" in address:
            family = socket.AF_INET6
        tried = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.closing(tried), contextlib.suppress(OSError):
            tried.bind((address, 0))
            return address
    return None


def main() -> None:
    """Print the answer as a line of JSON."""
    request = json.loads(sys.argv[1])
    address = None
    if request["names"]:
        address = own_address(socket.gethostname())
    answer = {
        "record": record(request),
        "metadata": metadata(request["judged"]),
        "executable": sys.executable,
        "content": {path: quiet(content, path) for path in request["content"]},
        "names": resolved(request["names"]),
        "own": address,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
