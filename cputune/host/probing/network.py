"""The network of a machine: its links, their addresses, what its own name stands for.

Files alone are read, so that a recording, a container without iproute2 and a far machine
are read alike. ``/proc/net/fib_trie`` has the machine's IPv4 addresses, ``/proc/net/route``
the networks of the links, ``/proc/net/if_inet6`` both for IPv6
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
ADDRESSED = (ROUTES, TRIE, ADDRESSES_6)
"""Files that hold the addresses of a machine: no recording has them."""

LOOPBACK = "lo"
_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of linux/route.h
_OF_A_LINK = 0x20  # scope of fe80:: addresses in if_inet6, which mean nothing to others
_EVERYWHERE = IPv4Network("0.0.0.0/0")


@dataclass(frozen=True, slots=True)
class Route:
    """One row of ``/proc/net/route``: how a network is reached."""

    link: str
    network: IPv4Network
    gateway: bool
    metric: int


def read_network(look: Look) -> Network:
    """The interfaces, the default route, and the addresses of the own name in /etc/hosts."""
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
        look.not_known("network.hostname_addresses", look.why(HOSTS if host_name else HOST_NAME))
    table = look.text(ROUTES)
    routes = tuple(routes_of(table or ""))
    if (default := _outwards(routes)) is None:
        reason = look.why(ROUTES) if table is None else "there is no default route of IPv4"
        look.not_known("network.default_link", reason)
    return Network(
        interfaces=names or None,
        hostname_addresses=addresses,
        links=_links(look, names, routes),
        default_link=default,
        host_name=host_name,
    )


def _links(
    look: Look, names: tuple[str, ...], routes: tuple[Route, ...]
) -> tuple[Link, ...] | None:
    trie = look.text(TRIE)
    if not names or trie is None or look.text(ROUTES) is None:
        missing = TRIE if trie is None else ROUTES
        look.not_known("network.links", look.why(missing) if names else f"{LINKS} shows none")
        return None
    held: dict[str, list[str]] = {}
    for name, address in (
        *addresses_4(trie, routes),
        *addresses_6(look.text(ADDRESSES_6) or ""),
    ):
        held.setdefault(name, []).append(address)
    if "" in held:
        said = ", ".join(held[""])
        look.not_known("network.links.addresses", f"of which link {said} is cannot be told")
    return tuple(
        Link(
            name=name,
            up=_is_up(look.text(f"{LINKS}/{name}/operstate")),
            addresses=tuple(held.get(name, ())),
            # A driver that knows no speed says -1.
            mbits_per_second=count(look.text(f"{LINKS}/{name}/speed")) or None,
        )
        for name in names
    )


def routes_of(text: str) -> Iterator[Route]:
    """The rows of ``/proc/net/route`` that are in use; numbers in it are little-endian."""
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


_LOCAL = re.compile(r"\|--[ ]+([\d.]+)(?:\n[ ]+/\d+ \w+ \w+)*?\n[ ]+/32 host LOCAL")
"""A leaf of fib_trie that is an address of this machine."""


def addresses_4(trie: str, routes: tuple[Route, ...]) -> Iterator[tuple[str, str]]:
    """Links and their IPv4 addresses with networks, each once; "" for one that may be of several.

    An address belongs to the link whose own network holds it. Some clouds give a link a lone
    address without a network: it is of the link that leads out.
    """
    own = [route for route in routes if not route.gateway and route.network != _EVERYWHERE]
    for text in dict.fromkeys(_LOCAL.findall(trie)):
        try:
            address = IPv4Address(text)
        except ValueError:
            continue
        if address.is_loopback:
            yield LOOPBACK, f"{address}/8"
            continue
        holding = [route for route in own if address in route.network]
        length = max((route.network.prefixlen for route in holding), default=32)
        links = {route.link for route in holding if route.network.prefixlen == length}
        links = links or {_outwards(routes) or ""}
        yield links.pop() if len(links) == 1 else "", f"{address}/{length}"


def addresses_6(text: str) -> Iterator[tuple[str, str]]:
    """Links and their IPv6 addresses with networks, from ``/proc/net/if_inet6``."""
    for line in text.splitlines():
        fields = line.split()
        try:
            address, link = IPv6Address(bytes.fromhex(fields[0])), fields[5]
            length, scope = (int(fields[place], 16) for place in (2, 3))
        except (ValueError, IndexError):
            continue
        if scope != _OF_A_LINK:
            yield link, f"{address}/{length}"


def _outwards(routes: tuple[Route, ...]) -> str | None:
    """The interface of the default route."""
    ways = [route for route in routes if route.network == _EVERYWHERE]
    return min(ways, key=lambda route: route.metric).link if ways else None


def _is_up(state: str | None) -> bool | None:
    """Whether it carries, by its operational state (RFC 2863); lo and tunnels say "unknown"."""
    return None if state is None else state in ("up", "unknown")
