"""Temporary files are gone with the run that made them, however it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cputune.ranks.supervisor import OF_THIS_HOST, WorkFolder


def killed_run(place: Path) -> Path:
    """The folder that a run has left that was killed."""
    code = (
        "import sys, time\n"
        "from cputune.ranks.supervisor import WorkFolder\n"
        "print(WorkFolder().path, flush=True)\n"
        "time.sleep(60)"
    )
    argv, there = [sys.executable, "-c", code], {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(argv, env=there, stdout=subprocess.PIPE, text=True) as run:
        folder = Path(run.stdout.readline().strip())
        run.send_signal(signal.SIGKILL)
    assert folder.is_dir()
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files lie."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_what_a_killed_run_has_left_goes_at_the_next_start(place: Path) -> None:
    left = killed_run(place)
    with WorkFolder():
        assert not left.exists()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("removed", range(4))
def test_so_does_one_that_was_killed_while_it_was_removed(
    removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    killed = WorkFolder()
    for name in ("a", "b", "z/inner"):
        (killed.path / name).parent.mkdir(exist_ok=True)
        (killed.path / name).touch()
    unlink, budget = os.unlink, iter(range(removed))

    def until_killed(*path: object, **kwargs: object) -> None:
        if next(budget, None) is None:
            raise Killed
        unlink(*path, **kwargs)

    with monkeypatch.context() as patched, contextlib.suppress(Killed):
        patched.setattr(os, "unlink", until_killed)
        killed.close()
    for lock in killed._locks:  # the kernel does it
        os.close(lock)
    with WorkFolder():
        assert not killed.path.exists()


def test_the_folder_of_a_run_that_lives_stays() -> None:
    with WorkFolder() as first, WorkFolder() as second:
        assert first.path.is_dir()
        assert second.path.is_dir()


def test_a_planted_link_is_not_followed(tmp_path: Path, place: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    (place / f"{OF_THIS_HOST}planted_").symlink_to(target)
    elsewhere = place / "cputune-another-host-a1b2c3d4"
    elsewhere.mkdir()
    with WorkFolder():
        assert (target / "kept").exists()
        assert elsewhere.is_dir(), "its run lives on another host"


def test_no_one_else_can_look_into_it() -> None:
    with WorkFolder() as work:
        assert work.path.stat().st_mode & 0o077 == 0
