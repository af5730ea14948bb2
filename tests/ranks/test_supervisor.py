"""The process that starts ranks and leaves none behind."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cputune.host.children import below
from cputune.ranks import supervisor_main
from cputune.ranks.job import Job
from cputune.ranks.listen import Inbox
from cputune.ranks.supervisor import (
    MOST,
    SAID_LETTERS,
    Supervisor,
    Supervisors,
    WorkFolder,
    tail_of,
)
from cputune.ranks.supervisor_main import RankCommand


@pytest.fixture
def work() -> Iterator[WorkFolder]:
    with WorkFolder() as work:
        yield work


Begin = Callable[[int], Job]


@pytest.fixture
def begin(work: WorkFolder, tmp_path: Path) -> Iterator[Begin]:
    """Makes a job of so many ranks, whose supervisor is a new one."""
    jobs: list[Job] = []

    def begin(ranks: int) -> Job:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        supervisor, post = Supervisor(os.environ, (), work), Inbox(folder)
        jobs.append(Job(supervisor=supervisor, inbox=post, world=ranks, grace_seconds=20))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


def python(code: str) -> RankCommand:
    return {"argv": [sys.executable, "-S", "-c", code], "env": dict(os.environ), "cwd": "/"}


def test_many_that_die_at_once_are_all_told(begin: Begin) -> None:
    job = begin(40)
    job.start([python("print('last words')")] * 40)
    job.receive_rest(60)
    assert sorted(exit_["rank"] for exit_ in job.exits) == list(range(40))
    assert {exit_["tail"] for exit_ in job.exits} == {"last words\n"}


def test_a_rank_reads_what_is_meant_for_it_and_nothing_else(begin: Begin) -> None:
    job = begin(2)
    said: RankCommand = {**python("import sys; print(sys.stdin.readline())"), "input": "hello\n"}
    job.start([said, python("import sys; print([*sys.stdin])")])
    job.receive_rest(20)
    assert {exit_["rank"]: exit_["tail"].strip() for exit_ in job.exits} == {0: "hello", 1: "[]"}


def test_a_rank_that_ends_in_order_has_the_time_for_it(begin: Begin, tmp_path: Path) -> None:
    job = begin(1)
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit('in order'))\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "time.sleep(60)"
    )
    job.start([python(code)])
    while not ready.exists():
        time.sleep(0.01)
    (tail,) = job.end().values()
    assert tail.splitlines()[-1] == "in order"


def test_ranks_and_their_workers_stand_still_until_their_next_turn(begin: Begin) -> None:
    job = begin(1)
    worker = [sys.executable, "-c", "import time; time.sleep(60)"]
    job.start([python(f"import subprocess; subprocess.run({worker})")])
    while len(ranks := below(os.getpid())[1:]) < 2:  # the supervisor is the first one
        time.sleep(0.01)
    job.pause()
    while not all(process.status() == psutil.STATUS_STOPPED for process in ranks):
        time.sleep(0.01)
    job.turn(1)
    while any(process.status() == psutil.STATUS_STOPPED for process in ranks):
        time.sleep(0.01)


def test_few_that_have_imported_are_kept_and_those_used_last(work: WorkFolder) -> None:
    notes: list[str] = []
    kept = Supervisors(work, notes.append, sys.executable)

    def asked(number: int) -> Supervisor:
        return kept.ready({**os.environ, "NUMBER": str(number)}, ["json"])

    living = asked(0)  # its launch is not over
    for number in range(1, MOST + 2):
        asked(number).end()
    assert len(notes) == MOST + 2
    for number, imports in [(0, 0), (MOST + 1, 0), (3, 0), (1, 1)]:
        notes.clear()
        asked(number).end()
        assert (number, len(notes)) == (number, imports)
    living.end()
    kept.close()


def test_no_zombie_is_left_to_process_1(work: WorkFolder) -> None:
    """Process 1 of many a container reaps nothing; here this process adopts in its place."""
    libc, adopts = ctypes.CDLL(None), supervisor_main.PR_SET_CHILD_SUBREAPER
    libc.prctl(adopts, 1)
    try:
        supervisor = Supervisor(os.environ, (), work)
        supervisor.start([python("import time; time.sleep(60)")])
        while len(started := below(os.getpid())) < 2:
            time.sleep(0.01)
        own, rank = started
        own.suspend()  # it hears at once that the rank has ended and that its tuner is gone
        rank.kill()
        supervisor.socket.close()
        own.resume()
        while below(os.getpid()):
            time.sleep(0.01)
        left = psutil.Process().children()
        supervisor.kill()
    finally:
        libc.prctl(adopts, 0)
    assert left == [own], "who has started it reaps it"


@pytest.mark.parametrize(
    ("said", "trouble"), [(b"no request", "JSONDecodeError"), (b'{"do": "start"}', "KeyError")]
)
def test_one_that_falls_over_leaves_the_files_of_a_tuner_that_lives(
    said: bytes, trouble: str, work: WorkFolder
) -> None:
    supervisor = Supervisor(os.environ, (), work)
    supervisor.socket.sendall(said + b"\n")
    deadline = time.monotonic() + 90
    while supervisor.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert trouble in str(supervisor.died().details)
    assert supervisor.end() == {}
    assert work.path.is_dir()


def test_a_thread_that_ends_while_they_are_counted_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor_main.os, "listdir", lambda place: [str(os.getpid()), "0"])
    assert list(supervisor_main._other_threads()) == []


def test_what_it_said_is_cleaned_before_it_is_cut(tmp_path: Path) -> None:
    """A password of which the tail begins in the middle is not known by its value any more."""
    log, password = tmp_path / "log", "sword-of-a-fish-that-swims"
    log.write_text("x" * 9000 + password + "y" * (SAID_LETTERS - 8))
    said = tail_of(log, lambda text: text.replace(password, "(hidden)"))
    assert "swims" not in said
    assert said.endswith("(hidden)" + "y" * (SAID_LETTERS - 8))
