"""Host files: read in any dialect, written in the one that a launcher wants.

    node1                 # a comment
    node2 slots=2         Open MPI
    node3:2               Intel MPI, MPICH
    [fd00::4]:2           an IPv6 address; bare, ``fd00::4``, it has no slots

A host that stands there twice has the slots of both lines, as with every launcher.
"""

from __future__ import annotations

import ipaddress
import re

from cputune.emitters.interface import Node
from cputune.errors import UsageError

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")
_SLOTS = re.compile(r"(slots|max_slots|max-slots|cpu|count)\s*=\s*([0-9]+)\Z")
_MOST_DIGITS = 9
"""Python refuses to read a number of thousands of digits."""


def parse_hostfile(text: str, *, where: str = "the host file") -> tuple[Node, ...]:
    """Read a host file. Raises UsageError with the line that is wrong."""
    found: dict[str, int | None] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        place = f"{where}, line {number}"
        name, slots = _host(words[0], place)
        for word in words[1:]:
            match = _SLOTS.match(word)
            if not match:
                raise UsageError(
                    f"{place}: cannot read {word!r}", hint="write `host slots=N` or `host:N`"
                )
            if match[1] in ("slots", "cpu", "count"):
                slots = _slots(match[2], place)
        if slots == 0:
            raise UsageError(f"{place}: {name} has no slots", hint="leave the line out")
        _add(found, name, slots)
    return _nodes(found, where)


def parse_hosts(text: str) -> tuple[Node, ...]:
    """Read ``--hosts a,b:2,[::1]:2``. Raises UsageError."""
    found: dict[str, int | None] = {}
    for word in text.split(","):
        if word.strip():
            _add(found, *_host(word.strip(), "--hosts"))
    return _nodes(found, "--hosts")


def choose(nodes: tuple[Node, ...], wanted: int, ranks: int) -> tuple[Node, ...]:
    """The first ``wanted`` nodes; each must have slots for ``ranks``. Raises UsageError."""
    if len(nodes) < wanted:
        raise UsageError(
            f"{wanted} nodes were asked for and {len(nodes)} "
            f"{'is' if len(nodes) == 1 else 'are'} named",
            hint="name as many hosts as --nodes says",
        )
    chosen = nodes[:wanted]
    for node in chosen:
        if node.slots is not None and node.slots < ranks:
            raise UsageError(
                f"{node.name} has {node.slots} slot{'' if node.slots == 1 else 's'}, and the plan "
                f"starts {ranks} ranks on each node",
                hint=f"give it slots={ranks}, or tune with fewer processes",
            )
    return chosen


def hydra(nodes: tuple[Node, ...], ranks: int) -> str:
    """A host file for Intel MPI and MPICH. Raises UsageError for an IPv6 address."""
    refuse_ipv6(nodes, "Intel MPI and MPICH")
    return "".join(f"{node.name}:{ranks}\n" for node in nodes)


def refuse_ipv6(nodes: tuple[Node, ...], mpi: str) -> None:
    """Raise UsageError for an IPv6 address: only Open MPI 5 reads one in a host file."""
    for node in nodes:
        if ":" in node.name:
            raise UsageError(
                f"{mpi} cannot read the address {node.name} in a host file",
                hint="give the host a name (/etc/hosts will do)",
            )


def openmpi(nodes: tuple[Node, ...], ranks: int) -> str:
    """A host file for Open MPI."""
    return "".join(f"{node.name} slots={ranks}\n" for node in nodes)


def _add(found: dict[str, int | None], name: str, slots: int | None) -> None:
    if name in found:
        before = found[name]
        found[name] = (1 if before is None else before) + (1 if slots is None else slots)
    else:
        found[name] = slots


def _nodes(found: dict[str, int | None], where: str) -> tuple[Node, ...]:
    if not found:
        raise UsageError(f"{where} names no host", hint="one host on each line, `host slots=N`")
    return tuple(Node(name=name, slots=slots) for name, slots in found.items())


def _host(word: str, place: str) -> tuple[str, int | None]:
    name, slots = word, ""
    if word.startswith("["):
        name, bracket, rest = word[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _no_host(word, place)
        slots = rest[1:]
    elif word.count(":") == 1:
        name, _, slots = word.partition(":")
    if ":" in name:
        try:
            ipaddress.IPv6Address(name)
        except ValueError as error:
            raise _no_host(word, place) from error
    elif not _NAME.fullmatch(name):
        raise _no_host(word, place)
    if slots and not (slots.isascii() and slots.isdigit()):
        raise UsageError(
            f"{place}: {slots!r} is not a number of slots", hint="write `host:2` or `host slots=2`"
        )
    return name, _slots(slots, place) if slots else None


def _slots(digits: str, place: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise UsageError(
            f"{place}: no machine has {digits[:_MOST_DIGITS]}… slots", hint="write `host:2`"
        )
    return int(digits)


def _no_host(word: str, place: str) -> UsageError:
    return UsageError(
        f"{place}: {word!r} is no host name", hint="letters, digits, dots, hyphens, or an address"
    )
