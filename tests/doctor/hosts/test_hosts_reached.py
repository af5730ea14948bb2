"""Ports between hosts, for real: the hosts are addresses of this machine."""

from __future__ import annotations

import ast
import socket
import sys
from dataclasses import replace

import pytest
from golden_texts import Golden
from nodes.fakes import FakeReach
from unknown_machine import UNKNOWN

from cputune import Node
from cputune.doctor.hosts.network import (
    OfPorts,
    Rate,
    Reached,
    judge_ports,
    measure_rate,
    try_ports,
)
from cputune.host.facts import Network
from cputune.host.remote.ask import script_text
from cputune.host.remote.probed import Probed

REACH = FakeReach()


def asked(name: str) -> Probed:
    facts = replace(UNKNOWN, network=Network())
    return Probed(node=Node(name=name), facts=facts)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


HERE = {"lo": {"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.2", "127.0.0.3": "127.0.0.3"}}


def test_hosts_that_reach_each_other_have_no_finding() -> None:
    hosts = [asked(name) for name in HERE["lo"]]
    reached = try_ports(hosts, REACH, HERE, master_port=free_port(), seconds=20)
    assert tuple(judge_ports(reached)) == ()
    assert reached.carries("lo")


@pytest.mark.parametrize("gone", ["127.0.0.1", "127.0.0.3"])
def test_a_host_that_does_not_come_blames_no_network(gone: str) -> None:
    hosts = [asked(name) for name in HERE["lo"]]
    reach = FakeReach(instead={gone: ("sh", "-c", "sleep 60")})
    reached = try_ports(hosts, reach, HERE, master_port=free_port(), seconds=5)
    (found,) = judge_ports(reached)
    assert found.code == "hosts-not-asked"
    assert found.evidence == f"the ports of {gone}: it gave no answer in 5 s"


def test_a_port_that_is_taken_is_named_and_no_firewall_is_blamed() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        hosts = [asked(name) for name in ("127.0.0.1", "127.0.0.2")]
        reached = try_ports(hosts, REACH, {}, master_port=port, seconds=20)
    found = tuple(judge_ports(reached))
    assert [finding.code for finding in found] == ["hosts-port-taken"]
    assert f"port {port} on 127.0.0.1" in found[0].evidence


PLACES = {
    ("a", "eth0"): ("10.0.0.1", 40001),
    ("b", "eth0"): ("10.0.0.2", 40002),
    ("a", "eth1"): ("10.1.0.1", 40011),
    ("b", "eth1"): ("10.1.0.2", 40012),
}


def reached(a: dict[str, str], b: dict[str, str]) -> Reached:
    answers = {name: OfPorts(reached=told) for name, told in (("a", a), ("b", b))}
    return Reached(first="a", master_port=29500, places=PLACES, answers=answers)


def test_a_port_that_no_host_reaches_is_named_with_who_tried(golden: Golden) -> None:
    seen = reached({"b eth0": "no answer"}, {"": "no answer", "a eth0": ""})
    master, mesh = judge_ports(seen)
    assert master.code == "hosts-master-port"
    golden(master.evidence)
    assert mesh.code == "hosts-ports-blocked"
    golden(mesh.evidence)


def test_what_connects_and_carries_no_more_names_the_mtu_and_what_works(
    golden: Golden,
) -> None:
    stuck = "64 KiB do not get through"
    seen = reached({"b eth0": stuck}, {"": "", "a eth0": stuck})
    (found,) = judge_ports(seen)
    assert found.code == "hosts-large-messages"
    golden(found.evidence)
    golden(found.command)
    assert [seen.carries(name) for name in ("eth0", "eth1")] == [False, True]


@pytest.mark.torch
def test_the_rate_of_gloo_is_measured_and_the_slowest_pair_is_named() -> None:
    hosts = [asked(name) for name in ("a", "b", "c")]
    rate = measure_rate(hosts, REACH, "lo", "127.0.0.1", seconds=60, python=sys.executable)
    assert isinstance(rate, Rate), rate
    assert 1e6 < rate.bytes_per_second < 1e12
    assert 0 < rate.delay_seconds < 10
    assert rate.slowest is not None
    first, second, slow = rate.slowest
    assert (first, second) in {("a", "b"), ("a", "c"), ("b", "c")}
    assert f"slowest from {first} to {second}" in rate.words
    assert slow > 0


def test_a_rate_that_cannot_be_measured_has_a_reason(golden: Golden) -> None:
    hosts = [asked(name) for name in ("a", "b")]
    reach = FakeReach(instead={"b": ("sh", "-c", "echo no torch >&2; exit 3")})
    rate = measure_rate(hosts, reach, "lo", "127.0.0.1", seconds=60, python=sys.executable)
    golden(rate)


def test_what_gradients_take_over_a_slow_line(golden: Golden) -> None:
    rate = Rate(interface="eth0", bytes_per_second=0.125e6, delay_seconds=0.002)
    golden(rate.words)
    assert rate.step_seconds(44_800_000) == pytest.approx(358.4, rel=0.01)


def test_what_is_sent_needs_no_more_than_python_3_7() -> None:
    ast.parse(script_text("ports.py", "cputune.doctor.looks"), feature_version=(3, 7))
