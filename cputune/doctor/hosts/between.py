"""All that is asked of the network between hosts, in the order in which answers need others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cputune.carrier.interface import Chosen, plain_address
from cputune.doctor.finding import Finding
from cputune.doctor.hosts import all_reduce, asking, network, reached
from cputune.doctor.hosts.all_reduce import ask_all_reduce
from cputune.doctor.hosts.asking import Asked
from cputune.doctor.hosts.network import Named, chosen_interface, network_findings
from cputune.doctor.hosts.reached import MASTER_PORT, ask_names, ask_ports
from cputune.doctor.hosts.seen import SeenHost
from cputune.nodes.line import Line

CHECKS = (*network.CHECKS, *reached.CHECKS, *all_reduce.CHECKS, asking.NOT_ASKED)


def network_between(pairs: Sequence[tuple[SeenHost, Line]]) -> Iterator[Finding]:
    """What the hosts make of each other's names, and whether they reach each other's ports.

    The first host is the one with rank 0. Takes some seconds, however many hosts there are.
    """
    hosts = _asked(pairs)
    names, silent = ask_names(hosts)
    yield from silent
    yield from network_findings(names)
    yield from ask_ports(hosts, dict(_addresses(names, chosen_interface(names))))


def all_reduce_between(pairs: Sequence[tuple[SeenHost, Line]]) -> Iterator[Finding]:
    """How long real ranks take to add up DDP's buckets, over the interface of all layers."""
    hosts = _asked(pairs)
    names, _ = ask_names(hosts)
    chosen = chosen_interface(names)
    addresses = dict(_addresses(names, chosen))
    yield from ask_all_reduce(hosts, addresses, interface=chosen.name, master_port=MASTER_PORT)


def _asked(pairs: Sequence[tuple[SeenHost, Line]]) -> tuple[Asked, ...]:
    return tuple(
        Asked(name=seen.name, facts=seen.facts, door=line, python=seen.python)
        for seen, line in pairs
        if seen.facts is not None
    )


def _addresses(names: Sequence[Named], chosen: Chosen) -> Iterator[tuple[str, str]]:
    """Where ranks would listen: on the interface that they are told, else where gloo listens."""
    for one in names:
        link = one.network.link(chosen.name) if chosen.name is not None else None
        if link is not None:
            yield one.host, plain_address(link)
        elif one.own is not None:
            yield one.host, one.own
