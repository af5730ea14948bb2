"""Ranks of other hosts speak over TCP: whoever has the token is heard, nobody else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cputune.inside import SOCKET_VARIABLE
from cputune.inside.messages import connected
from cputune.ranks.listen import Inbox, Line

HELLO = b'{"event": "hello", "rank": 3}\n{"event": "note", "text": "x"}\n'


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Inbox]:
    with contextlib.closing(Inbox(tmp_path, host="127.0.0.1")) as made:
        yield made


def heard(post: Inbox, seconds: float = 30.0) -> list[tuple[object, object]]:
    """What comes until a line is closed, or the time is up."""
    said: list[tuple[object, object]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not any(message is None for _, message in said):
        said += post.wait(0.1)
    return said


def test_a_rank_with_the_token_is_heard_as_one_of_this_machine_is(post: Inbox) -> None:
    for address in (post.address, post.path):
        with connected(address) as rank:
            rank.sendall(HELLO)
        assert heard(post)[1:] == [(3, {"event": "note", "text": "x"}), (3, None)]


def test_a_rank_says_it_with_the_address_alone(post: Inbox) -> None:
    code = (
        "from cputune.inside.messages import Speaker; Speaker().say({'event': 'note', 'text': 'x'})"
    )
    there = {**os.environ, SOCKET_VARIABLE: post.address, "RANK": "7"}
    subprocess.run([sys.executable, "-c", code], env=there, check=True, timeout=60)
    assert [source for source, _ in heard(post)] == [7, 7, 7]


@pytest.mark.parametrize(
    "words", [HELLO, b"0" * 32 + b"\n" + HELLO, b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b""]
)
def test_a_stranger_is_not_heard_and_not_told_anything(post: Inbox, words: bytes) -> None:
    _, _, port, _ = post.address.split(":")
    with socket.create_connection(("127.0.0.1", int(port)), 5) as stranger:
        stranger.sendall(words)
        if not words:
            stranger.shutdown(socket.SHUT_WR)
        assert [message for _, message in heard(post) if message is not None] == []
        post.send_to_ranks({"steps": 1})
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(10) == b""


def test_those_that_have_said_who_they_are_are_told(post: Inbox) -> None:
    with connected(post.address) as silent, connected(post.path) as rank:
        rank.sendall(HELLO)
        while not post.wait(0.1):
            pass
        post.send_to_ranks({"steps": 1})
        assert json.loads(rank.recv(100)) == {"steps": 1}
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):
            silent.recv(100)


@pytest.mark.parametrize(("error", "lost"), [(errno.ETIMEDOUT, [3]), (errno.ECONNRESET, [])])
def test_a_rank_whose_connection_the_kernel_gives_up_is_lost(
    error: int, lost: list[int], post: Inbox
) -> None:
    class Cut(socket.socket):
        def recv(self, *_: object) -> bytes:
            raise OSError(error, "")

    ours, rank = socket.socketpair()
    line = Line()
    line.source = 3
    with rank, Cut(fileno=ours.detach()) as cut:
        post.add(cut, line)
        rank.sendall(b"x")
        assert post.wait(30) == [(3, None)]
    assert post.lost == lost


def test_an_address_of_ipv6_is_one_too(tmp_path: Path) -> None:
    try:
        post = Inbox(tmp_path, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with contextlib.closing(post), connected(post.address) as rank:
        rank.sendall(HELLO)
        rank.shutdown(socket.SHUT_WR)
        assert json.dumps(heard(post)[0][1]) == '{"event": "hello", "rank": 3}'


def test_without_an_address_nothing_listens_on_the_network(tmp_path: Path) -> None:
    with contextlib.closing(Inbox(tmp_path)) as post:
        assert post.address == post.path
