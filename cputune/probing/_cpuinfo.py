"""/proc/cpuinfo taken apart, of whatever architecture."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from cputune.probing._look import Look, whole_number

CPUINFO = "/proc/cpuinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """The lines of each logical CPU that is listed, and those that stand outside of them."""

    processors: dict[int, dict[str, str]]
    common: dict[str, str]

    def first(self, *keys: str) -> str | None:
        """What is told for the first of these keys that anything is told for."""
        for key in keys:
            for block in (*self.processors.values(), self.common):
                if block.get(key):
                    return block[key]
        return None

    def distinct(self, *keys: str) -> tuple[str, ...]:
        """All different values that any processor has for one of these keys."""
        blocks = (*self.processors.values(), self.common)
        return tuple(dict.fromkeys(block[key] for block in blocks for key in keys if key in block))


def read_cpuinfo(look: Look) -> CpuInfo:
    """Read /proc/cpuinfo; empty where there is none.

    A processor begins with ``processor : N`` (x86, Arm, Power, RISC-V) or
    ``cpu number : N`` (s390x, which also has one line ``processor N: ...`` for each)
    and ends with an empty line; 32-bit Arm, Power and s390x have lines outside of them.
    """
    common: dict[str, str] = {}
    processors: dict[int, dict[str, str]] = {}
    block = common
    for line in _whole_lines(look):
        key, colon, value = line.partition(":")
        if not colon:
            if not line.strip():
                block = common
            continue
        key, value = key.strip(), value.strip()
        if key in ("processor", "cpu number"):
            number = whole_number(value)
            if number is not None and number >= 0:
                block = processors.setdefault(number, {})
                continue
        elif key.startswith("processor "):
            number = whole_number(key.removeprefix("processor "))
            if number is not None and number >= 0:
                processors.setdefault(number, {})
                continue
        block.setdefault(key, value)
    return CpuInfo(processors=dict(sorted(processors.items())), common=common)


def _whole_lines(look: Look) -> list[str]:
    """The lines; without the last where the file was cut off in the middle of it."""
    try:
        text = look.host.read_text(CPUINFO)
    except (OSError, ValueError):
        return []
    lines = text.strip("\0").split("\n")
    if lines[-1] and len(lines) > 60:
        lines.pop()
    return lines


def packages_told(info: CpuInfo) -> dict[int, int]:
    """The ``physical id`` of each CPU that has one."""
    ids = {cpu: whole_number(block.get("physical id")) for cpu, block in info.processors.items()}
    return {cpu: number for cpu, number in ids.items() if number is not None}


def cores_told(info: CpuInfo) -> dict[int, Hashable]:
    """A key for the core of each CPU: by the counts where they leave no choice, else by its ids.

    Packages of two dies (AMD Magny-Cours and Interlagos) count their core ids twice: there
    the ids of a whole package are fewer than its ``cpu cores``, and tell nothing.
    """
    packages = packages_told(info)
    members: dict[int, list[int | None]] = {}
    for cpu, package in packages.items():
        core = whole_number(info.processors[cpu].get("core id"))
        members.setdefault(package, []).append(core)
    distinct = {package: len(set(ids)) for package, ids in members.items()}
    found: dict[int, Hashable] = {}
    for cpu, package in packages.items():
        block = info.processors[cpu]
        core, siblings, cores = (
            whole_number(block.get(key)) for key in ("core id", "siblings", "cpu cores")
        )
        repeated = siblings == len(members[package]) and distinct[package] < (cores or 0)
        if cores is not None and cores == siblings:
            found[cpu] = (package, "alone", cpu)
        elif cores == 1:
            found[cpu] = (package, 0)
        elif core is not None and not repeated:
            found[cpu] = (package, core)
    return found
