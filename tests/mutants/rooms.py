"""The rooms of ``rooms.toml``, and what ``harmless.toml`` lets survive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Modules and the tests they are tried against, both as paths inside the project.

    ``torch``: the tests need torch. ``alone``: they are run without what ``tests/conftest.py`` is
    for.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    torch: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Fault:
    """One line of one module, as it was and as it became, without its indentation."""

    module: str
    was: str
    becomes: str


def rooms() -> Iterator[Room]:
    """Each room, its patterns resolved; a module is in the first room that names it.

    Of what decides nothing a room has what it names by its own path.
    """
    seen: set[Path] = set()
    nothing = {PROJECT / module for module in shown()}
    for room in _read("rooms.toml")["room"]:
        found = [
            path
            for pattern in room["modules"]
            for path in sorted(PROJECT.glob(pattern))
            if path not in (seen | nothing if "*" in pattern else seen)
        ]
        seen.update(found)
        modules = tuple(str(path.relative_to(PROJECT)) for path in found)
        yield Room(**{**room, "modules": modules, "tests": tuple(room["tests"])})


def shown() -> set[str]:
    """The modules that decide nothing, beside those of them that a room names."""
    patterns = [pattern for one in _read("rooms.toml")["shown"] for pattern in one["modules"]]
    found = (path for pattern in patterns for path in PROJECT.glob(pattern))
    return {str(path.relative_to(PROJECT)) for path in found}


def harmless() -> dict[Fault, str]:
    """Each fault that may survive, and why."""
    return {
        Fault(module=module, was=entry["was"], becomes=becomes): entry["why"]
        for module, entries in _read("harmless.toml").items()
        for entry in entries
        for becomes in entry["becomes"]
    }


def _read(name: str) -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))
