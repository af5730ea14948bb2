"""Host files of every MPI, and what stands in them by mistake."""

from __future__ import annotations

import pytest
from emit_machines import one_socket
from golden_texts import Golden
from rows import every_row

from cputune import CputuneError, Node, UsageError, emit
from cputune.emitters import parse_hostfile, parse_hosts


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
        ("a slots=0", "a has no slots"),
        ("fd00:::1", "is not a host name"),
        ("n[3-1]", "n[3-1] names no host"),
        ("n[0-999999999]", "names too many hosts"),
        ("me me@a", "cannot read 'me@a'"),
    ],
)
def test_mistakes_are_reported_with_their_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hostfile(text, where="hosts.txt")
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_host_that_is_named_twice_keeps_who_logs_in() -> None:
    assert parse_hostfile("me@a\na\n") == (Node(name="a", slots=2, user="me"),)
    assert parse_hostfile("me@a:3\nyou@a\n") == (Node(name="a", slots=4, user="you"),)


def emitted(format: str, hosts: str, **options: object) -> dict[str, str]:
    files = emit(one_socket().result, format, hosts=parse_hosts(hosts), **options)  # type: ignore[arg-type]
    return {file.name: file.text for file in files}


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


def test_the_hosts_are_written_in_the_dialect(golden: Golden) -> None:
    assert emitted("mpirun", "a,b:2", mpi="mpich")["hosts.hydra"].endswith("\na:2\nb:2\n")
    for mpi in ("openmpi4", "openmpi5"):
        files = emitted("mpirun", "a,b:2", mpi=mpi)
        assert files["hosts.openmpi"].endswith("\na slots=2\nb slots=2\n")
        assert "hosts.hydra" not in files
    files = emitted("mpirun", "a,[fd00::1]:2", mpi="openmpi5")
    golden(files["hosts.openmpi"])
