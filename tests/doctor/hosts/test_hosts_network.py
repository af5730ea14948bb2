"""What names and interfaces of several hosts have to do with each other."""

from __future__ import annotations

from dataclasses import replace

from golden_texts import Golden
from unknown_machine import UNKNOWN

from cputune import Finding, Node
from cputune.doctor.hosts.network import chosen_interface, judge_interface, judge_names
from cputune.host.facts import Link, Network
from cputune.host.remote.probed import Probed

LO = Link(name="lo", up=True, addresses=("127.0.0.1/8",))


def host(
    name: str,
    *links: Link,
    own: str | None,
    network: Network | None = None,
    **names: tuple[str, ...] | str,
) -> Probed:
    seen = network or Network(links=(LO, *links))
    facts = replace(UNKNOWN, network=seen, environment={"GLOO_SOCKET_IFNAME": ""})
    return Probed(node=Node(name=name), facts=facts, own=own, names=names)


def eth(address: str, name: str = "eth0") -> Link:
    return Link(name=name, up=True, addresses=(address,))


A, B = ("10.0.0.1",), ("10.0.0.2",)
FINE = (
    host("a", eth("10.0.0.1/24"), own="10.0.0.1", a=A, b=B),
    host("b", eth("10.0.0.2/24"), own="10.0.0.2", a=A, b=B),
)


def codes(*hosts: Probed) -> dict[str, Finding]:
    found = (*judge_names(hosts), *judge_interface(hosts))
    return {finding.code: finding for finding in found}


def test_hosts_in_order_have_no_finding() -> None:
    assert not codes(*FINE)
    assert chosen_interface(FINE).name == "eth0"
    assert chosen_interface(FINE).addresses == ("10.0.0.1", "10.0.0.2")


def test_a_name_that_leads_to_another_machine(golden: Golden) -> None:
    old = host("b", eth("10.0.0.2/24"), own="10.0.0.2", a=("10.0.0.9",), b=B)
    found = codes(FINE[0], old)["hosts-name-elsewhere"]
    golden(found.evidence)


def test_interfaces_of_different_names_cannot_be_told_to_all(golden: Golden) -> None:
    other = host("b", eth("10.0.0.2/24", "ens3"), own="10.0.0.2", a=A, b=B)
    found = codes(FINE[0], other)["hosts-interface"]
    golden(found.evidence)


def test_what_a_host_does_not_tell_is_not_judged() -> None:
    silent = host("b", own="10.0.0.2", network=Network(), a=A, b=B)
    assert not codes(FINE[0], silent)
