"""What ranks of another host report comes over the input and output of one command."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cputune.host.remote.ask import far_command, script_text, sent_lines
from cputune.inside import SOCKET_VARIABLE
from cputune.inside.messages import PLACED, RELAY
from cputune.ranks.listen import Inbox
from cputune.ranks.supervisor import Supervisor, WorkFolder

SPEAKS = """
import os, sys, time
from cputune.inside.messages import Speaker
speaker = Speaker()
speaker.say({"event": "note", "text": "x" * int(sys.argv[1])})
speaker._in_turns = True
speaker.await_turn()
speaker.say({"event": "note", "text": f"may take {1 + speaker._steps_left} steps"})
"""
HOST = os.uname().nodename


@pytest.fixture
def work() -> Iterator[WorkFolder]:
    with WorkFolder() as made:
        yield made


@pytest.fixture
def post(work: WorkFolder) -> Iterator[Inbox]:
    with contextlib.closing(Inbox(work.path)) as made:
        yield made


@pytest.fixture
def supervisor(work: WorkFolder, post: Inbox) -> Iterator[Supervisor]:
    made = Supervisor(os.environ, (), work)
    post.add(made.socket, made.lines)
    yield made
    made.end()


def hear(post: Inbox, until: Callable[[list[Any]], object], seconds: float = 60.0) -> list[Any]:
    """What is heard, until it is as wanted."""
    heard: list[Any] = []
    deadline = time.monotonic() + seconds
    while not until(heard):
        assert time.monotonic() < deadline, heard
        heard += post.wait(0.2)
    return heard


def notes(heard: list[Any]) -> dict[int, list[str]]:
    """The texts of the ranks, by their numbers."""
    texts: dict[int, list[str]] = {}
    for source, message in heard:
        if isinstance(source, int) and message and message["event"] == "note":
            texts.setdefault(source, []).append(message["text"])
    return texts


def held(post: Inbox, argv: list[str], tmp_path: Path) -> dict[str, Any]:
    """The command that holds a launch, on a host that is this one."""
    variables = {SOCKET_VARIABLE: RELAY + "{folder}/socket", "TMPDIR": str(tmp_path)}
    asked = {"files": {}, "programs": [], "argv": argv, "env": variables, "cwd": "/"}
    return {
        "argv": list(far_command()),
        "env": dict(os.environ),
        "input": sent_lines(script_text("hold.py"), asked).decode(),
        "relay": post.address,
    }


def test_ranks_report_and_get_their_turns_over_one_command(
    supervisor: Supervisor, post: Inbox, tmp_path: Path
) -> None:
    """A message is longer than any pipe holds, and what the launch prints is none of them."""
    rank = f"{shlex.quote(sys.executable)} -c {shlex.quote(SPEAKS)} 300000"
    both = f"echo @cputune 1 printed; RANK=0 {rank} & RANK=1 {rank}; wait; echo over >&2"
    supervisor.start([held(post, ["bash", "-c", both], tmp_path)])
    heard = hear(post, lambda heard: len(notes(heard)) == 2)
    assert {len(texts[0]) for texts in notes(heard).values()} == {300_000}
    post.send_to_ranks({"steps": 3})
    heard += hear(post, lambda heard: any(message and "tail" in message for _, message in heard))
    second = {rank: texts[1] for rank, texts in notes(heard).items()}
    assert second == dict.fromkeys((0, 1), "may take 3 steps")
    (exit,) = [message for _, message in heard if message and message["event"] == "exit"]
    assert (exit["status"], exit["tail"]) == (0, "@cputune 1 printed\nover\n")


def relay(post: Inbox, path: Path) -> dict[str, Any]:
    """The command of a relay for ranks that somebody else starts."""
    asked = {"relay": str(path), "place": script_text("place.py")}
    return {
        "argv": list(far_command()),
        "env": dict(os.environ),
        "input": sent_lines(script_text("hold.py"), asked).decode(),
        "relay": post.address,
        "host": HOST,
    }


def test_a_rank_ends_when_its_relay_has_gone(
    supervisor: Supervisor, post: Inbox, tmp_path: Path
) -> None:
    """Who started the rank is not asked: slurmd or an MPI may have."""
    path = tmp_path / "socket"
    (tmp_path / "of-the-user").touch()
    supervisor.start([relay(post, path)])
    variables = {SOCKET_VARIABLE: f"{RELAY}{path}", "RANK": "4"}
    rank = subprocess.Popen(
        [sys.executable, "-c", SPEAKS, "5"], env={**os.environ, **variables}, cwd=Path.cwd()
    )
    heard = hear(post, lambda heard: notes(heard))
    assert notes(heard) == {4: ["xxxxx"]}
    supervisor.end()
    assert rank.wait(30) == 75
    assert [left.name for left in tmp_path.iterdir()] == ["of-the-user"]


def test_a_relay_removes_what_was_copied_to_its_host(
    supervisor: Supervisor, post: Inbox, tmp_path: Path
) -> None:
    """A killed launcher kills its ranks at once, so they remove nothing."""
    folder = tmp_path / "cputune-alpha-12345678" / "trial-1"
    (folder / "launch").mkdir(parents=True)
    (folder / "launch" / "rank.py").touch()
    (folder / PLACED).touch()
    supervisor.start([relay(post, folder / "socket")])
    hear(post, lambda heard: list(folder.glob("socket.*")))
    supervisor.end()
    assert not list(tmp_path.iterdir())


def test_a_relay_that_answers_no_beat_is_lost(
    supervisor: Supervisor, post: Inbox, tmp_path: Path
) -> None:
    command = held(post, [sys.executable, "-c", SPEAKS, "5"], tmp_path)
    supervisor.start([{**command, "silent_seconds": 3.0}])
    hear(post, lambda heard: notes(heard))
    (way,) = psutil.Process(supervisor._process.pid).children()  # type: ignore[union-attr]
    way.send_signal(signal.SIGSTOP)  # as a cable that is pulled
    started = time.monotonic()
    heard = hear(post, lambda heard: any(m and m["event"] == "exit" for _, m in heard), 120)
    assert time.monotonic() - started > 1
    (exit,) = [message for _, message in heard if message and message["event"] == "exit"]
    assert exit["status"] == 255
    assert "server not responding" in exit["tail"]


def test_what_is_held_ends_if_the_tuner_is_silent(tmp_path: Path) -> None:
    """As at the end of a cable: nothing is closed, and nothing comes."""
    script = script_text("hold.py").replace(
        "SILENT_SECONDS = 5.0, 30.0", "SILENT_SECONDS = 0.2, 1.5"
    )
    asked = {"files": {}, "programs": [], "argv": ["sleep", "600"], "env": {}, "cwd": "/"}
    with subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(asked)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holding:
        assert holding.stdin is not None
        for _ in range(10):
            time.sleep(0.25)
            holding.stdin.write(b"\n")
            holding.stdin.flush()
        assert holding.poll() is None
        assert holding.wait(30) == 75
    assert list(tmp_path.iterdir()) == []


def test_a_closed_post_closes_the_connection_of_the_rank(
    supervisor: Supervisor, post: Inbox, tmp_path: Path
) -> None:
    supervisor.start([held(post, [sys.executable, "-c", SPEAKS, "5"], tmp_path)])
    hear(post, lambda heard: notes(heard))
    (connection, _), *_ = post._lines()
    connection.shutdown(socket.SHUT_RDWR)
    heard = hear(post, lambda heard: any(m and m["event"] == "exit" for _, m in heard))
    (exit,) = [message for _, message in heard if message and message["event"] == "exit"]
    assert exit["status"] == 75  # the rank has left


def test_what_is_sent_needs_no_more_than_python_3_7() -> None:
    ast.parse(script_text("hold.py"), feature_version=(3, 7))
