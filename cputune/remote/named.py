"""Which hosts are meant: ``--hosts``, a host file in any dialect, or a Slurm allocation.

    node1                 # a comment
    node2 slots=2         Open MPI
    node3:2               Intel MPI, MPICH
    [fd00::4]:2           an IPv6 address; bare, ``fd00::4``, it has no slots

A host that stands twice in a file has the slots of both lines, as with every launcher.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cputune.errors import CannotError, UsageError
from cputune.host import Command, Host

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*\.?")
_SLOTS = re.compile(r"(slots|max_slots|max-slots|cpu|count)\s*=\s*([0-9]+)\Z")
_MOST_DIGITS = 9
"""Python refuses to read a number of thousands of digits."""

SLURM_NODES = "SLURM_JOB_NODELIST"
SLURM_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of a host file and the ranks it takes; None where it does not say."""

    name: str
    slots: int | None = None


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


def parse_distinct_hosts(text: str) -> tuple[Node, ...]:
    """As ``parse_hosts``, where each host is asked for once. Raises UsageError."""
    names = [_host(word.strip(), "--hosts")[0] for word in text.split(",") if word.strip()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--hosts names {twice} twice", hint="name each host once; slots as a:2")
    return parse_hosts(text)


def allocated_nodes(host: Host) -> tuple[Node, ...]:
    """The nodes of the Slurm allocation that we are in; none outside of one.

    Raises CannotError where Slurm does not tell their names.
    """
    variables = host.environment()
    listed = variables.get(SLURM_NODES)
    if not listed:
        return ()
    names = _expanded(host, listed)
    ranks = _slurm_slots(variables, len(names))
    return tuple(Node(name=name, slots=ranks) for name in names)


def _expanded(host: Host, listed: str) -> tuple[str, ...]:
    """``cn[01-03]`` as names, by scontrol where there is a bracket."""
    if "[" not in listed:
        return tuple(dict.fromkeys(name for name in listed.split(",") if name))
    ask = Command(argv=("scontrol", "show", "hostnames", listed), timeout_seconds=SLURM_SECONDS)
    try:
        done = host.run(ask)
        said = done.stderr.strip()
    except OSError as error:
        done, said = None, error.strerror or str(error)
    names = () if done is None or done.returncode != 0 else tuple(done.stdout.split())
    if not names:
        raise CannotError(
            f"scontrol does not tell the hosts of {SLURM_NODES}={listed}: {said or 'no answer'}",
            hint="name them: --hosts a,b",
        )
    return names


def _slurm_slots(variables: Mapping[str, str], nodes: int) -> int | None:
    """Tasks on each node, where the job has the same number on all (``2(x4)``)."""
    told = re.fullmatch(r"(\d{1,6})(?:\(x(\d+)\))?", variables.get("SLURM_TASKS_PER_NODE", ""))
    return int(told[1]) if told and int(told[2] or 1) == nodes else None


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
