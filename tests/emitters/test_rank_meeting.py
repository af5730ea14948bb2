"""Ranks of several hosts meet before they train: all go on or none does, and it is said once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from in_process import ran

import cputune.emitters
from cputune.emitters import _meet

HERE = Path(cputune.emitters.__file__).parent
GOOD = str(min(os.sched_getaffinity(0)))
BAD = "4000"
NAME = socket.gethostname()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert isinstance(port, int)
    return port


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """rank.py and meet.py as they lie beside a launch."""
    for name in ("rank.py", "meet.py"):
        shutil.copy(HERE / f"_{name}", tmp_path / name)
    return tmp_path / "rank.py"


def ranks(
    beside: Path, cpus: list[str], *, came: int | None = None, seconds: int = 30
) -> list[subprocess.CompletedProcess[str]]:
    """One rank on each of so many hosts; the first ``came`` of them are started."""
    port = free_port()

    def start(rank: int) -> subprocess.CompletedProcess[str]:
        numbers = {"RANK": str(rank), "WORLD_SIZE": str(len(cpus)), "LOCAL_RANK": "0"}
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        argv = [sys.executable, str(beside), "--launcher", "torch"]
        argv += [word for one in cpus for word in ("--cpus", one)]
        argv += ["--meet", str(seconds), "--", "-c", "print('trains')"]
        return ran(argv, env={"PATH": os.environ["PATH"], **numbers, **there})

    with ThreadPoolExecutor() as pool:
        return list(pool.map(start, range(came or len(cpus))))


def test_all_that_can_run_go_on(beside: Path) -> None:
    done = ranks(beside, [GOOD] * 3)
    assert [(one.returncode, one.stdout, one.stderr) for one in done] == [(0, "trains\n", "")] * 3


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_one_that_cannot_have_its_cpus_ends_all_and_the_reason_is_said_once(
    beside: Path, wrong: int
) -> None:
    began = time.monotonic()
    done = ranks(beside, [BAD if rank == wrong else GOOD for rank in range(3)], seconds=300)
    assert time.monotonic() - began < 60
    assert [one.returncode for one in done] == [3, 3, 3]
    assert "".join(one.stdout for one in done) == ""
    said = "".join(one.stderr for one in done)
    assert said.startswith(f"error: {NAME}: rank 0 cannot have CPUs {BAD}, it may use")
    assert said.count("error: ") == said.count("hint: ") == 1


def test_several_that_cannot_are_counted(beside: Path) -> None:
    said = "".join(one.stderr for one in ranks(beside, [GOOD, BAD, BAD]))
    assert said.count("error: ") == 1
    assert f"(nor can 1 more, of {NAME})" in said


def test_a_rank_that_never_comes_is_named(beside: Path) -> None:
    done = ranks(beside, [GOOD] * 3, came=2, seconds=2)
    assert [one.returncode for one in done] == [3, 3]
    said = "".join(one.stderr for one in done)
    assert "member 2 of 3 did not come to 127.0.0.1:" in said
    assert said.count("error: ") == 1


def test_where_the_first_rank_is_not_there_the_others_say_so(beside: Path) -> None:
    with pytest.raises(_meet.Trouble, match="nobody to meet at 127") as trouble:
        _meet.meet(1, 2, "127.0.0.1", free_port(), 0.5)
    assert not trouble.value.said


def test_a_rank_that_cannot_run_says_so_itself_where_nobody_hears_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_meet, "TELL_SECONDS", 0.5)
    with pytest.raises(_meet.Trouble, match=f"{NAME}: no CPUs") as trouble:
        _meet.meet(1, 2, "127.0.0.1", free_port(), 300, ("no CPUs", "tune there"))
    assert (trouble.value.said, trouble.value.hint) == (False, "tune there")


def speak(port: int, word: bytes) -> None:
    """Somebody who speaks to that port as soon as it is open, and hangs up."""
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(word)
                return
        except OSError:
            time.sleep(0.05)


def test_strangers_at_the_port_are_passed_over() -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(_meet.meet, 0, 2, "127.0.0.1", port, 30)
        for word in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"",
            b'["cputune", 7, null]\n',
            b"[" * 9000,
            b"{}\n",
        ):
            speak(port, word)
        _meet.meet(1, 2, "127.0.0.1", port, 30)
        assert first.result() is None


def test_somebody_else_at_the_port_is_told_from_the_first_rank() -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"220 mail\n")

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        other = pool.submit(answer, server)
        with pytest.raises(_meet.Trouble, match="it hung up, or is somebody else"):
            _meet.meet(1, 2, "127.0.0.1", server.getsockname()[1], 0)
        other.result()


def test_a_port_that_is_taken_is_told() -> None:
    with (
        socket.create_server(("", 0)) as server,
        pytest.raises(_meet.Trouble, match="cannot be listened on"),
    ):
        _meet.meet(0, 2, "127.0.0.1", server.getsockname()[1], 5)


def test_the_port_is_free_at_once_for_the_training() -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda n: _meet.meet(n, 3, "127.0.0.1", port, 30), range(3)))
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_hosts_look_and_meet_before_torchrun_starts(beside: Path) -> None:
    port = str(free_port())

    def look(node: int) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(beside), "--cpus", GOOD, "--cpus", f"{GOOD}/{BAD}"]
        return ran(
            [*argv, "--meet", "300", "--node", f"{node}/2", "--look"],
            env={"PATH": os.environ["PATH"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )

    with ThreadPoolExecutor() as pool:
        both = list(pool.map(look, range(2)))
    assert [one.returncode for one in both] == [3, 3]
    for one in both:  # each on the terminal of its own host
        assert one.stderr.count(f"{NAME}: rank 1 cannot have CPUs {BAD}") == 1
