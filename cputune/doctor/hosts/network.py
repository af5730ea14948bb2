"""What the names and interfaces of several hosts have to do with each other. Pure functions.

``Named`` is what a host says of names (``doctor/looks/names.py``); ``doctor/hosts/reached.py``
asks it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cputune.carrier.interface import (
    Chosen,
    choose_interface,
    gloo_link,
    is_loopback,
    libfabric_link,
    link_with,
    shared_network,
)
from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts.seen import HostsCheck
from cputune.facts import Network

NAME_UNKNOWN = HostsCheck(
    code="hosts-name-unknown",
    severity=Severity.ERROR,
    title="A host does not know the name of another",
    remedy="Give all hosts the same names in /etc/hosts or DNS, or name them by their addresses.",
    source="https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    story="""Symptom: "Name or service not known", or a launcher that never starts on a host.

Cause: MASTER_ADDR and the host files hold names, and each host looks them up by itself. Every
host was asked for the names of all the others.""",
)
NAME_ELSEWHERE = HostsCheck(
    code="hosts-name-elsewhere",
    severity=Severity.ERROR,
    title="A name leads to another machine than the one that answers to it",
    remedy="Mend the entry in /etc/hosts or DNS of the host that is named.",
    source="https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    story="""Symptom: ranks wait for the first one for ever, or reach a machine that is not theirs.

Cause: an old entry in /etc/hosts. The addresses to which a name resolves on one host were held
against the addresses that the host of this name has.""",
)
GLOO = HostsCheck(
    code="hosts-gloo-interface",
    severity=Severity.ERROR,
    title="gloo would listen where the other hosts cannot reach it",
    remedy="Name one interface to every layer: `cputune emit` and `tune` do by --interface.",
    source="aws-samples/aws-do-eks#50",
    story="""Symptom: "connectFullMesh failed", "Connection refused", and mpirun does not end.

Cause: gloo listens on the first address of its host's own name, and Debian's /etc/hosts gives
that as 127.0.1.1. Where hosts have several networks, names may also lead to different ones.
Every host was asked what its own name is on itself, as gloo asks.""",
)
LIBFABRIC = HostsCheck(
    code="hosts-libfabric-interface",
    severity=Severity.WARNING,
    title="libfabric would take interfaces that do not belong together",
    remedy="Name one interface to every layer: `cputune emit` and `tune` do by --interface.",
    source="https://ofiwg.github.io/libfabric/main/man/fi_tcp.7.html",
    story="""Symptom: MPI or oneCCL hangs at its start, or is slow, on hosts with several networks.

Cause: the tcp provider of libfabric takes the fastest interface that is up, bridges of
containers too, and each host chooses for itself. FI_TCP_IFACE names one.""",
)
INTERFACE = HostsCheck(
    code="hosts-interface",
    severity=Severity.WARNING,
    title="No interface has the same name on all hosts",
    remedy="Give the interface between the hosts one name (systemd.link(5)), and say --interface.",
    source="https://www.freedesktop.org/software/systemd/man/latest/systemd.link.html",
    story="""Symptom: "Unable to find address for: eth0" on some hosts.

Cause: a launch tells one name to all ranks (GLOO_SOCKET_IFNAME and its like), and the hosts
call their interfaces differently.""",
)
CHECKS = (NAME_UNKNOWN, NAME_ELSEWHERE, GLOO, LIBFABRIC, INTERFACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a host makes of names.

    ``own`` is the address that gloo listens on by itself, None where there is none; ``names``
    are the addresses of the hosts' names, or in words why there are none.
    """

    host: str
    network: Network
    own: str | None = None
    names: Mapping[str, tuple[str, ...] | str] = field(default_factory=dict)
    told: str | None = None
    """The interface that GLOO_SOCKET_IFNAME names on it already."""
    fabric: str | None = None
    """The one that FI_TCP_IFACE names."""


def chosen_interface(hosts: Sequence[Named]) -> Chosen:
    """The interface for all layers, by where the others find each host."""
    return choose_interface([(one.host, one.network) for one in hosts], resolved(hosts))


def resolved(hosts: Sequence[Named]) -> dict[str, str]:
    """The first address by which another host knows each host."""
    found: dict[str, str] = {}
    for one in hosts:
        for name, addresses in one.names.items():
            if name != one.host and not isinstance(addresses, str) and addresses:
                found.setdefault(name, addresses[0])
    return found


def names_unknown(hosts: Sequence[Named]) -> Iterator[Finding]:
    """Names that some host cannot resolve, a finding for each name."""
    for name in dict.fromkeys(name for one in hosts for name in one.names):
        failing = {
            one.host: why for one in hosts if isinstance(why := one.names.get(name, ()), str)
        }
        if failing:
            said = next(iter(failing.values()))
            yield NAME_UNKNOWN.finding(f"{name} is not known on {', '.join(failing)}: {said}")


def names_elsewhere(hosts: Sequence[Named]) -> Iterator[Finding]:
    """Names that lead to no address of the host that has them."""
    networks = {one.host: one.network for one in hosts}
    for one in hosts:
        for name, addresses in one.names.items():
            network = networks.get(name)
            if name == one.host or isinstance(addresses, str) or network is None:
                continue
            if network.links is None or not addresses:
                continue
            if link_with(network, addresses[0]) in (None, "lo"):
                held = [a.partition("/")[0] for link in network.links for a in link.addresses]
                own = ", ".join(address for address in held if not is_loopback(address))
                yield NAME_ELSEWHERE.finding(
                    f"on {one.host} {name} is {addresses[0]}; {name} itself has {own or 'none'}"
                )


def gloo_interfaces(hosts: Sequence[Named]) -> Iterator[Finding]:
    """Where gloo would listen on each host, where that is loopback or not one network."""
    known = [one for one in hosts if one.network.links is not None]
    taken = {one.host: gloo_link(one.network, one.own, one.told) or "lo" for one in known}
    inside = [one for one in known if taken[one.host] == "lo"]
    if inside:
        said = ", ".join(f"{one.host} as {one.own or '127.0.0.1'}" for one in inside)
        yield GLOO.finding(
            f"own names resolve to loopback: {said}", command=_command(hosts, "GLOO_SOCKET_IFNAME")
        )
    elif _together(known, taken) is False:
        yield GLOO.finding(
            _taken(known, taken),
            command=_command(hosts, "GLOO_SOCKET_IFNAME"),
            severity=Severity.WARNING,
            title="gloo would listen in different networks",
        )


def libfabric_interfaces(hosts: Sequence[Named]) -> Iterator[Finding]:
    """What libfabric would take on each host, where those are not of one network."""
    known = [one for one in hosts if one.network.links is not None]
    taken = {one.host: link for one in known if (link := libfabric_link(one.network, one.fabric))}
    if _together(known, taken) is False:
        yield LIBFABRIC.finding(_taken(known, taken), command=_command(hosts, "FI_TCP_IFACE"))


def no_interface(hosts: Sequence[Named]) -> Iterator[Finding]:
    """Where no interface can be named to all hosts."""
    known = all(one.network.links is not None for one in hosts)
    chosen = chosen_interface(hosts)
    if known and len(hosts) > 1 and chosen.name is None:
        yield INTERFACE.finding(chosen.why)


def network_findings(hosts: Sequence[Named]) -> Iterator[Finding]:
    """All of these."""
    for judge in (
        names_unknown,
        names_elsewhere,
        gloo_interfaces,
        libfabric_interfaces,
        no_interface,
    ):
        yield from judge(hosts)


def _together(hosts: Sequence[Named], taken: Mapping[str, str]) -> bool | None:
    """Whether the interfaces that were taken share a network; None where it is not known."""
    links = [one.network.link(taken[one.host]) for one in hosts if one.host in taken]
    found = [link for link in links if link is not None]
    if len(found) < 2:
        return None
    return shared_network(found) is not None


def _taken(hosts: Sequence[Named], taken: Mapping[str, str]) -> str:
    """``node1 takes eth0 (10.0.0.1/24); node2 takes ib0 (10.1.0.2/24)``."""
    said = []
    for one in hosts:
        if one.host in taken:
            link = one.network.link(taken[one.host])
            at = f" ({link.addresses[0]})" if link is not None and link.addresses else ""
            said.append(f"{one.host} takes {taken[one.host]}{at}")
    return "; ".join(said)


def _command(hosts: Sequence[Named], variable: str) -> str | None:
    name = chosen_interface(hosts).name
    return None if name is None else f"export {variable}={shlex.quote(name)}"
