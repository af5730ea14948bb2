"""What hosts make of each other's names, interfaces and ports, and how fast they add up.

Names were asked for by the probe (``remote/sent/probe.py``). ``doctor/looks/meet.py`` tries the
ports, with 64 KiB through each connection: a path that carries less than the interfaces say lets
``connect`` through and stops gloo for ever.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypeVar

from msgspec import Meta

from cputune.carrier.interface import (
    Chosen,
    choose_interface,
    gloo_link,
    interface_variables,
    is_loopback,
    link_with,
    shared_network,
)
from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.documents import record_of
from cputune.remote.ask import Answer, ask_each, script_text
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

ALL_REDUCE_SECONDS = 120.0
SIZES = (4, 1 << 20, 25 << 20)
"""Bytes: one number, for the latency; the first bucket of DDP, and the others (torch.nn.parallel:
``dist._DEFAULT_FIRST_BUCKET_BYTES``, ``bucket_cap_mb=25``)."""


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


Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPorts:
    """The answer of ``looks/meet.py``: why a port could not be listened on, or not be reached."""

    closed: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAllReduce:
    """What a rank of ``looks/all_reduce.py`` answers: the seconds of each of ``SIZES``."""

    seconds: tuple[Seconds, Seconds, Seconds]


def network_between(
    hosts: Sequence[Probed], reach: Reach, *, deep: bool = False
) -> Iterator[Finding]:
    """What the hosts make of each other's names, and whether they reach each other's ports.

    The first host is the one with rank 0. Takes some seconds, however many hosts there are.
    ``deep``: then real ranks on those that have answered add up DDP's buckets, over the interface
    of all layers.
    """
    yield from judge_names(hosts)
    yield from judge_interface(hosts)
    ways = listening(hosts)
    reached, silent = ask_ports(hosts, reach, ways)
    yield from silent
    yield from judge_ports(reached)
    left = [one for one in hosts if one.name in reached.answers]
    if deep and len(left) > 1:
        interface, addresses = next(iter(ways.items()))
        yield add_up(left, reach, addresses, interface=interface)


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
    """Where gloo would listen by itself; and where no interface can be named to all hosts."""
    known = [one for one in hosts if one.facts.network.links is not None]
    chosen = chosen_interface(hosts)
    command = chosen.name and f"export GLOO_SOCKET_IFNAME={shlex.quote(chosen.name)}"
    inside, links = [], {}
    for one in known:
        network, told = one.facts.network, one.facts.environment.get("GLOO_SOCKET_IFNAME")
        taken = gloo_link(network, one.own, told) or "lo"
        if taken == "lo":
            inside.append(f"{one.name} as {one.own or '127.0.0.1'}")
        elif (link := network.link(taken)) is not None:
            links[one.name] = link
    if inside:
        said = f"own names resolve to loopback: {', '.join(inside)}"
        yield gloo_interface.finding(said, command=command)
    elif len(links) > 1 and shared_network(list(links.values())) is None:
        yield gloo_interface.finding(
            "; ".join(
                f"{on} takes {link.name} ({', '.join(link.addresses[:1]) or 'no address'})"
                for on, link in links.items()
            ),
            command=command,
            severity=Severity.WARNING,
            title="gloo would listen in different networks",
        )
    if len(known) == len(hosts) > 1 and chosen.name is None:
        yield interface_unnamed.finding(chosen.why)


def side_by_side(
    hosts: Sequence[Probed],
    reach: Reach,
    script: str,
    kind: type[Told],
    question: Callable[[str], Mapping[str, object]],
    seconds: float,
    *,
    trains: bool = False,
) -> tuple[dict[str, Told], tuple[Finding, ...]]:
    """The answers of a script by host, all asked at once; a finding for each that has none.

    An answer that is no ``kind`` is none. ``question`` is given the name of the host. ``trains``:
    the script needs the Python that trains.
    """
    pythons = {one.name: (one.python,) if trains and one.python else () for one in hosts}
    answers = ask_each(
        [one.node for one in hosts],
        reach,
        script_text(script, "cputune.doctor.looks"),
        lambda node: question(node.name),
        seconds,
        pythons=lambda node: pythons[node.name],
    )
    told: dict[str, Told] = {}
    silent: list[Finding] = []
    for answer in answers:
        name, read = answer.node.name, answer.read(partial(record_of, kind))
        if isinstance(read, Answer):
            why = read.unreachable and read.unreachable.reason
            silent.append(not_asked.finding(f"{script.removesuffix('.py')} on {name}: {why}"))
        else:
            told[name] = read
    return told, tuple(silent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Which ports were tried, and what each host reports of them.

    ``places`` are address and port by host and interface. ``answers`` are those of ``meet.py``: the
    name of a place there is ``HOST INTERFACE``, and "" for the port of the first host.
    """

    first: str
    master_port: int
    places: Mapping[tuple[str, str], tuple[str, int]]
    answers: Mapping[str, OfPorts]

    def failing(self, place: str) -> dict[str, str]:
        """Which hosts do not reach a place, and why."""
        return {
            name: why for name, told in self.answers.items() if (why := told.reached.get(place))
        }

    def carries(self, interface: str) -> bool:
        """Whether all hosts reach each other over the interface, with large messages too."""
        return not any(self.failing(f"{on} {by}") for on, by in self.places if by == interface)


def ask_ports(
    hosts: Sequence[Probed],
    reach: Reach,
    ways: Mapping[str, Mapping[str, str]],
    *,
    master_port: int = MASTER_PORT,
    seconds: float = PORTS_SECONDS,
) -> tuple[Reached, tuple[Finding, ...]]:
    """Whether the first host's port is reached by its name, and each host's port by the others.

    ``ways`` are the addresses on which ranks may listen: of each interface that of each host.
    Findings are of hosts that did not answer.
    """
    first, others = hosts[0].name, len(hosts) - 1
    # Each port is used once, and none is the port on which ranks meet.
    free = iter(random.sample([p for p in range(*EPHEMERAL) if p != master_port], 4096))
    places = {
        (name, interface): (address, next(free))
        for interface, on in ways.items()
        for name, address in on.items()
    }

    def question(own: str) -> dict[str, object]:
        listen = [(*place, others) for (name, _), place in places.items() if name == own]
        call = [(f"{n} {by}", *place) for (n, by), place in places.items() if n != own]
        if own == first:
            listen.append(("", master_port, others))
        else:
            call.append(("", first, master_port))
        return {"listen": listen, "reach": call, "seconds": seconds}

    most = seconds + START_SECONDS
    answers, silent = side_by_side(hosts, reach, "meet.py", OfPorts, question, most)
    return Reached(first=first, master_port=master_port, places=places, answers=answers), silent


def judge_ports(reached: Reached) -> Iterator[Finding]:
    """The findings that follow from the answers, one for each port that is not reached."""
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
        others = {}
        for asker, why in reached.failing(f"{name} {interface}").items():
            if why.startswith(STUCK):
                stuck.setdefault(interface, []).append(f"{asker} to {name}")
            else:
                others[asker] = why
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


def add_up(
    hosts: Sequence[Probed],
    reach: Reach,
    addresses: Mapping[str, str],
    *,
    interface: str,
    master_port: int = MASTER_PORT,
) -> Finding:
    """How long gloo takes to add up tensors of one rank on each host with torch, or why it fails.

    ``addresses`` are those on which ranks listen, by name; ``interface`` may be empty.
    """
    ranks = [one for one in hosts if one.facts.package("torch") is not None]
    if len(ranks) < 2:
        return not_asked.finding("all-reduce: fewer than two hosts have torch")
    names = [one.name for one in ranks]
    variables = {
        **(interface_variables(interface) if interface else {}),
        "MASTER_ADDR": addresses.get(names[0], names[0]),
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(ranks)),
    }

    def question(name: str) -> dict[str, object]:
        mine = {**variables, "RANK": str(names.index(name))}
        return {"sizes": SIZES, "seconds": ALL_REDUCE_SECONDS / 2, "variables": mine}

    answers, silent = side_by_side(
        ranks, reach, "all_reduce.py", OfAllReduce, question, ALL_REDUCE_SECONDS, trains=True
    )
    if silent:
        said = dict.fromkeys(finding.evidence for finding in silent)
        return all_reduce_fails.finding(f"gloo: {'; '.join(said)}")
    slowest = map(max, zip(*(told.seconds for told in answers.values()), strict=True))
    return all_reduce_took.finding(describe_all_reduce(tuple(slowest), len(ranks), interface))


def describe_all_reduce(seconds: Sequence[float], ranks: int, interface: str) -> str:
    """``gloo, 2 ranks over eth0: 0.21 ms for one number; 1 MiB in 1.3 ms (0.81 GB/s); …``."""
    parts = [f"{1000 * seconds[0]:.2f} ms for one number"]
    parts += [
        f"{size >> 20} MiB in {1000 * took:.1f} ms ({size / took / 1e9:.2f} GB/s)"
        for size, took in zip(SIZES[1:], seconds[1:], strict=True)
    ]
    over = f" over {interface}" if interface else ""
    return f"gloo, {ranks} ranks{over}: {'; '.join(parts)}"


CHECKS = checks_of(__name__)
