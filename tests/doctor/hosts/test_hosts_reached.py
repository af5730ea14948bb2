"""Ports and names between hosts, asked for real: the hosts are addresses of this machine."""

from __future__ import annotations

import base64
import json
import shlex
import socket
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from nodes.fakes import FakeReach
from unknown_machine import UNKNOWN

from cputune.doctor.hosts import network
from cputune.doctor.hosts.network import (
    KnownHost,
    OfPorts,
    Reached,
    ask_all_reduce,
    ask_names,
    ask_ports,
    describe_all_reduce,
    judge_ports,
)
from cputune.facts import Network, Package
from cputune.remote.named import Node

REACH = FakeReach()


def asked(name: str, *packages: Package) -> KnownHost:
    facts = replace(UNKNOWN, network=Network(), packages=packages)
    return KnownHost(node=Node(name=name), facts=facts)


def told_instead(answer: str, folder: Path) -> FakeReach:
    """Hosts that read their script, note how they were started, and give this answer."""
    note = 'printf "%s\\0" "$0" "$@" > "$NOTED"; read -r a; read -r b; echo "$b" > "$NOTED.asked"; '
    return FakeReach(
        variables={"NOTED": str(folder / "noted")},
        started=("sh", "-c", f"{note} printf '%s\\n' {shlex.quote(answer)}"),
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


HERE = {"lo": {"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.2", "127.0.0.3": "127.0.0.3"}}


def test_hosts_that_reach_each_other_have_no_finding() -> None:
    hosts = [asked(name) for name in HERE["lo"]]
    reached, silent = ask_ports(hosts, REACH, HERE, master_port=free_port(), seconds=20)
    assert (silent, tuple(judge_ports(reached))) == ((), ())
    assert reached.carries("lo")


def test_a_port_that_is_taken_is_named_and_no_firewall_is_blamed() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        hosts = [asked(name) for name in ("127.0.0.1", "127.0.0.2")]
        reached, _ = ask_ports(hosts, REACH, {}, master_port=port, seconds=4)
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


def test_a_port_that_nobody_reaches_is_named_with_who_tried() -> None:
    seen = reached({"b eth0": "no answer"}, {"": "no answer", "a eth0": ""})
    master, mesh = judge_ports(seen)
    assert master.code == "hosts-master-port"
    assert master.evidence == "a:29500 is not reached from b: no answer"
    assert mesh.code == "hosts-ports-blocked"
    assert mesh.evidence == "10.0.0.2:40002 of b is not reached from a: no answer"


def test_what_connects_and_carries_no_more_names_the_mtu_and_what_works_beside_it() -> None:
    stuck = "64 KiB do not get through"
    seen = reached({"b eth0": stuck}, {"": "", "a eth0": stuck})
    (found,) = judge_ports(seen, {"a": {"eth0": 9000}, "b": {"eth0": 9000}})
    assert found.code == "hosts-large-messages"
    assert found.evidence == (
        "eth0: 64 KiB do not get from b to a, a to b (MTU 9000 on a, 9000 on b); eth1 carries them"
    )
    assert found.command == "export GLOO_SOCKET_IFNAME=eth1"
    assert [seen.carries(name) for name in ("eth0", "eth1")] == [False, True]


def test_names_are_those_that_the_host_resolves() -> None:
    (named,), silent = ask_names([asked("localhost")], REACH)
    assert silent == ()
    assert "127.0.0.1" in named.names["localhost"] or "::1" in named.names["localhost"]
    assert named.own is None or isinstance(named.own, str)
    assert named.mtu["lo"] >= 1500


def test_a_host_that_does_not_answer_is_said_and_not_judged() -> None:
    broken = ("sh", "-c", "echo no such python >&2; exit 1")
    hosts = [asked("localhost"), asked("c")]
    named, silent = ask_names(hosts, FakeReach(instead={"c": broken}))
    assert [one.host for one in named] == ["localhost"]
    assert "no such python" in silent[0].evidence
    assert {finding.code for finding in silent} == {"hosts-not-asked"}


@pytest.mark.parametrize(
    "answer",
    ["{}", '{"own": 5, "names": {}, "mtu": {}}', '{"own": null, "names": {"c": [5]}, "mtu": {}}',
     '{"closed": {}, "reached": 5}', '{"closed": {}, "reached": {"c": ["x"]}}'],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_the_finding_of_its_host_alone(
    answer: str, tmp_path: Path
) -> None:
    reach = FakeReach(instead={"c": ("sh", "-c", f"echo {shlex.quote(answer)}")})
    hosts = [asked("localhost"), asked("c")]
    here = {"lo": {"localhost": "127.0.0.1", "c": "127.0.0.1"}}
    named, silent = ask_names(hosts, reach)
    seen, deaf = ask_ports(hosts, reach, here, master_port=free_port(), seconds=1)
    assert [one.host for one in named] == ["localhost"]
    assert set(seen.answers) == {"localhost"}
    for name, (finding,) in {"names": silent, "meet": deaf}.items():
        assert finding.evidence.startswith(f"{name} on c: what it answers makes no sense (")


@pytest.mark.parametrize("seconds", [[0.1], [0.1, 0.2, 0], {"4": 0.1}, [0.1, 0.2, "x"]])
def test_times_of_an_all_reduce_that_make_no_sense_are_said(
    seconds: object, tmp_path: Path
) -> None:
    torch = Package(name="torch", version="2.13.0", location=None)
    reach = told_instead(json.dumps({"seconds": seconds}), tmp_path)
    hosts = [asked(name, torch) for name in ("a", "b")]
    (found,) = ask_all_reduce(hosts, reach, {}, interface=None, master_port=1)
    assert found.code == "hosts-all-reduce-fails"
    assert "all_reduce on a: what it answers makes no sense" in found.evidence


def test_of_many_hosts_each_reaches_some_and_the_first() -> None:
    names = [f"n{number}" for number in range(100)]
    assert network._goals(names, "n98") == ["n99", "n0", "n1", "n2", "n3", "n4", "n5", "n6"]
    assert len(network._goals(names[:4], "n1")) == 3


def test_the_figures_of_an_all_reduce_have_units() -> None:
    text = describe_all_reduce("gloo", {4: 0.0002, 1 << 20: 0.001, 25 << 20: 0.025}, 2, "eth0")
    assert text == (
        "gloo, 2 ranks over eth0: 0.20 ms for one number; 1 MiB in 1.0 ms (1.05 GB/s); "
        "25 MiB in 25.0 ms (1.05 GB/s)"
    )


def test_hosts_without_torch_are_not_asked_to_add_up() -> None:
    (found,) = ask_all_reduce([asked("a")], REACH, {}, interface=None, master_port=1)
    assert found.code == "hosts-not-asked"


def test_ccl_is_measured_too_where_all_hosts_have_the_bindings(tmp_path: Path) -> None:
    reach = told_instead(json.dumps({"seconds": [0.001, 0.01, 0.1]}), tmp_path)
    packages = tuple(
        Package(name=name, version=version, location="/venv")
        for name, version in (("torch", "2.8.0"), ("oneccl_bind_pt", "2.8.0"))
    )
    hosts = [asked(name, *packages) for name in ("a", "b")]
    told = {"a": "10.0.0.1"}
    found = tuple(ask_all_reduce(hosts, reach, told, interface="eth0", master_port=29500))
    assert [finding.evidence.partition(",")[0] for finding in found] == ["gloo", "ccl"]
    shell = (tmp_path / "noted").read_text().split("\0")
    assert shell[:2] == ["bash", "-c"]
    assert shell[3] == "/venv/oneccl_bindings_for_pytorch/env/setvars.sh"
    text = (tmp_path / "noted.asked").read_bytes()
    said = json.loads(zlib.decompress(base64.b85decode(text.strip())))
    assert said["module"] == "oneccl_bindings_for_pytorch"
    assert said["variables"]["MASTER_ADDR"] == "10.0.0.1"
    assert said["variables"]["CCL_KVS_IFACE"] == "eth0"


@pytest.mark.torch
def test_two_ranks_add_up_for_real() -> None:
    torch = Package(name="torch", version="2.13.0", location=None)
    hosts = [asked(name, torch) for name in ("a", "b")]
    told = {"a": "127.0.0.1"}
    (found,) = ask_all_reduce(hosts, REACH, told, interface="lo", master_port=free_port())
    assert found.code == "hosts-all-reduce", found.evidence
    assert "25 MiB in" in found.evidence


def test_what_is_sent_needs_no_more_than_python_3_7() -> None:
    import ast

    folder = Path(str(network.__file__)).parents[1] / "looks"
    for name in ("names.py", "meet.py"):
        ast.parse((folder / name).read_text(), feature_version=(3, 7))
