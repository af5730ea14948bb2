"""The network of a machine: its interfaces, their addresses, and those of its name.

Only files are read: ``/proc/net/fib_trie`` has the IPv4 addresses, ``/proc/net/route`` the
networks, ``/proc/net/if_inet6`` both for IPv6
(https://docs.kernel.org/networking/proc_net_tcp.html, net/ipv4/fib_trie.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from cputune.host.facts import Link, Network
from cputune.host.probing._look import Look, count, whole_number

LINKS = "/sys/class/net"
HOST_NAME = "/proc/sys/kernel/hostname"
HOSTS = "/etc/hosts"
ROUTES, TRIE = "/proc/net/route", "/proc/net/fib_trie"
ADDRESSES_6 = "/proc/net/if_inet6"
# Files with the addresses of a machine. Recordings leave them out.
ADDRESSED = (ROUTES, TRIE, ADDRESSES_6)

LOOPBACK = "lo"
_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of linux/route.h
_OF_A_LINK = 0x20  # scope of link-local fe80:: addresses in if_inet6
_EVERYWHERE = IPv4Network("0.0.0.0/0")


@dataclass(frozen=True, slots=True)
class Route:
    """One row of ``/proc/net/route``."""

    link: str
    network: IPv4Network
    gateway: bool
    metric: int


def read_network(look: Look) -> Network:
    """The interfaces, the default route, and the addresses of this machine's name in /etc/hosts."""
    names = look.names(LINKS)
    if not names:
        look.not_known("network.interfaces", f"{LINKS} shows none")
    host_name = look.text(HOST_NAME)
    hosts = look.text(HOSTS)
    addresses = None
    if host_name and hosts is not None:
        rows = [line.partition("#")[0].split() for line in hosts.splitlines()]
        addresses = tuple(row[0] for row in rows if host_name in row[1:])
    else:
        missing = HOST_NAME
        if host_name:
            missing = HOSTS
        look.not_known("network.hostname_addresses", look.why(missing))
    table = look.text(ROUTES)
    routes = tuple(routes_of(table or ""))
    default = _default_link(routes)
    if default is None:
        reason = "there is no default route of IPv4"
        if table is None:
            reason = look.why(ROUTES)
        look.not_known("network.default_link", reason)
    return Network(
        interfaces=names or None,
        hostname_addresses=addresses,
        links=_links(look, names, routes),
        default_link=default,
    )


def _links(
    look: Look, names: tuple[str, ...], routes: tuple[Route, ...]
) -> tuple[Link, ...] | None:
    trie = look.text(TRIE)
    if not names:
        look.not_known("network.links", f"{LINKS} shows none")
        return None
    for path, text in ((TRIE, trie), (ROUTES, look.text(ROUTES))):
        if text is None:
            look.not_known("network.links", look.why(path))
            return None
    addresses: dict[str, list[str]] = {}
    of_links = list(addresses_4(trie or "", routes))
    of_links += addresses_6(look.text(ADDRESSES_6) or "")
    for name, address in of_links:
        addresses.setdefault(name, []).append(address)
    if "" in addresses:
        unclear = ", ".join(addresses[""])
        look.not_known(
            "network.links.addresses", f"the interface of {unclear} cannot be determined"
        )
    links = []
    for name in names:
        link = Link(
            name=name,
            up=_is_up(look.text(f"{LINKS}/{name}/operstate")),
            addresses=tuple(addresses.get(name, ())),
            # A driver that does not know the speed reports -1.
            mbits_per_second=count(look.text(f"{LINKS}/{name}/speed")) or None,
        )
        links.append(link)
    return tuple(links)


def routes_of(text: str) -> Iterator[Route]:
    """The rows of ``/proc/net/route`` that are in use. Its numbers are little-endian."""
    for row in text.splitlines()[1:]:
        fields = row.split()
        try:
            address, gateway, mask = (
                IPv4Address(bytes.fromhex(fields[place])[::-1]) for place in (1, 2, 7)
            )
            network, flags = IPv4Network(f"{address}/{mask}"), int(fields[3], 16)
        except (ValueError, IndexError):
            continue
        if flags & _UP and not flags & _REJECT:
            metric = whole_number(fields[6]) or 0
            yield Route(link=fields[0], network=network, gateway=int(gateway) != 0, metric=metric)


# A leaf of fib_trie with an address of this machine.
_LOCAL = re.compile(r"\|--[ ]+([\d.]+)(?:\n[ ]+/\d+ \w+ \w+)*?\n[ ]+/32 host LOCAL")


def addresses_4(trie: str, routes: tuple[Route, ...]) -> Iterator[tuple[str, str]]:
    """Yield interfaces and their IPv4 addresses with networks. The interface is "" if it is not
    clear.

    An address belongs to the interface whose own network contains it. Some clouds give an interface
    an address without a network: it belongs to the interface of the default route.
    """
    direct = [route for route in routes if not route.gateway and route.network != _EVERYWHERE]
    for text in dict.fromkeys(_LOCAL.findall(trie)):
        try:
            address = IPv4Address(text)
        except ValueError:
            continue
        if address.is_loopback:
            yield LOOPBACK, f"{address}/8"
            continue
        holding = [route for route in direct if address in route.network]
        length = max((route.network.prefixlen for route in holding), default=32)
        links = {route.link for route in holding if route.network.prefixlen == length}
        links = links or {_default_link(routes) or ""}
        link = ""
        if len(links) == 1:
            link = links.pop()
        yield link, f"{address}/{length}"


def addresses_6(text: str) -> Iterator[tuple[str, str]]:
    """Yield interfaces and their IPv6 addresses with networks, from ``/proc/net/if_inet6``."""
    for line in text.splitlines():
        fields = line.split()
        try:
            address, link = IPv6Address(bytes.fromhex(fields[0])), fields[5]
            length, scope = (int(fields[place], 16) for place in (2, 3))
        except (ValueError, IndexError):
            continue
        if scope != _OF_A_LINK:
            yield link, f"{address}/{length}"


def _default_link(routes: tuple[Route, ...]) -> str | None:
    defaults = [route for route in routes if route.network == _EVERYWHERE]
    if not defaults:
        return None
    return min(defaults, key=lambda route: route.metric).link


def _is_up(state: str | None) -> bool | None:
    """Whether an operational state (RFC 2863) has a carrier. lo and tunnels report "unknown"."""
    if state is None:
        return None
    return state in ("up", "unknown")
