"""Reads names of hosts: ``--hosts``, a host file in any dialect, or a Slurm allocation.

    node1                       # a comment
    node2 slots=2               Open MPI; max_slots, cpu, count, user, username are read too
    node3:2                     Intel MPI, MPICH (binding and ifname concern only mpirun)
    [fd00::4]:2                 an IPv6 address; without brackets, ``fd00::4``, it has no slots
    cn[01-04,07]-ib             ranges, as Slurm and pdsh write them
    me@node4                    the user for ssh

The number after a colon is slots, as in every host file. A port belongs in ``~/.ssh/config``. If a
host occurs twice in a file, its slots are added, as every launcher does.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from cputune.errors import UsageError
from cputune.host import Host
from cputune.text.plain import count

_LOGIN = r"[A-Za-z_][\w.-]*"
_NAME = r"\w([\w-]*\w)?(\.[\w-]+)*\.?"
_IPV6 = r"\[[0-9A-Fa-f:.]+\]|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*"
_HOST = re.compile(
    rf"(?:(?P<user>{_LOGIN})@)?(?P<name>{_IPV6}|{_NAME})(?::(?P<slots>[0-9]{{1,9}})?)?", re.ASCII
)
_SLOTS = re.compile(r"(?:slots|cpu|count)\s*=\s*([0-9]{1,9})\Z")
_USER = re.compile(rf"(?:user|username|user_name)=({_LOGIN})\Z", re.ASCII)
_OF_MPIRUN = re.compile(r"(?:max[_-]slots=[0-9]+|(?:binding|ifname)=[A-Za-z0-9_.:+-]+)\Z")
_NUMBERS = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGE = re.compile(rf"\[({_NUMBERS}(?:,{_NUMBERS})*)\]")
# A comma outside of brackets.
_BETWEEN = re.compile(r",(?![^\[\]]*\])")

# Limits: hosts of one word (``node[0-99999999]`` is a typing error), letters of a name (RFC
# 1035).
MOST_HOSTS = 1 << 16
LONGEST_NAME = 253

SLURM_NODES = "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One named machine.

    Attributes:
        slots: number of ranks that it takes. None if not given.
        user: the user for ssh. None if ssh's configuration decides.
        cpus: the CPUs of our Slurm job on it. None outside of a job.
    """

    name: str
    slots: int | None = None
    user: str | None = None
    cpus: int | None = None

    @property
    def login(self) -> str:
        """The name with the user, as ssh takes it."""
        if self.user is None:
            return self.name
        return f"{self.user}@{self.name}"


def parse_hostfile(text: str, *, where: str = "the host file") -> tuple[Node, ...]:
    """Parse a host file. Raises UsageError with the number of a wrong line."""
    nodes: list[Node] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        place = f"{where}, line {number}"
        for node in _named(fields[0], place):
            for word in fields[1:]:
                if match := _SLOTS.match(word):
                    node = replace(node, slots=int(match[1]))
                elif match := _USER.match(word):
                    node = replace(node, user=match[1])
                elif not _OF_MPIRUN.match(word):
                    raise UsageError(
                        f"{place}: cannot read {word!r}", hint="write `host slots=N` or `host:N`"
                    )
            if node.slots == 0:
                raise UsageError(f"{place}: {node.name} has no slots", hint="remove the line")
            nodes.append(node)
    return _each_once(nodes, where)


def parse_hosts(text: str, *, where: str = "--hosts") -> tuple[Node, ...]:
    """Parse ``--hosts a,b:2,n[1-4],[::1]:2``. Raises UsageError."""
    return _each_once(_listed(text, where), where)


def parse_distinct_hosts(text: str) -> tuple[Node, ...]:
    """As ``parse_hosts``, but each host may occur only once. Raises UsageError."""
    names = [node.name for node in _listed(text, "--hosts")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"--hosts names {twice} twice", hint="name each host once, with its slots as a:2"
        )
    return parse_hosts(text)


def _listed(text: str, where: str) -> list[Node]:
    nodes = []
    for word in _BETWEEN.split(text):
        if word.strip():
            nodes += _named(word.strip(), where)
    return nodes


def _named(word: str, place: str) -> list[Node]:
    host_names = list(islice(_expanded(word), MOST_HOSTS + 1))
    if len(host_names) > MOST_HOSTS:
        raise UsageError(f"{place}: {word[:60]} names too many hosts", hint="write a smaller range")
    if not host_names:
        raise UsageError(f"{place}: {word[:60]} names no host", hint="write it as n[1-4]")
    return [_host(name, place) for name in host_names]


def _expanded(word: str) -> Iterator[str]:
    """Expand ``cn[01-03]-ib`` into names, the last range fastest."""
    match = _RANGE.search(word)
    if match is None:
        yield word
        return
    for number in _numbers(match[1]):
        for behind in _expanded(word[match.end() :]):
            yield word[: match.start()] + number + behind


def _numbers(group: str) -> Iterator[str]:
    for part in group.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)")
# Names in a row that are written as a range.
FEWEST_FOLDED = 3


def folded(names: Sequence[str]) -> tuple[str, ...]:
    """Names of hosts with ranges for numbers in a row: ``node[01-12]``, as ``--hosts`` reads it."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    written: list[str] = []
    for run in runs:
        first, last = _NUMBERED.fullmatch(run[0]), _NUMBERED.fullmatch(run[-1])
        if len(run) < FEWEST_FOLDED or first is None or last is None:
            written += run
        else:
            written.append(f"{first[1]}[{first[2]}-{last[2]}]{first[3]}")
    return tuple(written)


def _follows(before: str, name: str) -> bool:
    """Whether a name has the next number, and nothing else differs."""
    first, second = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    if first is None or second is None or (first[1], first[3]) != (second[1], second[3]):
        return False
    return second[2] == str(int(first[2]) + 1).zfill(len(first[2]))


def allocated_nodes(host: Host) -> tuple[Node, ...]:
    """The nodes of our Slurm allocation, empty outside of one.

    Raises UsageError if Slurm names them in an unknown form.
    """
    variables = host.environment()
    listed = variables.get(SLURM_NODES)
    if not listed:
        return ()
    nodes = parse_hosts(listed, where=SLURM_NODES)
    ranks = _counts(variables.get("SLURM_TASKS_PER_NODE", ""))
    slots = None
    if len(ranks) == len(nodes) and len(set(ranks)) == 1:
        slots = ranks[0]
    cpus: Sequence[int | None] = _counts(variables.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(cpus) != len(nodes):
        cpus = [None] * len(nodes)
    return tuple(replace(node, slots=slots, cpus=n) for node, n in zip(nodes, cpus, strict=True))


def _counts(text: str) -> list[int]:
    """Slurm's numbers for each node (``2(x4),1``), in their order. Empty if not readable."""
    counts: list[int] = []
    for word in text.split(","):
        counted = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", word)
        if counted is None:
            return []
        counts += [int(counted[1])] * int(counted[2] or 1)
    return counts


def choose(nodes: tuple[Node, ...], wanted: int, ranks: int) -> tuple[Node, ...]:
    """The first ``wanted`` nodes. Raises UsageError if there are too few nodes or slots."""
    if len(nodes) < wanted:
        raise UsageError(
            f"{count(wanted, 'node')} are needed, but {count(len(nodes), 'host')} given",
            hint="give as many hosts as --nodes",
        )
    chosen = nodes[:wanted]
    for node in chosen:
        if node.slots is not None and node.slots < ranks:
            raise UsageError(
                f"{node.name} has {count(node.slots, 'slot')}, and the plan "
                f"starts {ranks} ranks on each node",
                hint=f"give it slots={ranks}, or tune with fewer processes",
            )
    return chosen


def _each_once(named: Sequence[Node], where: str) -> tuple[Node, ...]:
    nodes: dict[str, Node] = {}
    for node in named:
        before = nodes.get(node.name)
        if before is not None:
            slots = 0
            for same in (before, node):
                if same.slots is None:
                    slots += 1
                else:
                    slots += same.slots
            node = replace(node, slots=slots, user=node.user or before.user)
        nodes[node.name] = node
    if not nodes:
        raise UsageError(f"{where} names no host", hint="one host on each line, `host slots=N`")
    return tuple(nodes.values())


def _host(word: str, place: str) -> Node:
    match = _HOST.fullmatch(word)
    name = ""
    if match is not None:
        name = match["name"].strip("[]")
    if match is None or len(name) > LONGEST_NAME or (":" in name and not _is_ipv6(name)):
        raise UsageError(
            f"{place}: {word!r} is not a host name",
            hint="letters, digits, dots, hyphens, or an address; slots as in `host:2`",
        )
    slots = None
    if match["slots"]:
        slots = int(match["slots"])
    return Node(name=name, slots=slots, user=match["user"])


def _is_ipv6(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.IPv6Address(name))
    return False
