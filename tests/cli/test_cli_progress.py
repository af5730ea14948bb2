"""``tune`` on a real terminal: alive, within its width, and no trace of it elsewhere."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

LIGHT = Path(__file__).parent.parent / "faults" / "light.py"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?3[0-9][0-9;]*m")


def tune_on_terminal(folder: Path, columns: int, **variables: str) -> tuple[str, str]:
    """What a study wrote to its terminal, and to stdout."""
    unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    command = [sys.executable, "-m", "cputune", "tune", "--json", "--share-machine"]
    command += ["--knobs", "ranks,threads", "--max-time", "25s"]  # which live on every CPU
    out = folder / "out.json"  # a pipe that is read at the end holds no whole result
    with out.open("w") as stdout:
        child = subprocess.Popen(
            [*command, "--budget", "3", "--", str(LIGHT), "0.005"],
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", **variables},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=theirs,
        )
    os.close(theirs)
    seen = b""
    with child:
        while True:
            try:
                read = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end was closed
                break
            seen += read
    os.close(ours)
    assert child.returncode == 0, seen.decode()
    return seen.decode(), out.read_text()


@pytest.mark.parametrize(
    ("columns", "colour"), [(80, True), pytest.param(140, False, marks=pytest.mark.matrix)]
)
def test_it_is_alive_and_stays_within_the_terminal(
    tmp_path: Path, columns: int, colour: bool
) -> None:
    seen, out = tune_on_terminal(tmp_path, columns, **({} if colour else {"NO_COLOR": "1"}))
    assert "\x1b[1A" in seen, "lines are drawn again in their place"
    assert bool(COLOUR.search(seen)) is colour
    plain = ESCAPE.sub("", seen)
    assert max(map(len, re.split(r"[\r\n]+", plain))) <= columns
    assert re.search(r"trial 1  \d×.*\s+step \d, ", plain)
    assert re.search(r"[12] of 3 trials, \d+ s, at most \d+ s more", plain)
    assert re.search(r"plans again, side by side\s+step ", plain)
    assert "\x1b[?25l" not in seen, "the cursor is never hidden: whatever ends it, it is there"
    assert json.loads(out)["schema"] == "cputune.result/4"


@pytest.mark.matrix
def test_a_dumb_terminal_has_a_line_for_each_trial(tmp_path: Path) -> None:
    seen, out = tune_on_terminal(tmp_path, 80, TERM="dumb")
    assert "\x1b" not in seen
    told = [int(number) for number in re.findall(r"^trial (\d+): ", seen, re.MULTILINE)]
    assert told == [trial["number"] for trial in json.loads(out)["trials"]]
    assert re.search(r"trial 1: .*\[2 of 3 trials, [0-9ms ]+", seen)
