"""The network between hosts: names, interfaces and ports.

The probe of each host (``remote/sent/probe.py``) has resolved the names of all hosts.
``doctor/looks/ports.py`` tries the ports, and sends 64 KiB through each connection: if the network
drops large packets, ``connect`` succeeds and gloo then waits for ever.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cputune.doctor.finding import Finding, Severity, checks_of, fault
from cputune.host.facts import Link
from cputune.host.remote.ask import ANSWER_SECONDS, ask_together, script_text
from cputune.host.remote.named import Node
from cputune.host.remote.probed import Probed
from cputune.host.remote.reach import Reach
from cputune.plans.delivery.network_interface import (
    Chosen,
    choose_interface,
    is_loopback,
    link_with,
)
from cputune.text.documents import record_of

# The share of a host's time limit that its connections may take once all hosts are ready.
PORTS_SHARE = 1 / 3

# torchrun's default.
MASTER_PORT = 29500

# The ports from which the kernel gives gloo one (net.ipv4.ip_local_port_range).
EPHEMERAL = (33000, 60000)

# ports.py begins its message with this if 64 KiB do not get through a connection.
STUCK = "64 KiB"


@fault("hosts-not-asked", Severity.WARNING)
def ports_not_tried() -> None:
    """The network of a host could not be tested

    The doctor's script on this host did not end in time or printed no answer. This says nothing
    about the network between the hosts.

    Remedy: Fix what the evidence says, and run the doctor again. --host-timeout gives hosts more
    time.

    Source: https://docs.python.org/3/library/socket.html
    """


@fault("hosts-name-unknown", Severity.ERROR)
def name_unknown() -> None:
    """A host cannot resolve the name of another host

    Symptom: "Name or service not known", or a launcher that never starts on a host.

    Cause: each host resolves the names in MASTER_ADDR and host files itself. The doctor lets every
    host resolve all names.

    Remedy: Give all hosts the same names in /etc/hosts or DNS, or use addresses.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """


@fault("hosts-name-elsewhere", Severity.ERROR)
def name_elsewhere() -> None:
    """A name resolves to an address that its host does not have

    Symptom: ranks wait for rank 0 for ever, or connect to another machine.

    Cause: an old entry in /etc/hosts or DNS. The doctor compares the address that a name resolves
    to with the addresses of that host.

    Remedy: Correct the entry in /etc/hosts of the host in the evidence, or in DNS.

    Source: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """


@fault("hosts-gloo-interface", Severity.ERROR)
def gloo_interface() -> None:
    """gloo would listen on loopback, where other hosts cannot reach it

    Symptom: "connectFullMesh failed", "Connection refused", and mpirun does not end.

    Cause: gloo listens on the first address of its host's own name, which Debian's /etc/hosts maps
    to 127.0.1.1.

    Remedy: Set GLOO_SOCKET_IFNAME on all hosts; cputune emit --interface sets it, and the
    launcher's option.

    Source: aws-samples/aws-do-eks#50
    """


@fault("hosts-interface", Severity.WARNING)
def interface_unnamed() -> None:
    """No interface has the same name on all hosts

    Symptom: "Unable to find address for: …" on some hosts.

    Cause: a launch gives all ranks one interface name (GLOO_SOCKET_IFNAME and similar), but here
    the names differ.

    Remedy: Give the interface between the hosts one name (systemd.link(5)).

    Source: https://www.freedesktop.org/software/systemd/man/latest/systemd.link.html
    """


@fault("hosts-port-taken", Severity.ERROR)
def port_taken() -> None:
    """MASTER_PORT is in use on the first host

    Symptom: "Address already in use" when the job starts.

    Cause: another job, or one that has not ended, listens on this port.

    Remedy: Set MASTER_PORT (in torchrun.sh: PORT) to another port, the same on all hosts.

    Source: https://pytorch.org/docs/stable/elastic/run.html
    """


@fault("hosts-master-port", Severity.ERROR)
def master_blocked() -> None:
    """Some hosts cannot connect to MASTER_PORT of the first host

    Symptom: the job waits, and ends after half an hour with a timeout of the store.

    Cause: a firewall, or a name that resolves to another machine. The doctor listens on this port
    of the first host and connects from every other.

    Remedy: Open the port between the hosts (nft, firewalld, security groups), or use another.

    Source: https://pytorch.org/docs/stable/distributed.html#tcp-initialization
    """


@fault("hosts-ports-blocked", Severity.ERROR)
def mesh_blocked() -> None:
    """Some hosts cannot connect to the ports of gloo's ranks

    Symptom: "connectFullMesh failed", although MASTER_PORT is open.

    Cause: each rank listens on any free port and connects to all others. The doctor tries such a
    port of each host from all others.

    Remedy: Allow all TCP ports between the hosts of a job.

    Source: https://github.com/pytorch/gloo/blob/main/docs/rendezvous.md
    """


@fault("hosts-large-messages", Severity.ERROR)
def large_blocked() -> None:
    """Hosts can connect, but large messages do not get through

    Symptom: the ranks start, and the first all-reduce never ends.

    Cause: an interface has an MTU of 9000 (jumbo frames) and a switch carries 1500, or a firewall
    drops the ICMP message "fragmentation needed". Connecting needs only small packets. The doctor
    sends 64 KiB between all hosts over every interface that ranks may use.

    Remedy: Set the MTU of the interfaces to that of the switches (ip link set DEV mtu 1500), or use
    another interface.

    Source: https://www.rfc-editor.org/rfc/rfc4821
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPorts:
    """Answer of ``looks/ports.py``: why it cannot listen on a port or connect to an address."""

    closed: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, str]


def network_between(
    hosts: Sequence[Probed], reach: Reach, *, seconds: float = ANSWER_SECONDS
) -> Iterator[Finding]:
    """Whether the hosts resolve each other's names and reach each other's ports.

    Rank 0 is on the first host. ``seconds`` is the time limit of a host.
    """
    yield from judge_names(hosts)
    yield from judge_interface(hosts)
    yield from judge_ports(try_ports(hosts, reach, listening(hosts), seconds=seconds))


def judge_names(hosts: Sequence[Probed]) -> Iterator[Finding]:
    """Names that a host cannot resolve, or that resolve to no address of their host."""
    networks = {host.name: host.facts.network for host in hosts}
    failing: dict[str, dict[str, str]] = {}
    for host in hosts:
        for name, addresses in host.names.items():
            links = None
            if name in networks:
                links = networks[name].links
            if isinstance(addresses, str):
                failing.setdefault(name, {})[host.name] = addresses
            elif name == host.name or links is None or not addresses:
                continue
            elif link_with(networks[name], addresses[0]) in (None, "lo"):
                reachable = _outside_addresses(links)
                yield name_elsewhere.finding(
                    f"on {host.name} the name {name} resolves to {addresses[0]}; "
                    f"{name} itself has {', '.join(reachable) or 'none'}"
                )
    for name, reasons in failing.items():
        reason = next(iter(reasons.values()))
        yield name_unknown.finding(f"{name} is not known on {', '.join(reasons)}: {reason}")


def _outside_addresses(links: Iterable[Link]) -> list[str]:
    """The addresses of a host by which others may reach it."""
    outside = []
    for link in links:
        for with_prefix in link.addresses:
            address, _, _ = with_prefix.partition("/")
            if not is_loopback(address):
                outside.append(address)
    return outside


def chosen_interface(hosts: Sequence[Probed]) -> Chosen:
    """The interface for all layers, by the addresses to which other hosts resolve each name."""
    resolved = dict[str, str]()
    for host in hosts:
        for name, addresses in host.names.items():
            # A text is the reason why the host cannot resolve the name.
            if name != host.name and addresses and not isinstance(addresses, str):
                # Of several answers that of the first host counts.
                resolved.setdefault(name, addresses[0])
    return choose_interface([(host.name, host.facts.network) for host in hosts], resolved)


def listening(hosts: Sequence[Probed]) -> dict[str, dict[str, str]]:
    """The addresses on which ranks may listen, by interface and host; the best interface first.

    If no interface has one name on all hosts: those that gloo chooses, under an empty name.
    """
    chosen = chosen_interface(hosts)
    if chosen.name is None:
        return {"": {host.name: host.own for host in hosts if host.own is not None}}
    names = [host.name for host in hosts]
    interfaces = {chosen.name: dict(zip(names, chosen.addresses, strict=True))}
    for name, addresses in chosen.others:
        interfaces[name] = dict(zip(names, addresses, strict=True))
    return interfaces


def judge_interface(hosts: Sequence[Probed]) -> Iterator[Finding]:
    """Hosts on which gloo would listen on loopback, and interfaces without a common name."""
    chosen = chosen_interface(hosts)
    inside = []
    with_links = 0
    for host in hosts:
        if host.facts.network.links is None:
            continue
        with_links += 1
        interface_is_set = host.facts.environment.get("GLOO_SOCKET_IFNAME")
        if not interface_is_set and link_with(host.facts.network, host.own or "") in (None, "lo"):
            inside.append(f"{host.name} as {host.own or '127.0.0.1'}")
    if inside:
        yield gloo_interface.finding(
            f"own names resolve to loopback: {', '.join(inside)}",
            command=chosen.name and f"export GLOO_SOCKET_IFNAME={shlex.quote(chosen.name)}",
        )
    if with_links == len(hosts) > 1 and chosen.name is None:
        yield interface_unnamed.finding(chosen.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Which ports were tried, and the answer of each host.

    ``places`` are address and port by host and interface. In ``answers`` a place is called ``HOST
    INTERFACE``, and MASTER_PORT "". ``silent`` says why a host gave no answer.
    """

    first: str
    master_port: int
    places: Mapping[tuple[str, str], tuple[str, int]]
    answers: Mapping[str, OfPorts]
    silent: Mapping[str, str] = field(default_factory=dict)

    def failing(self, place: str) -> dict[str, str]:
        """The hosts that cannot connect to a place, and why."""
        reasons = {}
        for name, answer in self.answers.items():
            reason = answer.reached.get(place)
            if reason:
                reasons[name] = reason
        return reasons

    def carries(self, interface: str) -> bool:
        """Whether all hosts reach each other over the interface, also with 64 KiB."""
        if self.silent:
            return False
        for host, by in self.places:
            if by == interface and self.failing(f"{host} {interface}"):
                return False
        return True


def try_ports(
    hosts: Sequence[Probed],
    reach: Reach,
    interfaces: Mapping[str, Mapping[str, str]],
    *,
    master_port: int = MASTER_PORT,
    seconds: float = ANSWER_SECONDS,
) -> Reached:
    """Try MASTER_PORT of the first host by its name, and a port on each address of each host.

    ``interfaces`` are the addresses on which ranks may listen, by interface and host. A host gets
    ready within ``seconds``. When all are ready, their connections have a third of that time.
    """
    work_seconds = seconds * PORTS_SHARE
    first, others = hosts[0].name, len(hosts) - 1
    # Each port is used once, and none is the port on which ranks meet.
    free = iter(random.sample([p for p in range(*EPHEMERAL) if p != master_port], 4096))
    places = dict[tuple[str, str], tuple[str, int]]()
    for interface, addresses in interfaces.items():
        for name, address in addresses.items():
            places[name, interface] = (address, next(free))

    def question(node: Node) -> dict[str, object]:
        listen = []
        call = []
        for (name, interface), (address, port) in places.items():
            if name == node.name:
                listen.append((address, port, others))
            else:
                call.append((f"{name} {interface}", address, port, name))
        if node.name == first:
            listen.append(("", master_port, others))
        else:
            call.append(("", first, master_port, first))
        return {"listen": listen, "reach": call, "seconds": work_seconds}

    script = script_text("ports.py", "cputune.doctor.looks")
    nodes = [host.node for host in hosts]
    answers: dict[str, OfPorts] = {}
    silent: dict[str, str] = {}
    for answer in ask_together(
        nodes, reach, script, question, start_seconds=seconds, work_seconds=work_seconds
    ):
        read = answer.read(partial(record_of, OfPorts))
        if isinstance(read, OfPorts):
            answers[answer.node.name] = read
        elif read.unreachable is not None:
            silent[answer.node.name] = read.unreachable.reason
    return Reached(
        first=first, master_port=master_port, places=places, answers=answers, silent=silent
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What an all-reduce of gloo over all hosts reaches, as ``looks/reduce.py`` measured it.

    ``slowest`` names the two hosts between which least gets through, and their bytes in a second;
    None for two hosts.
    """

    interface: str
    bytes_per_second: float
    delay_seconds: float
    slowest: tuple[str, str, float] | None = None

    @property
    def words(self) -> str:
        """The figures, with the time of 100 MB."""
        rate = self.bytes_per_second / 1e6
        text = (
            f"an all-reduce over {self.interface} reaches {rate:.3g} MB/s, with a delay of "
            f"{1000 * self.delay_seconds:.2g} ms: 100 MB of gradients take {100 / rate:.3g} s"
        )
        if self.slowest is not None:
            first, second, slow = self.slowest
            text += f"; slowest from {first} to {second}, {slow / 1e6:.3g} MB/s"
        return text

    def step_seconds(self, gradient_bytes: int) -> float:
        """What the gradients of a step take."""
        return self.delay_seconds + gradient_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class OfReduce:
    """Answer of ``looks/reduce.py``."""

    bytes_per_second: float = 0.0
    delay_seconds: float = 0.0
    pairs: tuple[tuple[int, int, float], ...] = ()


def measure_rate(
    hosts: Sequence[Probed],
    reach: Reach,
    interface: str,
    address: str,
    *,
    seconds: float,
    python: str,
) -> Rate | str:
    """How fast gloo adds gradients over an interface; or why that could not be measured.

    ``address`` is that of the first host on the interface, ``python`` has torch on all of them.
    """
    port = random.randrange(*EPHEMERAL)
    numbers = {host.name: number for number, host in enumerate(hosts)}

    def question(node: Node) -> dict[str, object]:
        return {
            "rank": numbers[node.name],
            "ranks": len(hosts),
            "address": address,
            "port": port,
            "interface": interface,
            "seconds": seconds,
        }

    script = script_text("reduce.py", "cputune.doctor.looks")
    nodes = [host.node for host in hosts]
    answers = ask_together(
        nodes,
        reach,
        script,
        question,
        start_seconds=seconds,
        work_seconds=seconds,
        pythons=(python,),
    )
    read = [answer.read(partial(record_of, OfReduce)) for answer in answers]
    for answer, host in zip(read, hosts, strict=True):
        if not isinstance(answer, OfReduce):
            assert answer.unreachable is not None
            return f"{host.name}: {answer.unreachable.reason}"
    first = read[0]
    assert isinstance(first, OfReduce)
    if not first.bytes_per_second:
        return "not all hosts were ready in time"
    slowest = None
    if first.pairs:
        number, other, rate = min(first.pairs, key=lambda pair: pair[2])
        slowest = hosts[number].name, hosts[other].name, rate
    return Rate(
        interface=interface,
        bytes_per_second=first.bytes_per_second,
        delay_seconds=first.delay_seconds,
        slowest=slowest,
    )


def judge_ports(reached: Reached) -> Iterator[Finding]:
    """Findings from the answers: one for each port that is not reached."""
    for name, reason in reached.silent.items():
        yield ports_not_tried.finding(f"the ports of {name}: {reason}")
    first, port = reached.first, str(reached.master_port)
    closed = {name: answer.closed for name, answer in reached.answers.items()}
    if (taken := closed.get(first, {}).get(port)) is not None:
        yield port_taken.finding(f"port {port} on {first}: {taken}")
    elif failing := reached.failing(""):
        yield master_blocked.finding(_not_reached(f"{first}:{port}", failing))
    stuck: dict[str, list[str]] = {}
    for (name, interface), (address, number) in reached.places.items():
        if str(number) in closed.get(name, {}):
            continue  # no host reaches one that could not listen
        unreached = {}
        for other, reason in reached.failing(f"{name} {interface}").items():
            if reason.startswith(STUCK):
                stuck.setdefault(interface, []).append(f"{other} to {name}")
            else:
                unreached[other] = reason
        if unreached:
            yield mesh_blocked.finding(_not_reached(f"{address}:{number} of {name}", unreached))
    works = next((by for _, by in reached.places if by and reached.carries(by)), None)
    for interface, pairs in stuck.items():
        yield large_blocked.finding(
            f"{interface}: 64 KiB do not arrive from {', '.join(pairs)}"
            + (f"; they do over {works}" if works else ""),
            command=works and f"export GLOO_SOCKET_IFNAME={shlex.quote(works)}",
        )


def _not_reached(where: str, failing: Mapping[str, str]) -> str:
    reasons = " / ".join(dict.fromkeys(failing.values()))
    return f"{where} cannot be reached from {', '.join(failing)}: {reasons}"


CHECKS = checks_of(__name__)
