"""Locks between real processes: who waits, who is refused, what a dead owner leaves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cputune import CannotError
from cputune.host import locks
from cputune.host.locks import measuring_lock, study_lock

Hold = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts processes that hold a lock, given as code."""
    started = []

    def start(lock: str) -> subprocess.Popen[str]:
        code = (
            "import time\nfrom pathlib import Path\nfrom cputune.host import locks\n"
            f"locks.MEASURING = {locks.MEASURING!r}\n"
            f"with locks.{lock}: print('held', flush=True); time.sleep(60)"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_study_in_use_is_refused_with_pid_and_host(tmp_path: Path, hold: Hold) -> None:
    study = tmp_path / "study.db"
    owner = hold(f"study_lock(Path({str(study)!r}))")
    (tmp_path / "other-name.db").symlink_to(study)
    for name in (study, tmp_path / "other-name.db"):
        with pytest.raises(CannotError) as refused, study_lock(name):
            pass
        assert f"in use by process {owner.pid} on {socket.gethostname()!r}" in str(refused.value)


def test_the_lock_of_a_dead_owner_is_stale(tmp_path: Path, hold: Hold) -> None:
    study = tmp_path / "study.db"
    owner = hold(f"study_lock(Path({str(study)!r}))")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert Path(f"{study}.lock").exists()
    with study_lock(study):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "host": 1}'])
def test_an_owner_that_is_not_written_down_is_another_process(
    tmp_path: Path, hold: Hold, text: str
) -> None:
    study = tmp_path / "study.db"
    hold(f"study_lock(Path({str(study)!r}))")
    Path(f"{study}.lock").write_text(text)
    with pytest.raises(CannotError, match="in use by another process"), study_lock(study):
        pass


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "study.db.lock").symlink_to(target)
    with pytest.raises(CannotError, match="cannot lock"), study_lock(tmp_path / "study.db"):
        pass
    assert target.read_text() == "precious"


def test_a_study_in_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(CannotError, match="No such file"), study_lock(tmp_path / "no" / "study.db"):
        pass


@pytest.fixture
def own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may measure at the same time."""
    monkeypatch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")


@pytest.mark.usefixtures("own_machine")
def test_who_comes_later_waits_until_the_owner_has_ended(hold: Hold) -> None:
    owner = hold("measuring_lock(print)")
    told = []

    def end_owner(words: str) -> None:
        told.append(words)
        owner.send_signal(signal.SIGKILL)

    with measuring_lock(end_owner):
        assert owner.wait(timeout=60) == -signal.SIGKILL
    (words,) = told
    assert words.startswith(f"process {owner.pid} of ")


@pytest.mark.usefixtures("own_machine")
def test_of_ones_own_processes_one_measures_at_a_time() -> None:
    told: list[str] = []
    with (
        measuring_lock(pytest.fail),
        pytest.raises(CannotError, match="the time limit was reached while process"),
        measuring_lock(told.append, until=time.monotonic() + 0.1),
    ):
        pass
    assert len(told) == 1
    assert told[0].startswith(f"process {os.getpid()} of ")


@pytest.mark.usefixtures("own_machine")
@pytest.mark.parametrize("listens", [True, False])
def test_another_user_is_named_and_not_waited_for_without_a_limit(
    monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.setattr(locks, "OTHERS_SECONDS", 0.1)
    monkeypatch.setattr(locks, "_peer", lambda visitor: ("process 7 of somebody", False))
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hostile:
        hostile.bind(locks.MEASURING)
        if listens:
            hostile.listen()
        with measuring_lock(told.append):
            pass
    assert told == ["process 7 of somebody"] * listens
