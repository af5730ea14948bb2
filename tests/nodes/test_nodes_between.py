"""The network between two hosts, with planted faults, as `doctor --hosts` finds them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from nodes.cluster import Cluster, two_hosts
from nodes.launches import tiny
from nodes.namespaces import Odd

from cputune import HostsDiagnosis
from cputune.doctor.hosts import look_at_hosts
from cputune.doctor.hosts.network import Rate
from cputune.host import this_interpreter
from cputune.host.remote.named import parse_hosts
from cputune.host.remote.reach import find_reach
from cputune.ranks.hosts import open_hosts, with_rate

pytestmark = pytest.mark.nodes


def ssh(hosts: Cluster) -> tuple[str, str]:
    """The option that reaches the hosts from here."""
    return "--ssh", shlex.join(hosts.ssh)


def network_findings(hosts: Cluster) -> dict[str, str]:
    """Evidence by code, of the codes that tell of names, interfaces and ports."""
    reach = find_reach("ssh", ssh=shlex.join(hosts.ssh))
    found: HostsDiagnosis = look_at_hosts(parse_hosts("alpha,beta"), reach, seconds=60)
    mine = ("name", "gloo", "lib", "int", "ma", "po", "a", "la")
    return {
        f.code: f.evidence
        for f in found.findings
        if f.code.startswith(tuple(f"hosts-{one}" for one in mine))
    }


def test_two_hosts_in_order_reach_each_other(hosts: Cluster) -> None:
    assert network_findings(hosts) == {}


def test_a_blocked_master_port_is_named(hosts: Cluster) -> None:
    hosts.block("alpha", 29500)
    try:
        found = network_findings(hosts)
    finally:
        hosts.unblock("alpha", 29500)
    assert found == {"hosts-master-port": "alpha:29500 cannot be reached from beta: no answer"}


def test_a_firewall_on_the_ports_of_ranks_is_named_with_one_of_them(hosts: Cluster) -> None:
    hosts.block("beta", "33000:60000")
    try:
        found = network_findings(hosts)
    finally:
        hosts.unblock("beta", "33000:60000")
    said = found["hosts-ports-blocked"]
    assert said.startswith(f"{hosts.addresses['beta']}:")
    assert said.endswith(" of beta cannot be reached from alpha: no answer")


def test_frames_that_a_switch_drops_are_found_and_what_works_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with two_hosts() as hosts:
        way = find_reach("ssh", ssh=shlex.join(hosts.ssh))
        hosts.second_network()
        for asked, taken in ((None, "eth0"), ("eth1", "eth1")):
            with monkeypatch.context() as here:
                here.setenv("GLOO_SOCKET_IFNAME", asked or "")
                there = open_hosts(
                    parse_hosts("alpha,beta"),
                    way,
                    tiny(tmp_path),
                    interpreter=this_interpreter(),
                )
                assert there.interface == taken
        for name in hosts.names:
            hosts.jumbo_frames(name)
        found = network_findings(hosts)
        said = found.pop("hosts-large-messages")
        # MASTER_ADDR is a name, and names lead to eth0.
        master = "alpha:29500 cannot be reached from beta: 64 KiB do not get through"
        assert found == {"hosts-master-port": master}
        assert said == (
            "eth0: 64 KiB do not arrive from beta to alpha, alpha to beta; they do over eth1"
        )
        there = open_hosts(
            parse_hosts("alpha,beta"),
            way,
            tiny(tmp_path),
            interpreter=this_interpreter(),
        )
        assert there.interface == "eth1"


@pytest.mark.torch
def test_a_slow_network_is_measured_before_the_first_trial(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        way = find_reach("ssh", ssh=shlex.join(hosts.ssh))
        there = open_hosts(
            parse_hosts("alpha,beta"),
            way,
            tiny(tmp_path),
            interpreter=this_interpreter(),
            seconds=60,
        )
        quick = with_rate(there, this_interpreter(), seconds=60).rate
        for name in hosts.names:
            hosts.shape(name, "2mbit")
        slow = with_rate(there, this_interpreter(), seconds=60).rate
    assert isinstance(quick, Rate), quick
    assert isinstance(slow, Rate), slow
    assert slow.bytes_per_second < 1e6 < quick.bytes_per_second
    assert "over eth0" in slow.words


@pytest.mark.parametrize("slow", ["alpha", "beta"])
def test_a_slow_login_makes_no_network_a_broken_one(
    slow: str, hosts: Cluster, tmp_path: Path
) -> None:
    """12 s later than the other: more than a connection has."""
    ssh = tmp_path / "ssh"
    late = f'case "$*" in *" {slow} "*) sleep 12;; esac'
    ssh.write_text(f'#!/bin/sh\n{late}\nexec {" ".join(hosts.ssh)} "$@"\n')
    ssh.chmod(0o755)
    way = find_reach("ssh", ssh=str(ssh))
    there = open_hosts(
        parse_hosts("alpha,beta"), way, tiny(tmp_path), interpreter=this_interpreter(), seconds=60
    )
    assert there.interface == "eth0"


def test_debian_s_own_name_is_found_on_the_host_that_has_it() -> None:
    with two_hosts(beta=Odd(first_in_hosts="127.0.1.1 beta")) as hosts:
        found = network_findings(hosts)
    assert found == {"hosts-gloo-interface": "own names resolve to loopback: beta as 127.0.1.1"}
