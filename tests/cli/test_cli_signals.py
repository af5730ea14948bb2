"""Signals to a real ``cputune tune`` with real ranks: what is kept, what is said, what is left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cputune.result import Result

LIGHT = str(Path(__file__).parent.parent / "faults" / "light.py")
TUNE = (sys.executable, "-m", "cputune", "tune", "--budget", "50")
ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def start(folder: Path, *arguments: str, **more: object) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [*TUNE, *arguments, "--", LIGHT],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        text=True,
        **{"stderr": subprocess.PIPE, **more},  # type: ignore[call-overload]
    )


def lines_until(child: subprocess.Popen[str], beginning: str) -> Iterator[str]:
    assert child.stderr is not None
    for line in child.stderr:
        yield line
        if line.startswith(beginning):
            return


@pytest.mark.parametrize("number", ALL)
def test_what_was_found_is_kept_and_nothing_is_left(tmp_path: Path, number: int) -> None:
    with start(tmp_path) as child:
        list(lines_until(child, "trial 1:"))
        family = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(number)
        assert child.stderr is not None
        said = child.stderr.read()
    assert child.returncode == 130
    assert "go on with: cputune tune --resume --budget 50 -- " in said
    assert Result.load(tmp_path / "cputune.json").trials
    assert family
    assert not psutil.wait_procs(family, timeout=20)[1]
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_further_signals_change_nothing(tmp_path: Path, number: int) -> None:
    with start(tmp_path) as child:
        list(lines_until(child, "trial 0:"))
        while child.poll() is None:
            child.send_signal(number)
            time.sleep(0.002)
    assert child.returncode == 130
    assert Result.load(tmp_path / "cputune.json").trials


def test_nohup_lives_on_when_the_terminal_goes(tmp_path: Path) -> None:
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with start(tmp_path, **ignored) as child:
        list(lines_until(child, "trial 0:"))
        child.send_signal(signal.SIGHUP)
        assert list(lines_until(child, "trial 1:"))
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)


def test_a_terminal_that_goes_away_loses_nothing(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with start(tmp_path, stderr=theirs, start_new_session=True) as child:
        os.close(theirs)
        seen = b""
        while b"trial 1:" not in seen:
            seen += os.read(ours, 1024)
        os.close(ours)
        child.send_signal(signal.SIGHUP)
    assert child.returncode == 130
    assert Result.load(tmp_path / "cputune.json").trials
