"""Ports and names between hosts, asked for real: the hosts are addresses of this machine."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from unknown_machine import UNKNOWN

from cputune.doctor.finding import Severity
from cputune.doctor.hosts import reached
from cputune.doctor.hosts.all_reduce import ask_all_reduce, describe_all_reduce
from cputune.doctor.hosts.asking import Asked
from cputune.doctor.hosts.look import not_between
from cputune.doctor.hosts.reached import ask_names, ask_ports, judge_ports
from cputune.errors import Unreachable
from cputune.facts import Network, Package
from cputune.host import Command, Completed, LiveHost


class FakeDoor:
    """Runs what is sent to a host here, or what a test says in its place."""

    python = sys.executable

    def __init__(self, instead: Callable[[Command], Completed] | None = None) -> None:
        self.run = instead or LiveHost().run


def asked(name: str, door: FakeDoor | None = None) -> Asked:
    facts = replace(UNKNOWN, network=Network(), packages=())
    return Asked(name=name, facts=facts, door=door or FakeDoor())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


HERE = {"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.2", "127.0.0.3": "127.0.0.3"}


def test_hosts_that_reach_each_other_have_no_finding() -> None:
    hosts = [asked(name) for name in HERE]
    assert ask_ports(hosts, HERE, master_port=free_port(), seconds=20) == ()


def test_a_port_that_is_taken_is_named_and_no_firewall_is_blamed() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        hosts = [asked(name) for name in ("127.0.0.1", "127.0.0.2")]
        found = ask_ports(hosts, {}, master_port=port, seconds=20)
    assert [finding.code for finding in found] == ["hosts-port-taken"]
    assert f"port {port} on 127.0.0.1" in found[0].evidence


def test_a_port_that_nobody_reaches_is_named_with_who_tried() -> None:
    answers = {
        "a": {"closed": {}, "reached": {"b": "", "c": ""}},
        "b": {"closed": {}, "reached": {"": "no answer", "a": "", "c": "no answer"}},
        "c": {"closed": {}, "reached": {"": "no answer", "a": "", "b": ""}},
    }
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    ports = {"a": 40001, "b": 40002, "c": 40003}
    master, mesh = judge_ports("a", 29500, answers, addresses, ports)
    assert master.code == "hosts-master-port"
    assert master.evidence == "a:29500 is not reached from b, c: no answer"
    assert mesh.code == "hosts-ports-blocked"
    assert mesh.evidence == "10.0.0.3:40003 of c is not reached from b: no answer"


def test_names_are_those_that_the_host_resolves() -> None:
    (named,), silent = ask_names([asked("localhost")])
    assert silent == ()
    assert "127.0.0.1" in named.names["localhost"] or "::1" in named.names["localhost"]
    assert named.own is None or isinstance(named.own, str)


def test_a_host_that_does_not_answer_is_said_and_not_judged() -> None:
    def lost(command: Command) -> Completed:
        raise Unreachable("b", "the cable was pulled")

    def broken(command: Command) -> Completed:
        return Completed(returncode=1, stdout="", stderr="no such python\n", seconds=0.1)

    hosts = [asked("localhost"), asked("b", FakeDoor(lost)), asked("c", FakeDoor(broken))]
    named, silent = ask_names(hosts)
    assert [one.host for one in named] == ["localhost"]
    assert "the cable was pulled" in silent[0].evidence
    assert "no such python" in silent[1].evidence
    assert {finding.code for finding in silent} == {"hosts-not-asked"}


def test_of_many_hosts_each_reaches_some_and_the_first() -> None:
    names = [f"n{number}" for number in range(100)]
    addresses = dict.fromkeys(names, "10.0.0.1")
    goals = reached._goals(names, "n98", addresses)
    assert goals == ["n99", "n0", "n1", "n2", "n3", "n4", "n5", "n6"]
    assert len(reached._goals(names[:4], "n1", addresses)) == 3


def test_the_figures_of_an_all_reduce_have_units() -> None:
    text = describe_all_reduce("gloo", {4: 0.0002, 1 << 20: 0.001, 25 << 20: 0.025}, 2, "eth0")
    assert text == (
        "gloo, 2 ranks over eth0: 0.20 ms for one number; 1 MiB in 1.0 ms (1.05 GB/s); "
        "25 MiB in 25.0 ms (1.05 GB/s)"
    )


def test_hosts_without_torch_are_not_asked_to_add_up() -> None:
    (found,) = ask_all_reduce([asked("a")], {}, interface=None, master_port=1)
    assert found.code == "hosts-not-asked"


def test_ccl_is_measured_too_where_all_hosts_have_the_bindings() -> None:
    ran: list[Command] = []

    def answer(command: Command) -> Completed:
        ran.append(command)
        seconds = {"4": 0.001, str(1 << 20): 0.01, str(25 << 20): 0.1}
        told = json.dumps({"seconds": seconds, "ranks": 2})
        return Completed(returncode=0, stdout=f"noise\n{told}\n", stderr="", seconds=1.0)

    packages = tuple(
        Package(name=name, version=version, location="/venv")
        for name, version in (("torch", "2.8.0"), ("oneccl_bind_pt", "2.8.0"))
    )
    facts = replace(UNKNOWN, packages=packages)
    hosts = [Asked(name=name, facts=facts, door=FakeDoor(answer)) for name in ("a", "b")]
    found = tuple(ask_all_reduce(hosts, {"a": "10.0.0.1"}, interface="eth0", master_port=29500))
    assert [finding.evidence.partition(",")[0] for finding in found] == ["gloo", "ccl"]
    shell = ran[-1].argv
    assert shell[:2] == ("bash", "-c")
    assert shell[3] == "/venv/oneccl_bindings_for_pytorch/env/setvars.sh"
    said = json.loads(shell[-1])
    assert said["module"] == "oneccl_bindings_for_pytorch"
    assert said["variables"]["MASTER_ADDR"] == "10.0.0.1"
    assert said["variables"]["CCL_KVS_IFACE"] == "eth0"


@pytest.mark.torch
def test_two_ranks_add_up_for_real() -> None:
    torch = Package(name="torch", version="2.13.0", location=None)
    facts = replace(UNKNOWN, packages=(torch,))
    hosts = [Asked(name=name, facts=facts, door=FakeDoor()) for name in ("a", "b")]
    (found,) = ask_all_reduce(hosts, {"a": "127.0.0.1"}, interface="lo", master_port=free_port())
    assert found.code == "hosts-all-reduce", found.evidence
    assert "25 MiB in" in found.evidence


def test_what_is_sent_needs_no_more_than_python_3_7() -> None:
    import ast

    folder = Path(str(reached.__file__)).parents[1] / "looks"
    for name in ("names.py", "meet.py"):
        ast.parse((folder / name).read_text(), feature_version=(3, 7))


def test_of_more_hosts_than_are_asked_together_it_is_said() -> None:
    found = not_between(1000)
    assert found.severity is Severity.ADVICE
    assert "1000 hosts" in found.evidence
