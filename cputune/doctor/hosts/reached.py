"""What hosts make of each other's names, and whether they reach each other's ports: asked there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cputune.doctor.finding import Finding, Severity
from cputune.doctor.hosts.asking import Asked, side_by_side
from cputune.doctor.hosts.network import Named
from cputune.doctor.hosts.seen import HostsCheck

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

PORT_CLOSED = HostsCheck(
    code="hosts-port-taken",
    severity=Severity.ERROR,
    title="The port on which the ranks meet is not free on the first host",
    remedy="Set PORT (torchrun) or MASTER_PORT to another one, the same for all.",
    source="https://pytorch.org/docs/stable/elastic/run.html",
    story="""Symptom: "Address already in use" as the job starts.

Cause: another job, or one that was not ended, listens on this port.""",
)
MASTER_BLOCKED = HostsCheck(
    code="hosts-master-port",
    severity=Severity.ERROR,
    title="MASTER_ADDR and MASTER_PORT are not reached from every host",
    remedy="Open the port between the hosts (nft, firewalld, security groups), or take another.",
    source="https://pytorch.org/docs/stable/distributed.html#tcp-initialization",
    story="""Symptom: the job waits, and ends after half an hour with a timeout of the store.

Cause: a firewall on the first host or between them, or a name that leads elsewhere. A listener
was put on this port of the first host, and every other one has tried to connect to it.""",
)
MESH_BLOCKED = HostsCheck(
    code="hosts-ports-blocked",
    severity=Severity.ERROR,
    title="Hosts do not reach the ports that gloo's ranks listen on",
    remedy="Allow all TCP ports between the hosts of a job: gloo takes free ones, for each pair.",
    source="https://github.com/pytorch/gloo/blob/main/docs/rendezvous.md",
    story="""Symptom: "connectFullMesh failed", although MASTER_PORT is open.

Cause: each rank listens on a free port and connects to all others; a firewall that opens
MASTER_PORT alone does not suffice. A listener was put on such a port of each host, and the
others have tried to connect to it.""",
)
CHECKS = (PORT_CLOSED, MASTER_BLOCKED, MESH_BLOCKED)


def ask_names(hosts: Sequence[Asked]) -> tuple[tuple[Named, ...], tuple[Finding, ...]]:
    """What each host makes of all names; findings where one did not answer."""
    names = [one.name for one in hosts]
    answers, silent = side_by_side(hosts, "names.py", lambda one: {"names": names}, NAMES_SECONDS)
    found = []
    for one in hosts:
        told = answers.get(one.name)
        if told is None:
            continue
        variables = one.facts.environment
        found.append(
            Named(
                host=one.name,
                network=one.facts.network,
                own=told["own"],
                names={
                    name: said if isinstance(said, str) else tuple(said)
                    for name, said in told["names"].items()
                },
                told=variables.get("GLOO_SOCKET_IFNAME"),
                fabric=variables.get("FI_TCP_IFACE"),
            )
        )
    return tuple(found), silent


def ask_ports(
    hosts: Sequence[Asked],
    addresses: Mapping[str, str],
    *,
    master_port: int = MASTER_PORT,
    seconds: float = PORTS_SECONDS,
    seed: int | None = None,
) -> tuple[Finding, ...]:
    """Whether the first host's port is reached by its name, and each host's port by the others.

    ``addresses`` are those on which ranks will listen, by the hosts' names.
    """
    if len(hosts) < 2:
        return ()
    first = hosts[0].name
    ports = dict(zip(addresses, _free_ports(len(addresses), master_port, seed), strict=True))
    goals = {one.name: _goals([h.name for h in hosts], one.name, addresses) for one in hosts}
    callers = {name: sum(name in goal for goal in goals.values()) for name in addresses}

    def question(one: Asked) -> dict[str, Any]:
        listen: list[tuple[str, int, int]] = []
        reach = [(name, addresses[name], ports[name]) for name in goals[one.name]]
        if one.name == first:
            listen.append(("", master_port, len(hosts) - 1))
        else:
            reach.append(("", first, master_port))
        if one.name in addresses:
            listen.append((addresses[one.name], ports[one.name], callers[one.name]))
        return {"listen": listen, "reach": reach, "seconds": seconds}

    answers, silent = side_by_side(hosts, "meet.py", question, seconds + START_SECONDS)
    return (*silent, *judge_ports(first, master_port, answers, addresses, ports))


def judge_ports(
    first: str,
    master_port: int,
    answers: Mapping[str, Mapping[str, Any]],
    addresses: Mapping[str, str],
    ports: Mapping[str, int],
) -> Iterator[Finding]:
    """What the answers of ``meet.py`` mean, one finding for each port that is not reached."""
    taken = answers.get(first, {}).get("closed", {}).get(str(master_port))
    if taken is not None:
        yield PORT_CLOSED.finding(f"port {master_port} on {first}: {taken}")
    for name in ("", *addresses):
        closed = answers.get(name or first, {}).get("closed", {})
        port = ports[name] if name else master_port
        failing: dict[str, str] = {}
        for asker, told in answers.items():
            why = told["reached"].get(name)
            if why:
                failing[asker] = why
        if not failing or str(port) in closed:
            continue  # where nobody could listen, nobody could come
        where = f"{addresses[name]}:{port} of {name}" if name else f"{first}:{master_port}"
        why = " / ".join(dict.fromkeys(failing.values()))
        check = MESH_BLOCKED if name else MASTER_BLOCKED
        yield check.finding(f"{where} is not reached from {', '.join(failing)}: {why}")


def _goals(names: Sequence[str], own: str, addresses: Mapping[str, str]) -> list[str]:
    """The hosts that one host tries to reach: all others, of many some neighbours."""
    place = names.index(own)
    others = [*names[place + 1 :], *names[:place]]
    if len(names) > MOST_PAIRS:
        others = others[:NEIGHBOURS]
    return [name for name in others if name in addresses]


def _free_ports(count: int, not_this: int, seed: int | None) -> list[int]:
    ports = [port for port in range(*EPHEMERAL) if port != not_this]
    return random.Random(seed).sample(ports, count)
