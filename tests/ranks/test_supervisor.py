"""The process that starts ranks and leaves none behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cputune.ranks import supervisor_main
from cputune.ranks.job import Job
from cputune.ranks.listen import Post
from cputune.ranks.messages import RankCommand, command
from cputune.ranks.supervisor import SAID_LETTERS, Supervisor, tail_of
from cputune.ranks.work_folder import WorkFolder


@pytest.fixture
def work() -> Iterator[WorkFolder]:
    with WorkFolder() as work:
        yield work


@pytest.fixture
def post(work: WorkFolder) -> Iterator[Post]:
    with closing(Post(work.socket_folder)) as post:
        yield post


@pytest.fixture
def supervisor(work: WorkFolder, post: Post) -> Iterator[Supervisor]:
    with closing(Supervisor(os.environ, (), work)) as supervisor:
        supervisor.join(post)
        yield supervisor


def python(code: str) -> RankCommand:
    return command([sys.executable, "-S", "-c", code], os.environ, cwd="/")


def test_many_that_die_at_once_are_all_told(post: Post, supervisor: Supervisor) -> None:
    job = Job(supervisor, post, ranks=40, grace_seconds=0)
    job.start([python("print('last words')")] * 40)
    job.hear_out(60)
    assert sorted(exit_["rank"] for exit_ in job.exits) == list(range(40))
    assert {exit_["tail"] for exit_ in job.exits} == {"last words\n"}


def test_what_the_last_job_left_is_not_told_to_the_next(post: Post, supervisor: Supervisor) -> None:
    threads = (
        "import threading, time\n"
        "for _ in range(200): threading.Thread(target=time.sleep, args=(60,)).start()\n"
    )
    for _ in range(5):
        job = Job(supervisor, post, ranks=1, grace_seconds=0)
        job.start([python(threads + "print('ready', flush=True); time.sleep(60)")])
        time.sleep(0.3)
        job.end()
        assert job.exits == []
    last = Job(supervisor, post, ranks=1, grace_seconds=0)
    last.start([python("raise SystemExit(3)")])
    last.hear_out(60)
    assert [exit_["status"] for exit_ in last.exits] == [3]


def test_a_rank_that_ends_in_order_has_the_time_for_it(post: Post, supervisor: Supervisor) -> None:
    job = Job(supervisor, post, ranks=1, grace_seconds=20)
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit('in order'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    job.start([python(code)])
    time.sleep(1)
    (tail,) = job.end().values()
    assert tail.splitlines()[-1] == "in order"


def test_one_that_falls_over_leaves_the_files_of_a_tuner_that_lives(
    work: WorkFolder, supervisor: Supervisor
) -> None:
    supervisor.socket.sendall(b"no request\n")
    deadline = time.monotonic() + 20
    while supervisor.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "JSONDecodeError" in str(supervisor.died().details)
    assert work.path.is_dir()


def test_a_thread_that_ends_while_they_are_counted_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor_main.os, "listdir", lambda place: [str(os.getpid()), "0"])
    assert list(supervisor_main._other_threads()) == []


def test_a_wake_up_that_was_heard_already_is_no_error() -> None:
    """Ending ranks hears that they died; the same event then stands in what was selected before."""
    code = (
        "import socket\n"
        "from cputune.ranks.supervisor_main import Children\n"
        "children = Children(socket.socketpair()[0])\n"
        "children._attend(children._wake)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_one_that_falls_over_leaves_the_files_of_the_run(post: Post, work: WorkFolder) -> None:
    supervisor = Supervisor(os.environ, (), work)
    supervisor.join(post)
    supervisor.send({"do": "start"})  # type: ignore[typeddict-item]  # it has no commands
    supervisor.close()
    assert not supervisor.alive
    assert work.path.exists()


def test_what_it_said_is_cleaned_before_it_is_cut(tmp_path: Path) -> None:
    """A password of which the tail begins in the middle is not known by its value any more."""
    log, password = tmp_path / "log", "sword-of-a-fish-that-swims"
    log.write_text("x" * 9000 + password + "y" * (SAID_LETTERS - 8))
    said = tail_of(log, lambda text: text.replace(password, "(hidden)"))
    assert "swims" not in said
    assert said.endswith("(hidden)" + "y" * (SAID_LETTERS - 8))
