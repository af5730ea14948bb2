"""Reads small kernel files of a Host, and records which facts are not known."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from cputune.host import Host
from cputune.host.facts import Unknown
from cputune.text import cpulist

Parsed = TypeVar("Parsed")

CPU_DIR = "/sys/devices/system/cpu"
NODE_DIR = "/sys/devices/system/node"


class Look:
    """Reads small files of a machine, and collects unknown facts with reasons.

    A file that is missing, unreadable or garbled is read as None.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._unknown: dict[str, str] = {}

    def text(self, path: str) -> str | None:
        """Text of a file without white space and NULs at its ends."""
        try:
            return self.host.read_text(path).strip(" \t\r\n\0")
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        return whole_number(self.text(path))

    def names(self, directory: str) -> tuple[str, ...]:
        """Names in a directory, empty if it cannot be listed."""
        try:
            return self.host.list_dir(directory)
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        return self.host.exists(path)

    def numbered(self, directory: str, prefix: str) -> tuple[int, ...]:
        """Sorted numbers N of the entries ``prefixN`` of a directory."""
        numbers = []
        for name in self.names(directory):
            number = name.removeprefix(prefix)
            if name.startswith(prefix) and number.isascii() and number.isdigit():
                numbers.append(int(number))
        return tuple(sorted(number for number in numbers if number < cpulist.MAX_CPUS))

    def cpu_list(self, path: str) -> frozenset[int] | None:
        return cpus_of(self.text(path))

    def not_known(self, fact: str, reason: str) -> None:
        """Record why a fact is not known. The first reason counts."""
        self._unknown.setdefault(fact, reason)

    def known(self, fact: str, value: Parsed | None, path: str) -> Parsed | None:
        """The value. If it is None, record why the file does not give it."""
        if value is None:
            self.not_known(fact, self.why(path))
        return value

    def parsed(self, fact: str, path: str, read: Callable[[str], Parsed | None]) -> Parsed | None:
        """Apply ``read`` to the text of a file. Record why there is no result."""
        text = self.text(path)
        if text is None:
            return self.known(fact, None, path)
        return self.known(fact, read(text), path)

    def is_open(self, fact: str) -> bool:
        return fact in self._unknown

    def why(self, path: str) -> str:
        """The reason why a file gave no value."""
        try:
            text = self.host.read_text(path)
        except FileNotFoundError:
            return f"{path} does not exist"
        except OSError as error:
            return f"{path} cannot be read ({error.strerror or error})"
        except ValueError as error:
            return f"{path} cannot be read ({error})"
        if not text.strip():
            return f"{path} is empty"
        return f"{path} has unexpected content"

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        unknowns: list[Unknown] = []
        for fact, reason in sorted(self._unknown.items()):
            unknowns.append(Unknown(fact=fact, reason=reason))
        return tuple(unknowns)


@lru_cache(maxsize=8192)
def cpus_of(text: str | None) -> frozenset[int] | None:
    """CPUs of a kernel list. Cached, because large machines repeat the same lists."""
    if text is None:
        return None
    try:
        return frozenset(cpulist.parse(text))
    except ValueError:
        return None


def whole_number(text: str | None, *, base: int = 10) -> int | None:
    """A whole number in ASCII, also a negative one. None for other text."""
    if text is None or not text.isascii() or len(text) > 40 or "_" in text:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def count(text: str | None) -> int | None:
    number = whole_number(text)
    if number is None or number < 0:
        return None
    return number


def decimal(text: str | None) -> float | None:
    """A finite decimal number in ASCII. None for other text."""
    if text is None or not text.isascii() or len(text) > 40 or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    if abs(value) >= 1e300 or value != value:  # inf or nan
        return None
    return value


def fields(text: str | None) -> dict[str, str]:
    """Parse ``key: value`` lines. The first of each key counts."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return values


def kibibytes(value: str | None) -> int | None:
    """Bytes of a ``12345 kB`` value of /proc/meminfo."""
    number, _, unit = (value or "").partition(" ")
    kib = count(number)
    if kib is None or unit.strip() not in ("kB", ""):
        return None
    return kib * 1024
