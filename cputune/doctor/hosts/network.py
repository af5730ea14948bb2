"""What hosts make of each other's names, interfaces and ports.

Names were asked for by the probe (``remote/sent/probe.py``). ``doctor/looks/meet.py`` tries the
ports, with 64 KiB through each connection: a path that carries less than the interfaces say lets
``connect`` through and stops gloo for ever.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cputune.carrier.interface import (
    Chosen,
    choose_interface,
    is_loopback,
    link_with,
)
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.documents import record_of
from cputune.remote.ask import ask_each, script_text
from cputune.remote.named import Node
from cputune.remote.probed import Probed
from cputune.remote.reach import Reach

PORTS_SECONDS = 6.0
START_SECONDS = 10.0
"""Until a Python answers on a busy host."""

MASTER_PORT = 29500
"""What torchrun takes where nobody says another."""

EPHEMERAL = (33000, 60000)
"""Ports as gloo gets them from the kernel (net.ipv4.ip_local_port_range)."""

STUCK = "64 KiB"
"""How meet.py begins to say that it is connected, and that no more gets through."""


@fault("hosts-not-asked", Severity.WARNING)
def not_asked() -> None:
    """A look at the network between the hosts could not be taken

    What is not known is not said to be in order: a script that was sent to this host
    did not end, or did not answer.

    Remedy: Mend what the host says, and ask again.

    Source: https://docs.python.org/3/library/socket.html
    """


@fault("hosts-name-unknown", Severity.ERROR)
def name_unknown() -> None:
    """A host does not know the name of another

    Symptom: "Name or service not known", or a launcher that never starts on a host.

    Cause: MASTER_ADDR and the host files hold names, and each host looks them up by itself. Every
    host was asked for the names of all the others.

    Remedy: Give all hosts the same names in /etc/hosts or DNS, or name them by their addresses.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """


@fault("hosts-name-elsewhere", Severity.ERROR)
def name_elsewhere() -> None:
    """A name leads to another machine than the one that answers to it

    Symptom: ranks wait for the first one for ever, or reach a machine that is not theirs.

    Cause: an old entry in /etc/hosts. The addresses to which a name resolves on one host were held
    against the addresses that the host of this name has.

    Remedy: Mend the entry in /etc/hosts or DNS of the host that is named.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """


@fault("hosts-gloo-interface", Severity.ERROR)
def gloo_interface() -> None:
    """gloo would listen where the other hosts cannot reach it

    Symptom: "connectFullMesh failed", "Connection refused", and mpirun does not end.

    Cause: gloo listens on the first address of its host's own name, and Debian's /etc/hosts gives
    that as 127.0.1.1. Where hosts have several networks, names may also lead to different ones.
    Every host was asked what its own name is on itself, as gloo asks.

    Remedy: Name one interface to every layer: `cputune emit` and `tune` do by --interface.

    Source: aws-samples/aws-do-eks#50
    """


@fault("hosts-interface", Severity.WARNING)
def interface_unnamed() -> None:
    """No interface has the same name on all hosts

    Symptom: "Unable to find address for: eth0" on some hosts.

    Cause: a launch tells one name to all ranks (GLOO_SOCKET_IFNAME and its like), and the hosts
    call their interfaces differently.

    Remedy: Give the interface between the hosts one name (systemd.link(5)), and say --interface.

    Source: https://www.freedesktop.org/software/systemd/man/latest/systemd.link.html
    """


@fault("hosts-port-taken", Severity.ERROR)
def port_taken() -> None:
    """The port on which the ranks meet is not free on the first host

    Symptom: "Address already in use" as the job starts.

    Cause: another job, or one that was not ended, listens on this port.

    Remedy: Set PORT (torchrun) or MASTER_PORT to another one, the same for all.

    Source: https://pytorch.org/docs/stable/elastic/run.html
    """


@fault("hosts-master-port", Severity.ERROR)
def master_blocked() -> None:
    """MASTER_ADDR and MASTER_PORT are not reached from every host

    Symptom: the job waits, and ends after half an hour with a timeout of the store.

    Cause: a firewall on the first host or between them, or a name that leads elsewhere. A listener
    was put on this port of the first host, and every other one has tried to connect to it.

    Remedy: Open the port between the hosts (nft, firewalld, security groups), or take another.

    Source: https://pytorch.org/docs/stable/distributed.html#tcp-initialization
    """


@fault("hosts-ports-blocked", Severity.ERROR)
def mesh_blocked() -> None:
    """Hosts do not reach the ports that gloo's ranks listen on

    Symptom: "connectFullMesh failed", although MASTER_PORT is open.

    Cause: each rank listens on a free port and connects to all others; a firewall that opens
    MASTER_PORT alone does not suffice. A listener was put on such a port of each host, and the
    others have tried to connect to it.

    Remedy: Allow all TCP ports between the hosts of a job: gloo takes free ones, for each pair.

    Source: https://github.com/pytorch/gloo/blob/main/docs/rendezvous.md
    """


@fault("hosts-large-messages", Severity.ERROR)
def large_blocked() -> None:
    """Hosts connect, and larger messages do not get through

    Symptom: ranks meet, and the first all-reduce never ends.

    Cause: an interface with an MTU of 9000 behind a switch that carries 1500 (jumbo frames), or a
    firewall that drops "fragmentation needed". Small packets pass, so connect works. 64 KiB were
    sent from each host to each other one, over every interface that ranks may talk on.

    Remedy: Give the interfaces the MTU that the switches between them carry (ip link set DEV mtu
    1500), or let ranks talk on another interface (--interface).

    Source: https://www.rfc-editor.org/rfc/rfc4821
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPorts:
    """The answer of ``looks/meet.py``: why a port could not be listened on, or not be reached."""

    closed: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, str]


def network_between(hosts: Sequence[Probed], reach: Reach) -> Iterator[Finding]:
    """What the hosts make of each other's names, and whether they reach each other's ports.

    The first host is the one with rank 0. Takes some seconds, however many hosts there are.
    """
    yield from judge_names(hosts)
    yield from judge_interface(hosts)
    yield from judge_ports(ask_ports(hosts, reach, listening(hosts)))


def judge_names(hosts: Sequence[Probed]) -> Iterator[Finding]:
    """Names that some host cannot resolve, and those that lead to no address of their host."""
    networks = {one.name: one.facts.network for one in hosts}
    failing: dict[str, dict[str, str]] = {}
    for one in hosts:
        for name, found in one.names.items():
            links = networks[name].links if name in networks else None
            if isinstance(found, str):
                failing.setdefault(name, {})[one.name] = found
            elif name == one.name or links is None or not found:
                continue
            elif link_with(networks[name], found[0]) in (None, "lo"):
                held = [address.partition("/")[0] for link in links for address in link.addresses]
                own = ", ".join(address for address in held if not is_loopback(address))
                yield name_elsewhere.finding(
                    f"on {one.name} {name} is {found[0]}; {name} itself has {own or 'none'}"
                )
    for name, why in failing.items():
        said = next(iter(why.values()))
        yield name_unknown.finding(f"{name} is not known on {', '.join(why)}: {said}")


def chosen_interface(hosts: Sequence[Probed]) -> Chosen:
    """The interface for all layers, by where the others find each host."""
    resolved = {
        name: found[0]
        for one in reversed(hosts)  # the first that knows it counts
        for name, found in one.names.items()
        if name != one.name and found and not isinstance(found, str)
    }
    return choose_interface([(one.name, one.facts.network) for one in hosts], resolved)


def listening(hosts: Sequence[Probed]) -> dict[str, dict[str, str]]:
    """Where ranks may listen, by interface and host: on those that they can be told, the best one
    first; else, by an empty name, where gloo listens by itself.
    """
    chosen = chosen_interface(hosts)
    if chosen.name is None:
        return {"": {one.name: one.own for one in hosts if one.own is not None}}
    names = [one.name for one in hosts]
    ways = ((chosen.name, chosen.addresses), *chosen.others)
    return {name: dict(zip(names, addresses, strict=True)) for name, addresses in ways}


def judge_interface(hosts: Sequence[Probed]) -> Iterator[Finding]:
    """Where gloo would listen on loopback, and where no interface can be named to all hosts."""
    known = [one for one in hosts if one.facts.network.links is not None]
    chosen = chosen_interface(hosts)
    inside = [
        f"{one.name} as {one.own or '127.0.0.1'}"
        for one in known
        if not one.facts.environment.get("GLOO_SOCKET_IFNAME")
        and link_with(one.facts.network, one.own or "") in (None, "lo")
    ]
    if inside:
        yield gloo_interface.finding(
            f"own names resolve to loopback: {', '.join(inside)}",
            command=chosen.name and f"export GLOO_SOCKET_IFNAME={shlex.quote(chosen.name)}",
        )
    if len(known) == len(hosts) > 1 and chosen.name is None:
        yield interface_unnamed.finding(chosen.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Which ports were tried, and what each host reports of them.

    ``places`` are address and port by host and interface. ``answers`` are those of ``meet.py``: the
    name of a place there is ``HOST INTERFACE``, and "" for the port of the first host. ``silent``
    says of each other host why it gave no answer.
    """

    first: str
    master_port: int
    places: Mapping[tuple[str, str], tuple[str, int]]
    answers: Mapping[str, OfPorts]
    silent: Mapping[str, str] = field(default_factory=dict)

    def failing(self, place: str) -> dict[str, str]:
        """Which hosts do not reach a place, and why."""
        return {
            name: why for name, told in self.answers.items() if (why := told.reached.get(place))
        }

    def carries(self, interface: str) -> bool:
        """Whether all hosts reach each other over the interface, with large messages too."""
        on = [host for host, by in self.places if by == interface]
        return not self.silent and not any(self.failing(f"{host} {interface}") for host in on)


def ask_ports(
    hosts: Sequence[Probed],
    reach: Reach,
    ways: Mapping[str, Mapping[str, str]],
    *,
    master_port: int = MASTER_PORT,
    seconds: float = PORTS_SECONDS,
) -> Reached:
    """Whether the first host's port is reached by its name, and each host's port by the others.

    ``ways`` are the addresses on which ranks may listen: of each interface that of each host.
    """
    first, others = hosts[0].name, len(hosts) - 1
    # Each port is used once, and none is the port on which ranks meet.
    free = iter(random.sample([p for p in range(*EPHEMERAL) if p != master_port], 4096))
    places = {
        (name, interface): (address, next(free))
        for interface, on in ways.items()
        for name, address in on.items()
    }

    def question(node: Node) -> dict[str, object]:
        own = [place for (name, _), place in places.items() if name == node.name]
        listen = [(*place, others) for place in own]
        call = [(f"{n} {by}", *place) for (n, by), place in places.items() if n != node.name]
        if node.name == first:
            listen.append(("", master_port, others))
        else:
            call.append(("", first, master_port))
        return {"listen": listen, "reach": call, "seconds": seconds}

    script = script_text("meet.py", "cputune.doctor.looks")
    nodes = [one.node for one in hosts]
    answers: dict[str, OfPorts] = {}
    silent: dict[str, str] = {}
    for answer in ask_each(nodes, reach, script, question, seconds + START_SECONDS):
        read = answer.read(partial(record_of, OfPorts))
        if isinstance(read, OfPorts):
            answers[answer.node.name] = read
        elif read.unreachable is not None:
            silent[answer.node.name] = read.unreachable.reason
    return Reached(
        first=first, master_port=master_port, places=places, answers=answers, silent=silent
    )


def judge_ports(reached: Reached) -> Iterator[Finding]:
    """The findings that follow from the answers, one for each port that is not reached."""
    for name, why in reached.silent.items():
        yield not_asked.finding(f"the ports of {name}: {why}")
    first, port = reached.first, str(reached.master_port)
    closed = {name: told.closed for name, told in reached.answers.items()}
    if (taken := closed.get(first, {}).get(port)) is not None:
        yield port_taken.finding(f"port {port} on {first}: {taken}")
    elif failing := reached.failing(""):
        yield master_blocked.finding(_not_reached(f"{first}:{port}", failing))
    stuck: dict[str, list[str]] = {}
    for (name, interface), (address, number) in reached.places.items():
        if str(number) in closed.get(name, {}):
            continue  # nobody reaches a host that could not listen
        others = reached.failing(f"{name} {interface}")
        for asker in [asker for asker, why in others.items() if why.startswith(STUCK)]:
            stuck.setdefault(interface, []).append(f"{asker} to {name}")
            del others[asker]
        if others:
            yield mesh_blocked.finding(_not_reached(f"{address}:{number} of {name}", others))
    works = next((by for _, by in reached.places if by and reached.carries(by)), None)
    for interface, pairs in stuck.items():
        yield large_blocked.finding(
            f"{interface}: 64 KiB do not get from {', '.join(pairs)}"
            + (f"; {works} carries them" if works else ""),
            command=works and f"export GLOO_SOCKET_IFNAME={shlex.quote(works)}",
        )


def _not_reached(where: str, failing: Mapping[str, str]) -> str:
    why = " / ".join(dict.fromkeys(failing.values()))
    return f"{where} is not reached from {', '.join(failing)}: {why}"


CHECKS = checks_of(__name__)
