"""Completion as shells ask for it: what the script calls, and that each shell can read it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import ran

CPUTUNE = Path(sys.executable).with_name("cputune")


def completed(shell: str, words: str, position: int) -> list[str]:
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(position), "_CPUTUNE_COMPLETE": shell}
    if shell.startswith("fish"):
        variables["COMP_CWORD"] = words.split()[-1]
    done = ran([CPUTUNE], env={**os.environ, **variables}, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_the_commands_that_fit(shell: str) -> None:
    found = " ".join(completed(f"{shell}_complete", "cputune rec", 1))
    assert "recipes" in found
    assert "doctor" not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_can_be_sourced(shell: str, tmp_path: Path) -> None:
    asked = {**os.environ, "_CPUTUNE_COMPLETE": f"{shell}_source"}
    done = ran([CPUTUNE], env=asked, check=True)
    assert "_CPUTUNE_COMPLETE" in done.stdout
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "completion"
    script.write_text(done.stdout)
    subprocess.run([program, "-n", str(script)], check=True)


def test_bash_completes_an_option_and_a_format() -> None:
    assert "plain,--budget" in completed("bash_complete", "cputune tune --bud", 2)
    assert "plain,torchrun" in completed("bash_complete", "cputune emit --format tor", 3)
