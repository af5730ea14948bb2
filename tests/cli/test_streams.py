"""What the command line does where a stream is closed, full, lost, or too narrow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import Run, ran

PROGRAM = f"{sys.executable} -m cputune"
ALIKE = pytest.mark.matrix
COMMANDS = (
    *("doctor --fail-on never", "recipes"),
    *(pytest.param(one, marks=ALIKE) for one in ("--help", "doctor --json --fail-on never")),
)
PRODUCTS = (
    *("--help", "doctor --json --fail-on never", "emit --format torchrun -o -"),
    *(pytest.param(one, marks=ALIKE) for one in ("recipes", "tune --dry-run")),
)


def shell(text: str, **variables: str) -> tuple[int, str, str]:
    done = ran(["bash", "-c", text], env={**os.environ, **variables})
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_goes_away_is_no_finding(command: str) -> None:
    code, _, err = shell(f"{PROGRAM} {command} | true; exit ${{PIPESTATUS[0]}}")
    assert code in (0, 141), "1 would mean findings"
    assert err == ""


@pytest.mark.parametrize("command", PRODUCTS)
def test_a_full_disk_is_an_error(command: str) -> None:
    code, _, err = shell(f"{PROGRAM} {command} > /dev/full")
    assert code == 3
    assert "error: the output cannot be written: No space left on device" in err


def test_a_closed_stdout_is_an_error(golden: Golden) -> None:
    code, _, err = shell(f"{PROGRAM} doctor --fail-on never >&-")
    assert code == 3
    golden(err)


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_a_lost_stderr_changes_nothing(to: str) -> None:
    code, out, _ = shell(f"{PROGRAM} emit --format torchrun -o - {to}")
    assert code == 0
    assert out.startswith("#!")


@pytest.mark.parametrize("columns", ["0", "abc", "-5", "²", "1", "99999999999"])
def test_the_width_of_the_terminal_is_one_that_can_be_read(
    columns: str, cputune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = cputune("recipes")
    assert (code, err) == (0, "")
    assert "recipe" in out


@pytest.mark.parametrize("command", ["tune", "tune --resume", "emit --format torchrun", "doctor"])
def test_a_folder_that_was_removed_is_no_traceback(tmp_path: Path, command: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code, _, err = shell(f"cd {gone} && rmdir {gone} && {PROGRAM} {command}")
    assert "error:" in err or command == "doctor"
    assert code == 3 or command == "doctor"


INTERRUPTS_AT_CLICK = """
import os, signal, sys


class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Interrupt())
"""


def test_an_interrupt_while_python_imports_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_AT_CLICK)
    code, out, err = shell(f"{PROGRAM} recipes", PYTHONPATH=str(tmp_path))
    assert (code, out, err) == (130, "", "")


@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    "command",
    [
        "doctor --check-file pipe",
        "tune --recipe pipe.toml",
        "tune --study pipe --budget 1",
        "tune -- pipe",
        "emit --format mpirun pipe",
        "emit --format mpirun --hostfile pipe",
        "verify pipe",
        "verify . --result pipe",
    ],
)
def test_nothing_waits_for_a_fifo(cputune: Run, command: str) -> None:
    for name in ("pipe", "pipe.toml"):
        os.mkfifo(name)
    Path("x.sh").write_text("#!/bin/bash\ntorchrun x.py\n")
    code, _, err = cputune(*command.split())
    assert code in (2, 3)
    assert "error:" in err
