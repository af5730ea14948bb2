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
from in_process import ran

from cputune import Result

LIGHT = str(Path(__file__).parent.parent / "faults" / "light.py")
TUNE = (sys.executable, "-m", "cputune", "tune", "--share-machine", "--budget", "50")
RARE = [
    pytest.param(number, marks=pytest.mark.matrix)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGXCPU)
]
ALL = [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.matrix), *RARE]


def start(folder: Path, *arguments: str, **more: object) -> subprocess.Popen[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [*TUNE, *arguments, "--", LIGHT, "0.03"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        text=True,
        **{"stderr": subprocess.PIPE, **more},  # type: ignore[call-overload]
    )


def lines_until(child: subprocess.Popen[str], beginning: str) -> Iterator[str]:
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
        said = child.stderr.read()
    assert child.returncode == 130
    assert "the same `cputune tune` command with --resume continues it" in said
    assert Result.load(tmp_path / "cputune.json").trials
    assert family
    assert not psutil.wait_procs(family, timeout=90)[1]
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.matrix
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.matrix)]
)
def test_further_signals_change_nothing(tmp_path: Path, number: int) -> None:
    with start(tmp_path) as child:
        list(lines_until(child, "trial 0:"))
        while child.poll() is None:
            child.send_signal(number)
            time.sleep(0.002)
    assert child.returncode == 130
    assert Result.load(tmp_path / "cputune.json").trials


def test_a_second_ctrl_c_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as child:
        list(lines_until(child, "trial 0:"))
        family = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGSTOP)  # both are there when it goes on
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not psutil.wait_procs(family, timeout=90)[1]  # process 1 takes its time to collect them
    assert not list((tmp_path / "tmp").iterdir())
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.matrix
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
        while b"trial 1 " not in seen:
            seen += os.read(ours, 1024)
        os.close(ours)
        child.send_signal(signal.SIGHUP)
    assert child.returncode == 130
    assert Result.load(tmp_path / "cputune.json").trials


def test_the_second_of_two_tunes_on_one_study_is_refused(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        list(lines_until(first, "trial 0:"))
        with start(tmp_path, "--resume") as second:
            said = second.stderr.read()
        assert second.returncode == 3
        assert f"in use by process {first.pid} on" in said
        first.send_signal(signal.SIGKILL)
    with start(tmp_path, "--resume") as resumed:
        assert any(line.startswith("trial ") for line in lines_until(resumed, "trial 2:"))
        resumed.send_signal(signal.SIGTERM)
        resumed.communicate(timeout=60)
    numbers = [trial.number for trial in Result.load(tmp_path / "cputune.json").trials]
    assert numbers == list(range(len(numbers)))


def test_a_signal_that_python_drops_is_not_forgotten() -> None:
    """What is raised in a finalizer is lost; the next event raises it again."""
    code = (
        "import signal\n"
        "from cputune.cli.signals import interrupted_by, stop_if_interrupted\n"
        "class Finalizer:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGTERM)\n"
        "with interrupted_by([signal.SIGTERM]):\n"
        "    Finalizer()\n"
        "    print('dropped', flush=True)\n"
        "    stop_if_interrupted()\n"
        "    print('forgotten', flush=True)\n"
    )
    done = ran([sys.executable, "-c", code])
    assert done.stdout == "dropped\n"
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, *RARE])
def test_the_exit_code_is_ours_whatever_python_was_doing(number: signal.Signals) -> None:
    """Python ends by SIGINT where KeyboardInterrupt was raised in a text that it runs."""
    code = (
        "import signal, sys\n"
        "from cputune.cli.signals import interrupted_by\n"
        "try:\n"
        f"    with interrupted_by([{int(number)}]):\n"
        f"        exec('signal.raise_signal({int(number)})')\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 130
