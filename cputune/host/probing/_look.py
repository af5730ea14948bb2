"""Reads small kernel files of a Host, and remembers which ones could not be read."""

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
    """One look at a machine: reads its small files, and notes which facts are not known, and why.

    A file that is missing, unreadable or garbage reads as None.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._unknown: dict[str, str] = {}

    def text(self, path: str) -> str | None:
        """The text of a file without the white space and NULs at its ends."""
        try:
            return self.host.read_text(path).strip(" \t\r\n\0")
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        """A file that holds one whole number, in decimal."""
        return whole_number(self.text(path))

    def names(self, directory: str) -> tuple[str, ...]:
        """The names in a directory; none where it cannot be listed."""
        try:
            return self.host.list_dir(directory)
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        """Whether the path is there."""
        return self.host.exists(path)

    def numbered(self, directory: str, prefix: str) -> tuple[int, ...]:
        """The numbers N of the entries ``prefixN`` of a directory, sorted."""
        found = []
        for name in self.names(directory):
            number = name.removeprefix(prefix)
            if name.startswith(prefix) and number.isascii() and number.isdigit():
                found.append(int(number))
        return tuple(sorted(number for number in found if number < cpulist.MAX_CPUS))

    def cpu_list(self, path: str) -> frozenset[int] | None:
        """A file with a kernel list (``0-3,8``)."""
        return cpus_of(self.text(path))

    def not_known(self, fact: str, reason: str) -> None:
        """Note why a fact is not known; the first reason counts."""
        self._unknown.setdefault(fact, reason)

    def known(self, fact: str, value: Parsed | None, path: str) -> Parsed | None:
        """The value itself; where it is None, note why its file does not give it."""
        if value is None:
            self.not_known(fact, self.why(path))
        return value

    def parsed(self, fact: str, path: str, read: Callable[[str], Parsed | None]) -> Parsed | None:
        """What ``read`` makes of the text of a file; where that is None, note why."""
        text = self.text(path)
        return self.known(fact, None if text is None else read(text), path)

    def is_open(self, fact: str) -> bool:
        """Whether this fact has a reason why it is not known."""
        return fact in self._unknown

    def why(self, path: str) -> str:
        """Why a file told nothing, for ``not_known``."""
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
        return f"{path} holds nothing that can be understood"

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """The facts that are not known, with reasons, sorted by fact."""
        return tuple(
            Unknown(fact=fact, reason=reason) for fact, reason in sorted(self._unknown.items())
        )


@lru_cache(maxsize=8192)
def cpus_of(text: str | None) -> frozenset[int] | None:
    """The CPUs of a kernel list; large machines have many equal texts, so each is parsed once."""
    try:
        return None if text is None else frozenset(cpulist.parse(text))
    except ValueError:
        return None


def whole_number(text: str | None, *, base: int = 10) -> int | None:
    """A whole number written in ASCII, negative ones too; None for anything else."""
    if text is None or not text.isascii() or len(text) > 40 or "_" in text:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def count(text: str | None) -> int | None:
    """A whole number that is not negative."""
    number = whole_number(text)
    return None if number is None or number < 0 else number


def decimal(text: str | None) -> float | None:
    """A finite decimal number written in ASCII; None for anything else."""
    if text is None or not text.isascii() or len(text) > 40 or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None  # inf and nan are not finite


def fields(text: str | None) -> dict[str, str]:
    """``key: value`` lines as a mapping, the first of each key."""
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def kibibytes(value: str | None) -> int | None:
    """Bytes of a ``12345 kB`` value as /proc/meminfo writes it."""
    number, _, unit = (value or "").partition(" ")
    kib = count(number)
    return None if kib is None or unit.strip() not in ("kB", "") else kib * 1024
