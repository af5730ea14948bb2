"""The interface that a launch on several nodes names, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cputune.carrier.interface import (
    checked,
    choose_interface,
    is_usable,
    link_with,
    loopback_name,
)
from cputune.errors import UsageError
from cputune.facts import Network
from cputune.nodes.named import Node

_OTHER = "--interface NAME takes another"


def interface_of(
    nodes: Sequence[Node],
    *,
    asked: str | None,
    measured: str | None = None,
    here: Network | None,
    seen: Mapping[str, Network],
    wanted: int,
) -> tuple[str | None, tuple[str, ...]]:
    """The interface's name, None where each layer may choose by itself; and notes.

    Args:
        nodes: the hosts of the launch, in their order.
        asked: the interface that the user has named: it is taken as it is.
        measured: the one on which these hosts were measured.
        here: the network of the machine that was looked at.
        seen: networks of the hosts as ``doctor --hosts`` saw them, by name.
        wanted: nodes of the launch.

    Raises UsageError for a name that is none, that leads nowhere, or that a host does not have.
    """
    own = next((node for node in nodes if here is not None and is_here(node, here)), None)
    if asked is not None:
        name = checked(asked, nodes=wanted)
        known = {own.name: here, **seen} if own is not None and here is not None else seen
        _refuse_missing(name, {node.name: known[node.name] for node in nodes if node.name in known})
        return name, ()
    if measured is not None:
        return measured, ()
    if wanted == 1 or not nodes:
        return None, ()
    if seen:
        return _from_hosts(nodes, seen)
    return (None, ()) if own is None or here is None else _from_here(own, here)


def _refuse_missing(asked: str, known: Mapping[str, Network]) -> None:
    """Raise UsageError where a host that is known has no such interface."""
    for host, network in known.items():
        if network.links is not None and network.link(asked) is None:
            there = ", ".join(link.name for link in network.links if is_usable(link))
            raise UsageError(
                f"{host} has no interface that is called {asked!r}",
                hint=f"it has {there}" if there else "none there leads to other hosts",
            )


def _from_hosts(
    nodes: Sequence[Node], seen: Mapping[str, Network]
) -> tuple[str | None, tuple[str, ...]]:
    """By what the doctor saw on each host."""
    unseen = [node.name for node in nodes if node.name not in seen]
    if len(unseen) == len(nodes):
        return None, (
            f"No interface is named: the doctor saw {', '.join(seen)}, and none of these hosts "
            "(--interface NAME).",
        )
    chosen = choose_interface([(node.name, seen[node.name]) for node in nodes if node.name in seen])
    if chosen.name is None:
        return None, (f"No interface is named: {chosen.why} (--interface NAME).",)
    but = f"; {', '.join(unseen)} was not seen" if unseen else ""
    return chosen.name, (f"Interface {chosen.name}: {chosen.why}{but} ({_OTHER}).",)


def _from_here(own: Node, here: Network) -> tuple[str | None, tuple[str, ...]]:
    """By this machine alone: only where its own name leads to itself, so that gloo would fail."""
    loopback = loopback_name(here)
    if loopback is None:
        return None, ()
    why = (
        f"/etc/hosts gives {own.name} its own name as {loopback}, which gloo would announce, and "
        "no other node can reach"
    )
    chosen = choose_interface([(own.name, here)])
    if chosen.name is None:
        return None, (f"{why}: name the interface between the nodes (--interface eth0).",)
    return chosen.name, (
        f"{why}. So {chosen.name} is named to every layer; that the other nodes call it so is not "
        f"known here (`cputune doctor --hosts`; {_OTHER}).",
    )


def is_here(node: Node, network: Network) -> bool:
    """Whether a host of the launch is the machine with this network: by its name, or an address."""
    name = network.host_name or ""
    if name and name != "localhost" and node.name.partition(".")[0] == name.partition(".")[0]:
        return True
    return link_with(network, node.name) not in (None, "lo")
