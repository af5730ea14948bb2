"""Host files of every MPI, and what stands in them by mistake."""

from __future__ import annotations

import pytest
from emit_machines import one_socket
from golden_texts import Golden
from hypothesis import given, strategies as st
from rows import every_row

from cputune import CputuneError, Node, UsageError, emit
from cputune.emitters import parse_hostfile, parse_hosts
from cputune.host.remote.named import choose


def test_every_dialect_is_read() -> None:
    text = """
# a comment
node1                     # one more
node2 slots=4 max_slots=8

node3:2
10.0.0.4:2
fd00::5
[fd00::6]:3\r
[fd00::7] slots=2
a_b.example.com.
"""
    assert parse_hostfile(text) == (
        Node(name="node1"),
        Node(name="node2", slots=4),
        Node(name="node3", slots=2),
        Node(name="10.0.0.4", slots=2),
        Node(name="fd00::5"),
        Node(name="fd00::6", slots=3),
        Node(name="fd00::7", slots=2),
        Node(name="a_b.example.com."),
    )


def test_a_host_file_of_hydra_and_one_of_open_mpi() -> None:
    text = "a:2 binding=user:0 ifname=eth1\nb slots=4 max_slots=8 username=me\n"
    assert parse_hostfile(text) == (Node(name="a", slots=2), Node(name="b", slots=4, user="me"))


@every_row(
    ("text", "names"),
    [
        ("a[01-04]", "a01 a02 a03 a04"),
        ("cn[01-02,05]-ib,x", "cn01-ib cn02-ib cn05-ib x"),
        ("r[1-2]n[8-10]", "r1n8 r1n9 r1n10 r2n8 r2n9 r2n10"),
        ("me@a,b:22", "a b"),
        ("n[1-2]:4", "n1 n2"),
    ],
)
def test_ranges_users_and_slots_as_operators_write_them(text: str, names: str) -> None:
    assert [node.name for node in parse_hosts(text)] == names.split()


@every_row(
    ("text", "said"),
    [
        ("", "names no host"),
        ("# nothing\n\n", "names no host"),
        ("a\nb slots=two", "line 2: cannot read 'slots=two'"),
        ("a:x", "'a:x' is not a host name"),
        ("a slots=0", "a has no slots"),
        ("a:0", "a has no slots"),
        ("$(reboot)", "is not a host name"),
        ("-n 3", "is not a host name"),
        ("[fd00::1", "is not a host name"),
        ("[fd00::1]x", "is not a host name"),
        ("fd00:::1", "is not a host name"),
        ("nöde", "is not a host name"),
        ("a\0b", "is not a host name"),
        ("n[3-1]", "n[3-1] names no host"),
        ("n[0-999999999]", "names too many hosts"),
        ("n[1-x]", "is not a host name"),
        ("me me@a", "cannot read 'me@a'"),
        ("-o@a", "is not a host name"),
        ("a" * 300, "is not a host name"),
        ("n[1-65537]", "n[1-65537] names too many hosts"),
        ("a:1000000000", "is not a host name"),
    ],
)
def test_mistakes_are_reported_with_their_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hostfile(text, where="hosts.txt")
    assert said in str(caught.value)
    assert caught.value.hint


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        nodes = parse_hostfile(text)
    except CputuneError:
        return
    for node in nodes:
        assert node.name.isascii()
        assert not set(node.name) & set(" \t\n'\"$`;&|<>()")
        assert not node.name.startswith("-")


def test_a_host_that_is_named_twice_keeps_who_logs_in() -> None:
    assert parse_hostfile("me@a\na\n") == (Node(name="a", slots=2, user="me"),)
    assert parse_hostfile("me@a:3\nyou@a\n") == (Node(name="a", slots=4, user="you"),)


@pytest.mark.parametrize(
    ("wanted", "ranks", "said"),
    [
        (2, 1, None),
        (1, 2, None),
        (1, 3, "a has 2 slots, and the plan starts 3 ranks on each node"),
        (2, 2, "b has 1 slot, and the plan starts 2 ranks on each node"),
        (4, 1, "4 nodes are needed, but 3 hosts given"),
    ],
)
def test_nodes_are_chosen_by_their_slots(wanted: int, ranks: int, said: str | None) -> None:
    nodes = parse_hosts("a:2,b:1,c")
    if said is None:
        assert choose(nodes, wanted, ranks) == nodes[:wanted]
        assert choose(nodes[2:], 1, 99) == nodes[2:]
        return
    with pytest.raises(UsageError) as caught:
        choose(nodes, wanted, ranks)
    assert str(caught.value) == said
    with pytest.raises(UsageError, match="2 nodes are needed, but 1 host given"):
        choose(nodes[:1], 2, 1)


def emitted(format: str, hosts: str, **options: object) -> dict[str, str]:
    files = emit(one_socket().result, format, hosts=parse_hosts(hosts), **options)  # type: ignore[arg-type]
    return {file.name: file.text for file in files}


def test_the_hosts_are_written_in_the_dialect(golden: Golden) -> None:
    assert emitted("mpirun", "a,b:2", mpi="mpich")["hosts.hydra"].endswith("\na:2\nb:2\n")
    for mpi in ("openmpi4", "openmpi5"):
        files = emitted("mpirun", "a,b:2", mpi=mpi)
        assert files["hosts.openmpi"].endswith("\na slots=2\nb slots=2\n")
        assert "hosts.hydra" not in files
    files = emitted("mpirun", "a,[fd00::1]:2", mpi="openmpi5")
    golden(files["hosts.openmpi"])


def test_the_first_host_is_the_master() -> None:
    assert "MASTER_ADDR=a\n" in emitted("mpirun", "a,b", mpi="openmpi5")["mpirun.sh"]
    assert "--master-addr a " in emitted("torchrun", "a,b")["torchrun.sh"]
    assert 'main_process_ip: "a"' in emitted("accelerate", "a,b")["accelerate.yaml"]


@pytest.mark.parametrize(
    ("hosts", "options", "said"),
    [
        ("a:1,b", {}, "a has 1 slot, and the plan starts 2 ranks on each node"),
        ("a,b", {"nodes": 3}, "3 nodes are needed, but 2 hosts given"),
        ("fd00::1,b", {"mpi": "intelmpi"}, "cannot read the address fd00::1"),
        ("fd00::1,b", {"mpi": "openmpi4"}, "Open MPI 4 cannot read the address fd00::1"),
    ],
)
def test_what_does_not_fit(hosts: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(CputuneError) as caught:
        emitted("mpirun", hosts, **options)
    assert said in str(caught.value)
    assert caught.value.hint


def test_an_unknown_mpi_with_ipv6_hosts_leaves_what_cannot_read_them() -> None:
    files = emitted("mpirun", "fd00::1,b", mpi=None)
    assert "hosts.hydra" not in files
    assert "HYDRA" not in files["mpirun.sh"]
    assert "(Open MPI)" in files["mpirun.sh"]
