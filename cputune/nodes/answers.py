"""What the far side tells of its machine: files, folders, programs, limits, processes.

Each function takes and returns plain JSON values, and looks no further than it is asked.
OSError travels back to who asked, with its number.

This file is sent to other hosts (see ``cputune.nodes.agent``): Python 3.7, the standard
library, and nothing of ours.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import resource
import shutil
import stat
import struct
import sys
import time
from typing import Any

READ_LIMIT_BYTES = 16 << 20
"""As in ``cputune.host.files``: no file that is looked at is longer."""

PIECE_BYTES = 1 << 16
"""The kernel answers ENOMEM to a read of 4 MiB below /proc/sys, however short the file."""

HASHED_BYTES = 4 << 20
"""Of a longer file of a launch only so much is compared, and its size: nobody waits for weights."""


def read(path: str) -> str:
    """The text of a regular file; undecodable bytes become U+FFFD."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    content = bytearray()
    with open(path, "rb", buffering=0) as file:
        while len(content) < READ_LIMIT_BYTES:
            piece = file.read(PIECE_BYTES)
            if not piece:
                break
            content += piece
    return bytes(content[:READ_LIMIT_BYTES]).decode("utf-8", "replace")


def names(path: str) -> list[str]:
    """The names in a directory, sorted."""
    return sorted(os.listdir(path))


def trees(read_these: list[str], list_these: list[str]) -> dict[str, Any]:
    """Many files and directories at once, by patterns of glob.

    ``texts`` and ``errors`` (numbers) of the files, ``names`` of the directories: what is not
    in a directory that is told of does not exist.
    """
    texts, errors, listed = {}, {}, {}
    for path in _matching(read_these):
        try:
            texts[path] = read(path)
        except OSError as error:
            errors[path] = error.errno
    for path in _matching(list_these):
        try:
            listed[path] = names(path)
        except OSError:
            continue
    return {"texts": texts, "errors": errors, "names": listed}


def _matching(patterns: list[str]) -> list[str]:
    return [path for pattern in patterns for path in glob.glob(pattern)]


def head(path: str) -> list[str]:
    """The lines of a text file before its first empty one (a head of metadata)."""
    lines: list[str] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip() or len(lines) >= 2000:
                break
            lines.append(line.rstrip("\n"))
    return lines


def age(path: str) -> float:
    """When a file or directory was changed last, in seconds since 1970."""
    return os.stat(path).st_mtime


def exists(path: str) -> bool:
    """Whether a file or directory is there and can be reached."""
    return os.path.exists(path)


def is_readable_file(path: str) -> bool:
    """Whether a regular file is there and may be read."""
    return os.path.isfile(path) and os.access(path, os.R_OK)


def real_path(path: str) -> str:
    """The path with its links followed."""
    return os.path.realpath(path)


def which(program: str, places: list[str | None]) -> str | None:
    """The path of a program in the first of these places that has it; None is PATH."""
    for place in places:
        found = shutil.which(program, path=place)
        if found:
            return found
    return None


def content(path: str) -> dict[str, Any]:
    """What lies at a path, to compare it: its kind, and of a file size and SHA-256."""
    told = os.stat(path)
    if stat.S_ISDIR(told.st_mode):
        return {"kind": "folder"}
    if not stat.S_ISREG(told.st_mode):
        return {"kind": "other"}
    digest, left = hashlib.sha256(), HASHED_BYTES
    with open(path, "rb") as file:
        while left > 0:
            piece = file.read(min(left, 1 << 20))
            if not piece:
                break
            digest.update(piece)
            left -= len(piece)
    return {"kind": "file", "bytes": told.st_size, "sha256": digest.hexdigest()}


def disk(path: str) -> list[int]:
    """Size of the file system that holds a path, and what of it is free for us, in bytes."""
    told = os.statvfs(path)
    return [told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail]


def limit(name: str) -> int | None:
    """A soft limit (``NOFILE``); None where there is none."""
    soft = resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0]
    return None if soft == resource.RLIM_INFINITY else soft


def cpuid(leaf: int, subleaf: int) -> list[int]:
    """EAX, EBX, ECX, EDX of the CPUID instruction; the device is root's alone."""
    with open("/dev/cpu/0/cpuid", "rb", buffering=0) as device:
        told = os.pread(device.fileno(), 16, leaf | subleaf << 32)
    if len(told) != 16:
        raise OSError(errno.ENODATA, "no CPUID")
    return list(struct.unpack("<4I", told))


def process_itself() -> dict[str, Any]:
    """The process that asks: variables, CPUs, and which machine and network it sees."""
    return {
        "environment": dict(os.environ),
        "affinity": sorted(os.sched_getaffinity(0)),
        "boot": _or_none(lambda: read("/proc/sys/kernel/random/boot_id").strip()),
        "network": _or_none(lambda: os.readlink("/proc/self/ns/net")),
    }


def interpreter() -> dict[str, Any]:
    """The Python that runs this."""
    return {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "prefix": sys.prefix,
        "paths": [path for path in sys.path if path],
    }


def clock() -> float:
    """Seconds since 1970, as this machine believes."""
    return time.time()


def processes() -> dict[str, Any]:
    """Those that run beside this one, threads of the kernel left out.

    Each as pid, name, CPU seconds used, start (ticks), CPUs allowed (a kernel list).
    """
    tick = os.sysconf("SC_CLK_TCK")
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            text = read(f"/proc/{name}/stat")
            cpus = sorted(os.sched_getaffinity(int(name)))
        except OSError:  # it has ended
            continue
        # Fields of proc(5), counted from behind the name in parentheses.
        fields = text.rpartition(")")[2].split()
        if fields[20] == "0":  # no memory of its own
            continue
        used = (int(fields[11]) + int(fields[12])) / tick
        comm = text.partition("(")[2].rpartition(")")[0]
        found.append([int(name), comm, used, int(fields[19]), _ranges(cpus)])
    return {"seconds": time.monotonic(), "processes": found}


def _ranges(numbers: list[int]) -> str:
    """``0-3,8``: a kernel list."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _or_none(look: Any) -> Any:
    try:
        return look()
    except OSError:
        return None


ANSWERS = {
    function.__name__: function
    for function in (
        read, names, trees, head, age, exists, is_readable_file, real_path, which, content, disk,
        limit, cpuid, process_itself, interpreter, clock, processes,
    )
}  # fmt: skip
"""What can be asked, by name."""
