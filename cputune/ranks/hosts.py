"""The hosts of one study, in the order in which its plans count their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cputune.carrier.interface import interface_variables
from cputune.errors import CputuneError
from cputune.facts import HostFacts
from cputune.knobs.interface import interface_of
from cputune.nodes.far_host import FarHost
from cputune.nodes.line import Line
from cputune.nodes.many import AT_ONCE
from cputune.plan import Plan
from cputune.probing.quiet import look_around
from cputune.steps import HostLost, Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHost:
    """A host on which ranks run.

    ``root`` is the folder there that has what was sent of cputune (``there.send_modules``), ``own``
    are the variables that the host itself has.
    """

    name: str
    facts: HostFacts
    line: Line
    root: str
    own: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A network interface by which hosts reach each other, and the address of each on it."""

    interface: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How the ranks of a job find each other: the address of the first, and variables of all."""

    address: str
    variables: Mapping[str, str] = field(default_factory=dict)


AT_HOME = Meeting(address="127.0.0.1")
"""Of ranks on one machine."""


class RankHosts:
    """Hosts that are open; one that is lost can be left out."""

    def __init__(self, hosts: Sequence[RankHost], ways: Sequence[Way]) -> None:
        """``ways`` are those that ranks may talk on, the best one first; none for one host."""
        self._hosts = list(hosts)
        self._ways = tuple(ways)

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that are left."""
        return tuple(host.name for host in self._hosts)

    @property
    def facts(self) -> tuple[tuple[str, HostFacts], ...]:
        """Each by its name."""
        return tuple((host.name, host.facts) for host in self._hosts)

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The network interfaces between them, the one that is chosen first."""
        return tuple(way.interface for way in self._ways)

    @property
    def lost(self) -> tuple[HostLost, ...]:
        """Those that are not reached any more, and were not left out yet."""
        return tuple(
            HostLost(host.name, host.line.lost)
            for host in self._hosts
            if host.line.lost is not None
        )

    def of(self, plan: Plan) -> tuple[RankHost, ...]:
        """Those that a plan runs on.

        Raises HostLost where one is gone, Infeasible where there are too few.
        """
        if plan.nodes > len(self._hosts):
            raise Infeasible(
                f"the plan is for {plan.nodes} nodes, and there are {len(self._hosts)}"
            )
        for lost in self.lost:
            if lost.name in self.names[: plan.nodes]:
                raise lost
        return tuple(self._hosts[: plan.nodes])

    def meeting(self, plan: Plan) -> Meeting:
        """How the ranks of a plan find each other."""
        if plan.nodes == 1:
            return AT_HOME
        asked = interface_of(plan)
        way = next((way for way in self._ways if way.interface == asked), self._ways[0])
        return Meeting(
            address=way.addresses[self._hosts[0].name],
            variables=interface_variables(way.interface, backend=plan.backend),
        )

    def neighbours(self) -> tuple[str, ...]:
        """Who computes on them beside us just now, in words; nothing of ours may be running."""
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            found = tuple(pool.map(_neighbours_on, self._hosts))
        return tuple(who for of_host in found for who in of_host)

    def leave_out(self, name: str) -> None:
        """Go on without a host.

        Those behind it move up where they have the same cores: plans name CPUs. Else only
        those before it are left.
        """
        place = self.names.index(name)
        gone, *behind = self._hosts[place:]
        cores = gone.facts.topology.allowed_cores
        alike = all(host.facts.topology.allowed_cores == cores for host in behind)
        self._hosts = self._hosts[:place] + (behind if alike else [])


def _neighbours_on(host: RankHost) -> tuple[str, ...]:
    """Those of one host; none of one that does not answer, which the next trial will show."""
    try:
        found = look_around(FarHost(host.line)).neighbours()
    except (OSError, CputuneError):
        return ()
    return tuple(f"{who} on {host.name}" for who in found)
