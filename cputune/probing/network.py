"""The network of a machine: its links, their addresses, what its own name stands for.

Files alone are read, so that a recording, a container without iproute2 and a far machine
are read alike. ``/proc/net/fib_trie`` has the machine's IPv4 addresses, ``/proc/net/route``
the networks of the links, ``/proc/net/if_inet6`` both for IPv6
(https://docs.kernel.org/networking/proc_net_tcp.html, net/ipv4/fib_trie.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from cputune.facts import Link, Network
from cputune.probing._look import Look, whole_number

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
    """The links, the way out, and what /etc/hosts makes of the machine's own name."""
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
    routes = tuple(routes_of(look.text(ROUTES) or ""))
    return Network(
        interfaces=names or None,
        hostname_addresses=addresses,
        links=_links(look, names, routes),
        default_link=_default_link(look, routes),
        host_name=host_name,
    )


def _links(
    look: Look, names: tuple[str, ...], routes: tuple[Route, ...]
) -> tuple[Link, ...] | None:
    texts = {path: look.text(path) for path in (TRIE, ROUTES)}
    missing = next((path for path, text in texts.items() if text is None), None)
    if not names or missing is not None:
        look.not_known(
            "network.links", f"{LINKS} shows none" if not names else look.why(str(missing))
        )
        return None
    found = dict(addresses_4(texts[TRIE] or "", routes))
    held = {name: [*found.get(name, ())] for name in names}
    for name, address in addresses_6(look.text(ADDRESSES_6) or ""):
        held.setdefault(name, []).append(address)
    if "" in found:
        said = ", ".join(found[""])
        look.not_known("network.links.addresses", f"of which link {said} is cannot be told")
    return tuple(
        Link(
            name=name,
            up=_is_up(look.text(f"{LINKS}/{name}/operstate")),
            addresses=tuple(held[name]),
            mbits_per_second=_positive(look.number(f"{LINKS}/{name}/speed")),
        )
        for name in names
    )


def routes_of(text: str) -> Iterator[Route]:
    """The rows of ``/proc/net/route`` that are in use; numbers in it are little-endian."""
    for row in text.splitlines()[1:]:
        fields = row.split()
        flags = whole_number(fields[3], base=16) if len(fields) > 7 else None
        if flags is None or not flags & _UP or flags & _REJECT:
            continue
        try:
            address, gateway, mask = (
                IPv4Address(bytes.fromhex(fields[place])[::-1]) for place in (1, 2, 7)
            )
            network = IPv4Network(f"{address}/{mask}")
        except ValueError:
            continue
        metric = whole_number(fields[6]) or 0
        yield Route(link=fields[0], network=network, gateway=int(gateway) != 0, metric=metric)


def own_addresses(text: str) -> tuple[IPv4Address, ...]:
    """The machine's IPv4 addresses, each once: the local leaves of ``/proc/net/fib_trie``."""
    found: dict[IPv4Address, None] = {}
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[-1]
        elif words == ["/32", "host", "LOCAL"]:
            try:
                found[IPv4Address(leaf)] = None
            except ValueError:
                continue
    return tuple(found)


def addresses_4(trie: str, routes: tuple[Route, ...]) -> Mapping[str, list[str]]:
    """The IPv4 addresses of each link, with their networks; those that may be of several: "".

    An address belongs to the link whose own network holds it. Some clouds give a link a lone
    address without a network: it is of the link that leads out.
    """
    found: dict[str, list[str]] = {}
    own = [route for route in routes if not route.gateway and route.network != _EVERYWHERE]
    for address in own_addresses(trie):
        if address.is_loopback:
            found.setdefault(LOOPBACK, []).append(f"{address}/8")
            continue
        holding = [route for route in own if address in route.network]
        length = max((route.network.prefixlen for route in holding), default=32)
        links = {route.link for route in holding if route.network.prefixlen == length}
        outwards = _outwards(routes)
        if not links and outwards is not None:
            links = {outwards}
        found.setdefault(links.pop() if len(links) == 1 else "", []).append(f"{address}/{length}")
    return found


def addresses_6(text: str) -> Iterator[tuple[str, str]]:
    """Links and their IPv6 addresses with networks, from ``/proc/net/if_inet6``."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 6:
            continue
        length, scope = (whole_number(fields[place], base=16) for place in (2, 3))
        try:
            address = IPv6Address(bytes.fromhex(fields[0]))
        except ValueError:
            continue
        if length is not None and scope != _OF_A_LINK:
            yield fields[5], f"{address}/{length}"


def _outwards(routes: tuple[Route, ...]) -> str | None:
    """The link of the default route."""
    ways = [route for route in routes if route.network == _EVERYWHERE]
    return min(ways, key=lambda route: route.metric).link if ways else None


def _default_link(look: Look, routes: tuple[Route, ...]) -> str | None:
    link = _outwards(routes)
    if link is None:
        known = look.text(ROUTES) is not None
        reason = "there is no default route of IPv4" if known else look.why(ROUTES)
        look.not_known("network.default_link", reason)
    return link


def _is_up(state: str | None) -> bool | None:
    """By the operational state (RFC 2863); lo and tunnels do not know theirs, and carry."""
    return None if state is None else state in ("up", "unknown")


def _positive(number: int | None) -> int | None:
    """Drivers that know no speed say -1."""
    return number if number is not None and number > 0 else None
