"""Every check there is, in the order in which findings of equal severity are shown.

What makes training fail or lie comes first, then the launch and the limits, then the
machine: a person mends from the top. Within a theme they stand in the order of its file.

``looked_at`` says what came of each: found, fine, or not to be told because a fact is not
known. A check is silent on what is not known, so silence alone is no clean bill. Each check is
run over facts that note what is read of them: one that read a fact that is not known, and found
nothing, does not call the machine fine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache

from cputune.doctor.checks import (
    launch,
    libraries,
    limits,
    machine,
    precision,
    surroundings,
    threads,
    versions,
)
from cputune.doctor.finding import Check, Looked
from cputune.doctor.variables import preloaded, value
from cputune.facts import HostFacts, Unknown
from cputune.knobs.precision import native_precisions
from cputune.levers import Lever, done_here

THEMES: Mapping[str, tuple[Check, ...]] = {
    "versions": versions.CHECKS,
    "how ranks are started and meet": launch.CHECKS,
    "variables, folders and files around a launch": surroundings.CHECKS,
    "limits of the container and the shell": limits.CHECKS,
    "threads and binding": threads.CHECKS,
    "precision": precision.CHECKS,
    "libraries and allocators": libraries.CHECKS,
    "the machine, its kernel and its load": machine.CHECKS,
}
"""Checks that people think of together, by what they look at."""

CHECKS: tuple[Check, ...] = tuple(check for checks in THEMES.values() for check in checks)


def all_checks() -> tuple[Check, ...]:
    """These, and those that need more: a stack that is asked for, a file, a child, other hosts."""
    from cputune.doctor import deep, hosts, named_stack, typed_launch
    from cputune.doctor.checkfile import FILE_CHECKS

    needing_more = (named_stack.CHECKS, FILE_CHECKS, typed_launch.CHECKS, deep.CHECKS, hosts.CHECKS)
    return (*CHECKS, *(check for checks in needing_more for check in checks))


def done(facts: HostFacts) -> Iterator[Lever]:
    """What pays, and is set for every launch of this shell."""
    if "bf16" in native_precisions(facts) and value(facts, "ACCELERATE_MIXED_PRECISION") == "bf16":
        yield done_here("bf16-native", "ACCELERATE_MIXED_PRECISION is bf16")
    for path in preloaded(facts):
        if "libtcmalloc" in path and path not in facts.preload_missing:
            yield done_here("allocator-default", f"LD_PRELOAD names {path}")


_READ_WITH = {
    # read: the facts that are told by the same files
    "settings.frequencies": ("settings.governor",),
    "topology.cores": ("topology.physical_cores", "topology.sockets"),
    "topology.allowed_cores": ("topology.physical_cores", "topology.sockets"),
    "topology.present": ("topology.offline",),
}


def looked_at(facts: HostFacts, found: Collection[str] = ()) -> tuple[Looked, ...]:
    """Every check of the registry on these facts, in its order.

    ``found`` are codes of what was found elsewhere too (in files that the launcher reads).
    """
    read: set[str] = set()
    noting = _noting(facts, "", read)
    assert isinstance(noting, HostFacts)
    return tuple(
        _one(check, theme, noting, read, check.code in found)
        for theme, checks in THEMES.items()
        for check in checks
    )


def _one(check: Check, theme: str, noting: HostFacts, read: set[str], found: bool) -> Looked:
    read.clear()
    if check(noting) or found:
        return Looked(check=check, theme=theme, state="found")
    asked = {name for fact in read for name in (fact, *_READ_WITH.get(fact, ()))}
    unknown = tuple(item for item in noting.unknown if item.fact in asked)
    return Looked(check=check, theme=theme, state="unknown" if unknown else "fine", unknown=unknown)


def _noting(value: object, path: str, read: set[str]) -> object:
    """The value, with records in it that note the dotted names of what is read of them.

    Members of tuples are named as ``HostFacts.unknown`` names them: by id, name or place.
    """
    if is_dataclass(value) and not isinstance(value, (type, Unknown)):
        copy: object = object.__new__(_kind_that_notes(type(value)))
        object.__setattr__(copy, "_noted", (f"{path}." if path else "", read))
        for name in (field.name for field in fields(value)):
            inner = _noting(getattr(value, name), f"{path}.{name}".lstrip("."), read)
            object.__setattr__(copy, name, inner)
        return copy
    if isinstance(value, tuple):
        return tuple(
            _noting(item, f"{path}.{getattr(item, 'id', getattr(item, 'name', place))}", read)
            for place, item in enumerate(value)
        )
    return value


@cache
def _kind_that_notes(kind: type) -> type:
    """A record type like this one, whose records note each public name that is read."""

    def read(record: object, name: str) -> object:
        if not name.startswith("_"):
            with suppress(AttributeError):  # a copy of the facts notes no reads
                prefix, noted = object.__getattribute__(record, "_noted")
                noted.add(prefix + name)
        return object.__getattribute__(record, name)

    return type(kind.__name__, (kind,), {"__slots__": ("_noted",), "__getattribute__": read})
