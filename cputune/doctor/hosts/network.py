"""What hosts make of each other's names, interfaces and ports: asked there, judged here.

``Named`` is what a host says of names (``doctor/looks/names.py``); ``doctor/looks/meet.py`` tries
the ports, with 64 KiB through each connection: a path that carries less than the interfaces say
lets ``connect`` through and stops gloo for ever.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from msgspec import Meta

from cputune.carrier.interface import (
    Chosen,
    choose_interface,
    gloo_link,
    interface_variables,
    is_loopback,
    libfabric_link,
    link_with,
    shared_network,
)
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.documents import record_of
from cputune.facts import HostFacts, Network
from cputune.remote.ask import ask_each, script_text
from cputune.remote.named import Node
from cputune.remote.reach import Reach
from cputune.stack import oneccl_module, versions_of


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


@fault("hosts-libfabric-interface", Severity.WARNING)
def libfabric_interface() -> None:
    """libfabric would take interfaces that do not belong together

    Symptom: MPI or oneCCL hangs at its start, or is slow, on hosts with several networks.

    Cause: the tcp provider of libfabric takes the fastest interface that is up, bridges of
    containers too, and each host chooses for itself. FI_TCP_IFACE names one.

    Remedy: Name one interface to every layer: `cputune emit` and `tune` do by --interface.

    Source: https://ofiwg.github.io/libfabric/main/man/fi_tcp.7.html
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


NAMES_SECONDS = 20.0
PORTS_SECONDS = 6.0
START_SECONDS = 10.0
"""Until a Python answers on a busy host."""

MASTER_PORT = 29500
"""What torchrun takes where nobody says another."""

MOST_PAIRS = 32
"""Hosts of which each reaches each other one. Of more, each reaches the first and some neighbours:
gloo connects all ranks with all, but 1,000 hosts are half a million pairs."""

NEIGHBOURS = 8
EPHEMERAL = (33000, 60000)
"""Ports as gloo gets them from the kernel (net.ipv4.ip_local_port_range)."""


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


STUCK = "64 KiB"
"""How meet.py begins to say that it is connected, and that no more gets through."""


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
class OfNames:
    """The answer of ``looks/names.py``."""

    own: str | None
    names: Mapping[str, tuple[str, ...] | str]
    mtu: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPorts:
    """The answer of ``looks/meet.py``."""

    closed: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAllReduce:
    """What a rank of ``looks/all_reduce.py`` answers: the seconds of each of ``SIZES``."""

    seconds: tuple[Seconds, Seconds, Seconds]


Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Told = TypeVar("Told")


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
    mtu: Mapping[str, int] = field(default_factory=dict)
    """The MTU of each interface, in bytes."""


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
            yield name_unknown.finding(f"{name} is not known on {', '.join(failing)}: {said}")


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
                yield name_elsewhere.finding(
                    f"on {one.host} {name} is {addresses[0]}; {name} itself has {own or 'none'}"
                )


def gloo_interfaces(hosts: Sequence[Named]) -> Iterator[Finding]:
    """Where gloo would listen on each host, where that is loopback or not one network."""
    known = [one for one in hosts if one.network.links is not None]
    taken = {one.host: gloo_link(one.network, one.own, one.told) or "lo" for one in known}
    inside = [one for one in known if taken[one.host] == "lo"]
    if inside:
        said = ", ".join(f"{one.host} as {one.own or '127.0.0.1'}" for one in inside)
        yield gloo_interface.finding(
            f"own names resolve to loopback: {said}", command=_command(hosts, "GLOO_SOCKET_IFNAME")
        )
    elif (apart := _apart(known, taken)) is not None:
        yield gloo_interface.finding(
            apart,
            command=_command(hosts, "GLOO_SOCKET_IFNAME"),
            severity=Severity.WARNING,
            title="gloo would listen in different networks",
        )


def libfabric_interfaces(hosts: Sequence[Named]) -> Iterator[Finding]:
    """What libfabric would take on each host, where those are not of one network."""
    known = [one for one in hosts if one.network.links is not None]
    taken = {one.host: link for one in known if (link := libfabric_link(one.network, one.fabric))}
    if (apart := _apart(known, taken)) is not None:
        yield libfabric_interface.finding(apart, command=_command(hosts, "FI_TCP_IFACE"))


def no_interface(hosts: Sequence[Named]) -> Iterator[Finding]:
    """Where no interface can be named to all hosts."""
    known = all(one.network.links is not None for one in hosts)
    chosen = chosen_interface(hosts)
    if known and len(hosts) > 1 and chosen.name is None:
        yield interface_unnamed.finding(chosen.why)


def network_findings(hosts: Sequence[Named]) -> Iterator[Finding]:
    """All findings about names and interfaces."""
    yield from names_unknown(hosts)
    yield from names_elsewhere(hosts)
    yield from gloo_interfaces(hosts)
    yield from libfabric_interfaces(hosts)
    yield from no_interface(hosts)


def _apart(hosts: Sequence[Named], taken: Mapping[str, str]) -> str | None:
    """``node1 takes eth0 (10.0.0.1/24); node2 takes ib0``; None where it is one network, or it is
    not known.
    """
    found = {one.host: one.network.link(taken.get(one.host, "")) for one in hosts}
    links = {host: link for host, link in found.items() if link is not None}
    if len(links) < 2 or shared_network(list(links.values())) is not None:
        return None
    return "; ".join(
        f"{host} takes {link.name}{f' ({link.addresses[0]})' if link.addresses else ''}"
        for host, link in links.items()
    )


def _command(hosts: Sequence[Named], variable: str) -> str | None:
    name = chosen_interface(hosts).name
    return None if name is None else f"export {variable}={shlex.quote(name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHost:
    """A host that answers, and what is known of it; ``python`` is what trains there."""

    node: Node
    facts: HostFacts
    python: str | None = None

    @property
    def name(self) -> str:
        """The name by which the host was asked for."""
        return self.node.name


def side_by_side(
    hosts: Sequence[KnownHost],
    reach: Reach,
    script: str,
    kind: type[Told],
    question: Callable[[KnownHost], Mapping[str, object]],
    seconds: float,
    *,
    trains: bool = False,
    sourced: Callable[[KnownHost], str | None] = lambda one: None,
) -> tuple[dict[str, Told], tuple[Finding, ...]]:
    """The answers of a script by host, all asked at once; a finding for each that has none.

    An answer that is no ``kind`` is none, and its host's finding.

    ``trains``: the script needs the Python that trains. ``sourced``: a file of shell that brings
    the libraries it needs.
    """
    known = {one.name: one for one in hosts}
    answers = ask_each(
        [one.node for one in hosts],
        reach,
        script_text(script, "cputune.doctor.looks"),
        lambda node: question(known[node.name]),
        seconds,
        pythons=lambda node: tuple(filter(None, [known[node.name].python if trains else None])),
        sourced=lambda node: sourced(known[node.name]),
    )
    told: dict[str, Told] = {}
    silent: dict[str, str] = {}
    for one in answers:
        if one.unreachable is not None:
            silent[one.node.name] = one.unreachable.reason
            continue
        try:
            told[one.node.name] = record_of(kind, one.told)
        except ValueError as error:
            silent[one.node.name] = f"what it answers makes no sense ({error})"
    what = script.removesuffix(".py")
    return told, tuple(not_asked.finding(f"{what} on {n}: {why}") for n, why in silent.items())


def ask_names(
    hosts: Sequence[KnownHost], reach: Reach
) -> tuple[tuple[Named, ...], tuple[Finding, ...]]:
    """What each host makes of all names; findings where one did not answer."""
    names = [one.name for one in hosts]
    answers, silent = side_by_side(
        hosts, reach, "names.py", OfNames, lambda one: {"names": names}, NAMES_SECONDS
    )
    found = tuple(
        Named(
            host=one.name,
            network=one.facts.network,
            own=told.own,
            names=told.names,
            told=one.facts.environment.get("GLOO_SOCKET_IFNAME"),
            fabric=one.facts.environment.get("FI_TCP_IFACE"),
            mtu=told.mtu,
        )
        for one in hosts
        if (told := answers.get(one.name)) is not None
    )
    return found, silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Which ports were tried, and what each host reports of them.

    ``places`` are address and port by host and interface. ``answers`` are those of ``meet.py``: the
    name of a place there is ``HOST interface_unnamed``, and "" for the port of the first host.
    """

    first: str
    master_port: int
    places: Mapping[tuple[str, str], tuple[str, int]]
    answers: Mapping[str, OfPorts]

    def failing(self, host: str, interface: str) -> dict[str, str]:
        """Which hosts do not reach a host over an interface, and why."""
        key = f"{host} {interface}" if host else ""
        reached = {name: told.reached.get(key) for name, told in self.answers.items()}
        return {name: str(why) for name, why in reached.items() if why}

    def carries(self, interface: str) -> bool:
        """Whether all hosts reach each other over the interface, with large messages too."""
        return not any(
            self.failing(host, there) for host, there in self.places if there == interface
        )


def ask_ports(
    hosts: Sequence[KnownHost],
    reach: Reach,
    addresses: Mapping[str, Mapping[str, str]],
    *,
    master_port: int = MASTER_PORT,
    seconds: float = PORTS_SECONDS,
) -> tuple[Reached, tuple[Finding, ...]]:
    """Whether the first host's port is reached by its name, and each host's port by the others.

    ``addresses`` are those on which ranks may listen: of each interface that of each host. Findings
    are of hosts that did not answer.
    """
    first = hosts[0].name
    # Each port is used once, and none is the port on which ranks meet.
    free = iter(random.sample([p for p in range(*EPHEMERAL) if p != master_port], 4096))
    places = {
        (name, interface): (address, next(free))
        for interface, on in addresses.items()
        for name, address in on.items()
    }
    goals = {one.name: _goals([h.name for h in hosts], one.name) for one in hosts}
    callers = {one.name: sum(one.name in goal for goal in goals.values()) for one in hosts}

    def question(one: KnownHost) -> dict[str, object]:
        listen: list[tuple[str, int, int]] = []
        call = [
            (f"{name} {interface}", *place)
            for (name, interface), place in places.items()
            if name in goals[one.name]
        ]
        if one.name == first:
            listen.append(("", master_port, len(hosts) - 1))
        else:
            call.append(("", first, master_port))
        listen += [
            (*place, callers[one.name]) for (name, _), place in places.items() if name == one.name
        ]
        return {"listen": listen, "reach": call, "seconds": seconds}

    most = seconds + START_SECONDS
    answers, silent = side_by_side(hosts, reach, "meet.py", OfPorts, question, most)
    return Reached(first=first, master_port=master_port, places=places, answers=answers), silent


def judge_ports(reached: Reached, mtu: Mapping[str, Mapping[str, int]] = {}) -> Iterator[Finding]:
    """The findings that follow from the answers, one for each port that is not reached.

    ``mtu`` are those of the interfaces, by host.
    """
    first, master_port = reached.first, reached.master_port
    closed = {name: told.closed for name, told in reached.answers.items()}
    taken = closed.get(first, {}).get(str(master_port))
    if taken is not None:
        yield port_taken.finding(f"port {master_port} on {first}: {taken}")
    elif failing := reached.failing("", ""):
        yield master_blocked.finding(_not_reached(f"{first}:{master_port}", failing))
    small: dict[str, list[str]] = {}
    for (name, interface), (address, port) in reached.places.items():
        failing = reached.failing(name, interface)
        if not failing or str(port) in closed.get(name, {}):
            continue  # nobody reaches a host that could not listen
        stuck = [asker for asker, why in failing.items() if why.startswith(STUCK)]
        small.setdefault(interface, []).extend(f"{asker} to {name}" for asker in stuck)
        others = {asker: why for asker, why in failing.items() if asker not in stuck}
        if others:
            yield mesh_blocked.finding(_not_reached(f"{address}:{port} of {name}", others))
    for interface, pairs in small.items():
        if not pairs:
            continue
        sizes = {name: size for name, of in mtu.items() if (size := of.get(interface))}
        told = ", ".join(f"{size} on {name}" for name, size in sizes.items())
        works = [there for _, there in reached.places if reached.carries(there)]
        beside = f"; {works[0]} carries them" if works else ""
        yield large_blocked.finding(
            f"{interface}: 64 KiB do not get from {', '.join(dict.fromkeys(pairs))}"
            + (f" (MTU {told})" if told else "")
            + beside,
            command=f"export GLOO_SOCKET_IFNAME={shlex.quote(works[0])}" if works else None,
        )


def _not_reached(where: str, failing: Mapping[str, str]) -> str:
    why = " / ".join(dict.fromkeys(failing.values()))
    return f"{where} is not reached from {', '.join(failing)}: {why}"


def _goals(names: Sequence[str], own: str) -> list[str]:
    """The hosts that one host tries to reach: all others, of many some neighbours."""
    place = names.index(own)
    others = [*names[place + 1 :], *names[:place]]
    return others[:NEIGHBOURS] if len(names) > MOST_PAIRS else others


def network_between(
    hosts: Sequence[KnownHost], reach: Reach, *, deep: bool = False
) -> Iterator[Finding]:
    """What the hosts make of each other's names, and whether they reach each other's ports.

    The first host is the one with rank 0. Takes some seconds, however many hosts there are. A host
    that falls silent is a finding once, and asked no more. ``deep``: then real ranks on those that
    are left add up DDP's buckets, over the interface of all layers.
    """
    names, silent = ask_names(hosts, reach)
    yield from silent
    yield from network_findings(names)
    ways = listening(names)
    left = [one for one in hosts if one.name in {seen.host for seen in names}]
    if len(left) < 2:
        return
    reached, silent = ask_ports(left, reach, ways)
    yield from silent
    yield from judge_ports(reached, {one.host: one.mtu for one in names})
    left = [one for one in left if one.name in reached.answers]
    if deep and len(left) > 1:
        told, interface = next(iter(ways.values())), chosen_interface(names).name
        yield from ask_all_reduce(left, reach, told, interface=interface, master_port=MASTER_PORT)


def listening(names: Sequence[Named]) -> dict[str, dict[str, str]]:
    """Where ranks may listen, by interface and host: on those that they can be told, the best one
    first; else where gloo listens by itself.
    """
    chosen = chosen_interface(names)
    hosts = [one.host for one in names]
    if chosen.name is None:
        return {"": {one.host: one.own for one in names if one.own is not None}}
    ways = ((chosen.name, chosen.addresses), *chosen.others)
    return {name: dict(zip(hosts, addresses, strict=True)) for name, addresses in ways}


ALL_REDUCE_SECONDS = 120.0
SIZES = (4, 1 << 20, 25 << 20)
"""Bytes: one number, for the latency; the first bucket of DDP, and the others (torch.nn.parallel:
``dist._DEFAULT_FIRST_BUCKET_BYTES``, ``bucket_cap_mb=25``)."""


@fault("hosts-all-reduce", Severity.ADVICE)
def all_reduce_took() -> None:
    """How long an all-reduce takes between the hosts

    One rank on each host added up one number, DDP's first bucket (1 MiB) and one of its others (25
    MiB), some times each. The median of the slowest rank counts. A model's gradients pass once in
    every step: its bytes over the bandwidth is what the network takes at least, as far as it is not
    hidden behind the backward pass.

    Remedy: Hold it against a step: `cputune tune` over the hosts finds whether more are worth it.

    Source: https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """


@fault("hosts-all-reduce-fails", Severity.ERROR)
def all_reduce_fails() -> None:
    """Ranks on the hosts cannot add up a tensor

    Symptom: the training would fail, or wait, in the same way.

    One real rank of torch.distributed was started on each host, as a launch does.

    Remedy: Mend the findings above it first; then look at what the ranks have said.

    Source: https://pytorch.org/docs/stable/distributed.html
    """


WITHOUT_LAUNCHER = {
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_LOCAL_RANK": "0",
    "CCL_LOCAL_SIZE": "1",
}
"""oneCCL's ranks, where no MPI starts them (CCL_PROCESS_LAUNCHER in its documentation)."""


def ask_all_reduce(
    hosts: Sequence[KnownHost],
    reach: Reach,
    addresses: Mapping[str, str],
    *,
    interface: str | None,
    master_port: int,
) -> Iterator[Finding]:
    """Let one rank on each host add up tensors: over gloo; then over ccl, where all have it.

    Only hosts with torch take part. ``addresses`` are those on which ranks listen, by name.
    """
    with_torch = [one for one in hosts if one.facts.package("torch") is not None]
    if len(with_torch) < 2:
        yield not_asked.finding("all-reduce: fewer than two hosts have torch")
        return
    first = with_torch[0].name
    meet = {"MASTER_ADDR": addresses.get(first, first), "MASTER_PORT": str(master_port)}
    yield (found := _added_up(with_torch, reach, "gloo", meet, interface))
    if found.code == all_reduce_took.code and all(
        one.facts.package("oneccl_bind_pt") is not None for one in with_torch
    ):
        yield _added_up(with_torch, reach, "ccl", meet, interface)


def _added_up(
    hosts: Sequence[KnownHost],
    reach: Reach,
    backend: str,
    meet: Mapping[str, str],
    interface: str | None,
) -> Finding:
    """How long the slowest rank took, or why there is no figure."""
    told = {} if interface is None else interface_variables(interface, backend=backend)
    if backend == "ccl":
        told.update(WITHOUT_LAUNCHER)
    ranks = {one.name: str(rank) for rank, one in enumerate(hosts)}

    def question(one: KnownHost) -> dict[str, object]:
        numbers = {"RANK": ranks[one.name], "WORLD_SIZE": str(len(hosts))}
        return {
            "backend": backend,
            "module": oneccl_module(versions_of(one.facts)) if backend == "ccl" else None,
            "sizes": SIZES,
            "seconds": ALL_REDUCE_SECONDS / 2,
            "variables": {**meet, **numbers, **told},
        }

    answers, silent = side_by_side(
        hosts,
        reach,
        "all_reduce.py",
        OfAllReduce,
        question,
        ALL_REDUCE_SECONDS,
        trains=True,
        sourced=lambda one: setvars(one) if backend == "ccl" else None,
    )
    if silent:
        said = "; ".join(dict.fromkeys(finding.evidence for finding in silent))
        return all_reduce_fails.finding(f"{backend}: {said}")
    took = zip(*(told.seconds for told in answers.values()), strict=True)
    slowest = dict(zip(SIZES, map(max, took), strict=True))
    return all_reduce_took.finding(describe_all_reduce(backend, slowest, len(hosts), interface))


def setvars(one: KnownHost) -> str:
    """The file of shell that sets oneCCL up on a host; it lies inside the wheel of the bindings."""
    package = one.facts.package("oneccl_bind_pt")
    folder = (package and package.location) or "."
    return f"{folder}/{oneccl_module(versions_of(one.facts))}/env/setvars.sh"


def describe_all_reduce(
    backend: str, seconds: Mapping[int, float], ranks: int, interface: str | None
) -> str:
    """``gloo, 2 ranks over eth0: 0.21 ms for 4 bytes; 1 MiB in 1.3 ms (0.81 GB/s); …``."""
    latency, *rest = sorted(seconds)
    parts = [f"{1000 * seconds[latency]:.2f} ms for one number"]
    parts += [
        f"{size >> 20} MiB in {1000 * seconds[size]:.1f} ms ({size / seconds[size] / 1e9:.2f} GB/s)"
        for size in rest
    ]
    over = f" over {interface}" if interface else ""
    return f"{backend}, {ranks} ranks{over}: {'; '.join(parts)}"


CHECKS = checks_of(__name__)
