"""The network interface of a job over several hosts, and how each layer is configured.

All layers get the same name, because each would choose by another rule: gloo takes the address of
the host's own name, libfabric the fastest interface that is up, oneCCL's key-value store the first
that is not loopback, and launchers whatever a name resolves to.

========================== ======================================= =========================
layer                      variable                                argument
========================== ======================================= =========================
gloo (all formats)         ``GLOO_SOCKET_IFNAME``
libfabric (oneCCL, MPI)    ``FI_TCP_IFACE``
oneCCL's key-value store   ``CCL_KVS_IFACE``
Intel MPI's hydra          ``I_MPI_HYDRA_IFACE``                   ``-iface NAME``
MPICH's hydra              ``HYDRA_IFACE``                         ``-iface NAME``
Open MPI, messages         ``OMPI_MCA_btl_tcp_if_include``         ``--mca btl_tcp_if_include``
Open MPI 4, daemons        ``OMPI_MCA_oob_tcp_if_include``         ``--mca oob_tcp_if_include``
Open MPI 5, daemons        ``PRTE_MCA_prte_if_include``            ``--mca oob_tcp_if_include``
========================== ======================================= =========================

Sources: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp; fi_tcp(7) and ``ofi_get_list_of_addr`` of
libfabric's src/common.c; oneCCL's internal_kvs.cpp; Intel MPI Developer Reference, "Hydra
Environment Variables"; ``mpiexec.hydra -iface -help``; https://www.open-mpi.org/faq/?category=tcp.
Each was tried: a launcher with an interface that does not exist refuses to start (Intel MPI
2021.18, MPICH 5.0, Open MPI 4.1 and 5.0).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cputune.errors import UsageError
from cputune.host.facts import Link, Network

# The kernel's names have at most 15 characters (IFNAMSIZ).
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")

# Interfaces that do not leave the machine: loopback, bridges of containers and guests.
_WITHIN = re.compile(r"lo\b|docker|br-|veth|virbr|vmnet|cni|flannel|cali|tunl|lxc|lxd|podman|kube")


def checked(name: str, *, nodes: int = 2) -> str:
    """The name, if it is valid and leads to other hosts. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a network interface",
            hint="give its name, for example --interface eth0",
        )
    if nodes > 1 and name == "lo":
        raise UsageError(
            "lo is loopback: it reaches no other host",
            hint="list the interfaces with `ip -brief address`, then give one: --interface eth0",
        )
    return name


def interface_variables(name: str, *, backend: str = "gloo") -> dict[str, str]:
    """The variables of every rank; those of oneCCL only if the ranks use it."""
    variables = {"GLOO_SOCKET_IFNAME": name, "FI_TCP_IFACE": name}
    if backend == "ccl":
        variables["CCL_KVS_IFACE"] = name
    return variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The interface for a job over several hosts, and why it was chosen.

    ``name``: None if the user has to choose. ``addresses`` are those of the hosts on it, in their
    order. ``others`` are further interfaces on which all hosts have an address of one network, the
    best first, each with the addresses.
    """

    name: str | None
    why: str
    addresses: tuple[str, ...] = ()
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()


def choose_interface(
    hosts: Sequence[tuple[str, Network]], resolved: Mapping[str, str] | None = None
) -> Chosen:
    """The interface by which these hosts reach each other, by its common name.

    Args:
        hosts: names and networks of the hosts, the first one with rank 0.
        resolved: the address by which the other hosts know a host, if they were asked.

    An interface counts if it is up on every host and has an address there. Those whose addresses
    are in one network on all hosts come first, then those to which the names resolve, then those
    with a route out. Interfaces within a machine never count.
    """
    unknown = [name for name, network in hosts if network.links is None]
    if not hosts or unknown:
        of = ", ".join(unknown) or "no host"
        return Chosen(name=None, why=f"the interfaces of {of} are not known")
    usable: dict[str, dict[str, Link]] = {}
    for host, network in hosts:
        usable[host] = {link.name: link for link in network.links or () if is_usable(link)}
    common = _on_all(list(usable.values()))
    if not common:
        by_host = [f"{', '.join(links) or 'none'} on {host}" for host, links in usable.items()]
        listed = "; ".join(by_host)
        return Chosen(name=None, why=f"no interface has the same name on all hosts: {listed}")

    def worth(name: str) -> tuple[int, int, int, int]:
        by_name = by_route = 0
        for host, network in hosts:
            if name == link_of_name(host, network, resolved or {}):
                by_name += 1
            if name == network.default_link:
                by_route += 1
        slowest = min(link.mbits_per_second or 0 for link in common[name])
        return shared_network(common[name]) is not None, by_name, by_route, slowest

    ranked = sorted(common, key=worth, reverse=True)
    best = ranked[0]
    others = []
    for name in ranked[1:]:
        if shared_network(common[name]) is not None:
            others.append((name, tuple(map(plain_address, common[name]))))
    return Chosen(
        name=best,
        why=_why(worth(best), shared_network(common[best]), len(hosts)),
        addresses=tuple(map(plain_address, common[best])),
        others=tuple(others),
    )


def _on_all(usable: Sequence[Mapping[str, Link]]) -> dict[str, list[Link]]:
    """The interfaces whose name every host has, with those of each host."""
    common: dict[str, list[Link]] = {}
    for name in usable[0]:
        if all(name in links for links in usable):
            common[name] = [links[name] for links in usable]
    return common


def _why(worth: tuple[int, int, int, int], network: str | None, hosts: int) -> str:
    if network is not None:
        who = {1: "the host has", 2: "both hosts have"}.get(hosts, f"all {hosts} hosts have")
        return f"{who} an address of {network} on it"
    if worth[1] == hosts:
        return "the names of the hosts resolve to their addresses on it"
    return "it is up on all hosts; their addresses on it are of several networks"


def is_usable(link: Link) -> bool:
    """Whether other hosts may be reached by it: up, with an address, not within the machine."""
    return link.up is not False and bool(link.addresses) and not _WITHIN.match(link.name)


def is_loopback(address: str) -> bool:
    """Whether an address means the machine itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def link_with(network: Network, address: str) -> str | None:
    """The interface with this address; ``lo`` for all of 127.0.0.0/8."""
    if is_loopback(address):
        return "lo"
    for link in network.links or ():
        if address in _plain(link):
            return link.name
    return None


def link_of_name(host: str, network: Network, resolved: Mapping[str, str]) -> str | None:
    """The interface of a host's name: as others resolve it, by /etc/hosts, or by the name."""
    if host in resolved:
        addresses = [resolved[host]]
    else:
        addresses = [host, *(network.hostname_addresses or ())]
    for address in addresses:
        link = link_with(network, address)
        if link not in (None, "lo"):
            return link
    return None


def plain_address(link: Link) -> str:
    """The first address of an interface without its network; IPv4 before IPv6."""
    return min(_plain(link), key=lambda address: ":" in address)


def _plain(link: Link) -> list[str]:
    return [address.partition("/")[0] for address in link.addresses]


def shared_network(links: Sequence[Link]) -> str | None:
    """A network in which each of these interfaces has an address: ``10.0.0.0/24``."""
    others = [set(map(_network, link.addresses)) for link in links[1:]]
    for address in links[0].addresses:
        network = _network(address)
        if network is not None and all(network in networks for networks in others):
            return network
    return None


def _network(address: str) -> str | None:
    try:
        network = ipaddress.ip_interface(address).network
    except ValueError:
        return None
    if network.num_addresses == 1:
        return None
    return str(network)


def loopback_name(network: Network) -> str | None:
    """The loopback address that /etc/hosts gives to a host's own name, on any of its lines.

    gloo then announces it, and no other host can connect (``127.0.1.1`` on Debian). Its line does
    not matter: getaddrinfo puts the address of the smallest scope first (RFC 6724).
    """
    return next(filter(is_loopback, network.hostname_addresses or ()), None)
