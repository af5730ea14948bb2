"""Links, their addresses and the way out, read from the files of /proc/net as Linux writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hosts.builder import machine

from cputune import probe
from cputune.host.facts import Link, Network
from cputune.host.probing.recording import record
from cputune.report.machine_text import host_document

HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
ETH0 = "eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"  # 10.0.0.0/24
IB0 = "ib0 0000010A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"  # 10.0.1.0/24, reversed: 10.1.0.0
OUT = "eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n"


def leaf(address: str) -> str:
    return f"           |-- {address}\n              /32 host LOCAL\n"


def network(root: Path, *, links: tuple[str, ...] = ("eth0", "ib0"), **texts: str) -> Network:
    files = {
        "/proc/net/route": texts.get("route", HEAD + OUT + ETH0 + IB0),
        "/proc/net/fib_trie": texts.get("trie", leaf("127.0.0.1") + leaf("10.0.0.7")),
        "/proc/net/if_inet6": texts.get("six", ""),
        "/proc/sys/kernel/hostname": "node1\n",
        "/etc/hosts": "127.0.1.1 node1\n",
    }
    for name in ("lo", *links):
        state = {"lo": "unknown", "ib0": "down"}.get(name, "up")
        files[f"/sys/class/net/{name}/operstate"] = f"{state}\n"
        files[f"/sys/class/net/{name}/speed"] = "25000\n" if name == "eth0" else "-1\n"
    return probe(machine(root, cores=2, files=files)).network


def link(found: Network, name: str) -> Link:
    return next(link for link in found.links or () if link.name == name)


def test_the_document_does_not_name_the_machine(tmp_path: Path) -> None:
    files = {"/sys/class/net/eth0/operstate": "up\n", "/proc/sys/kernel/hostname": "node1\n"}
    said = host_document(probe(machine(tmp_path, cores=2, files=files)))["network"]
    assert said["interfaces"] == ["eth0"]
    assert "node1" not in str(said)


def test_the_kernel_tells_who_carries_and_how_fast(tmp_path: Path) -> None:
    found = network(tmp_path)
    assert {link.name: (link.up, link.mbits_per_second) for link in found.links or ()} == {
        "lo": (True, None),
        "eth0": (True, 25000),
        "ib0": (False, None),
    }


def test_a_lone_address_of_a_cloud_is_of_the_link_that_leads_out(tmp_path: Path) -> None:
    gateway = "eth0 0100000A 00000000 0005 0 0 0 FFFFFFFF 0 0 0\n"
    found = network(tmp_path, route=HEAD + OUT + gateway, trie=leaf("10.128.0.2"))
    assert link(found, "eth0").addresses == ("10.128.0.2/32",)


def test_an_address_that_may_be_of_two_links_is_of_none_and_said_to_be_unknown(
    tmp_path: Path,
) -> None:
    twin = ETH0.replace("eth0", "ib0")
    files = {
        "/proc/net/route": HEAD + ETH0 + twin,
        "/proc/net/fib_trie": leaf("10.0.0.7"),
        "/sys/class/net/eth0/operstate": "up\n",
        "/sys/class/net/ib0/operstate": "up\n",
    }
    facts = probe(machine(tmp_path, cores=2, files=files))
    assert [link.addresses for link in facts.network.links or ()] == [(), ()]
    assert "10.0.0.7" in str(facts.why_unknown("network.links.addresses"))


def test_damaged_files_are_no_network(tmp_path: Path) -> None:
    found = network(
        tmp_path, route="x\neth0 zz 1\n\0", trie="|-- 1.2.3.999\n /32 host LOCAL\n", six="g 1 2\n"
    )
    assert [link.addresses for link in found.links or ()] == [(), (), ()]


def test_a_recording_has_the_links_and_none_of_their_addresses(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "/proc/net/route": HEAD + OUT + ETH0 + IB0,
        "/proc/net/fib_trie": leaf("10.0.0.7") + leaf("10.1.0.7"),
        "/proc/net/if_inet6": "fd000000000000000000000000000002 04 40 00 82 eth0\n",
        "/sys/class/net/eth0/operstate": "up\n",
        "/sys/class/net/ib0/operstate": "up\n",
        "/sys/class/net/enx0011223344ff/operstate": "down\n",
    }
    original = machine(tmp_path / "machine", cores=2, files=files)

    facts = probe(record(original, tmp_path / "recording"))
    found = facts.network

    assert "/proc/net/fib_trie" in str(facts.why_unknown("network.links"))
    assert found.interfaces == ("enx0", "eth0", "ib0")
    assert found.links is None
    kept = "".join(
        path.read_text() for path in (tmp_path / "recording").rglob("*") if path.is_file()
    )
    assert "0000000A" not in kept
    assert "10.1.0.7" not in kept
    assert "0011223344ff" not in kept
