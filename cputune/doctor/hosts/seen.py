"""What was seen of each host, and helpers of the checks that compare hosts.

Such a check is given the hosts that were reached and those that were not. What is not known of a
host is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cputune.doctor.finding import Finding, FoundOn
from cputune.facts import HostFacts
from cputune.remote.named import Node

MOST_NAMES = 6
"""So many hosts are named in a row; of more it is said how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHost:
    """One host; where ``facts`` is None it was not reached: ``reason`` and ``cure`` tell more.

    ``seconds`` is how long it took. ``clock_offset_seconds`` is how far its clock is ahead of ours,
    give or take ``clock_uncertainty_seconds``. ``python`` is the path of the interpreter that was
    looked at there. ``machine`` tells whether two names lead to one machine. ``launch`` holds of
    each path of a launch what lies there: a digest, ``folder``, or None for nothing. ``findings``
    are what the doctor says of this host alone.
    """

    node: Node
    seconds: float
    facts: HostFacts | None = None
    reason: str | None = None
    cure: str | None = None
    clock_offset_seconds: float | None = None
    clock_uncertainty_seconds: float | None = None
    python: str | None = None
    machine: str | None = None
    launch: Mapping[str, str | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """As it was asked for."""
        return self.node.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsDiagnosis(FoundOn):
    """What the doctor has to say about several hosts; the worst findings come first."""

    hosts: tuple[SeenHost, ...]


Key = TypeVar("Key", bound=Hashable)


def grouped(
    hosts: Iterable[SeenHost], value: Callable[[HostFacts], Key | None]
) -> dict[Key, list[str]]:
    """The names of the hosts by what is told of them, the most frequent first."""
    found: dict[Key, list[str]] = {}
    for host in hosts:
        told = None if host.facts is None else value(host.facts)
        if told is not None:
            found.setdefault(told, []).append(host.name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def told(groups: Mapping[str, Sequence[str]]) -> str:
    """``2.13.0 on a, b; 2.6.0 on c``."""
    return "; ".join(f"{value} on {names_of(names)}" for value, names in groups.items())


def names_of(names: Sequence[str]) -> str:
    """``a, b, c``; of many the first ones, and how many more."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {len(names) - MOST_NAMES + 1} more"


def difference(
    hosts: Iterable[SeenHost], value: Callable[[HostFacts], str | None], what: str = ""
) -> str | None:
    """What differs, in words, and where; None where all that is known is alike."""
    groups = grouped(hosts, value)
    if len(groups) < 2:
        return None
    return f"{what}: {told(groups)}" if what else told(groups)
