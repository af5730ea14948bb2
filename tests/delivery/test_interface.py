"""Which interface several hosts talk on, and that every layer is told the same one."""

from __future__ import annotations

import pytest
from golden_texts import Golden

from cputune import UsageError
from cputune.host.facts import Link, Network
from cputune.plans.delivery.network_interface import checked, choose_interface

LO = Link(name="lo", up=True, addresses=("127.0.0.1/8",))


def link(name: str, *addresses: str, up: bool = True, mbits: int | None = None) -> Link:
    return Link(name=name, up=up, addresses=addresses, mbits_per_second=mbits)


def host(*links: Link, own: str | None = None, default: str | None = None) -> Network:
    return Network(
        links=(LO, *links), hostname_addresses=(own,) if own else (), default_link=default
    )


def test_what_the_kernel_would_not_call_an_interface_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        checked("")
    assert caught.value.hint


def test_loopback_is_refused_between_hosts_and_not_on_one() -> None:
    assert checked("lo", nodes=1) == "lo"
    with pytest.raises(UsageError, match="loopback"):
        checked("lo", nodes=2)


def test_the_network_that_all_share_is_chosen() -> None:
    eth = [link("eth0", f"192.168.{n}.5/24", mbits=100000) for n in (1, 2)]
    ib = [link("ib0", f"10.0.0.{n}/24") for n in (1, 2)]
    hosts = [("a", host(eth[0], ib[0], default="eth0")), ("b", host(eth[1], ib[1], default="eth0"))]
    chosen = choose_interface(hosts)
    assert chosen.name == "ib0"
    assert chosen.addresses == ("10.0.0.1", "10.0.0.2")
    assert "10.0.0.0/24" in chosen.why


def test_of_two_shared_networks_the_names_of_the_hosts_decide_then_the_way_out() -> None:
    def one(n: int, own: str | None = None) -> Network:
        links = (link("eth0", f"10.0.0.{n}/24"), link("ib0", f"10.1.0.{n}/24", mbits=200000))
        return host(*links, own=own, default="eth0")

    assert choose_interface([("a", one(1)), ("b", one(2))]).name == "eth0"
    by_file = [("a", one(1, own="10.1.0.1")), ("b", one(2, own="10.1.0.2"))]
    assert choose_interface(by_file).name == "ib0"
    asked = choose_interface([("a", one(1)), ("b", one(2))], {"a": "10.1.0.1", "b": "10.1.0.2"})
    assert asked.name == "ib0"


def test_hosts_that_call_it_differently_are_distinguished_in_words(golden: Golden) -> None:
    a, b = host(link("eth0", "10.0.0.1/24")), host(link("ens3", "10.0.0.2/24"))
    chosen = choose_interface([("a", a), ("b", b)])
    assert chosen.name is None
    golden(chosen.why)


def test_nothing_is_chosen_if_a_host_does_not_tell(golden: Golden) -> None:
    chosen = choose_interface([("a", host(link("eth0", "10.0.0.1/24"))), ("b", Network())])
    assert chosen.name is None
    golden(chosen.why)


def test_routed_networks_will_do_if_none_is_shared() -> None:
    a, b = host(link("eth0", "10.0.1.5/24")), host(link("eth0", "10.0.2.5/24"))
    chosen = choose_interface([("a", a), ("b", b)])
    assert chosen.name == "eth0"
    assert "several networks" in chosen.why
