"""A working folder with modules that bear known names: none of them is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import ran

from cputune.host.interpreter import ELSEWHERE

NAMES = (
    *("json", "socket", "typing", "selectors", "tomllib", "sitecustomize", "cputune"),
    *("torch", "transformers", "numpy", "optuna", "psutil", "rich", "click", "yaml", "msgspec"),
)
CPUTUNE = Path(sys.executable).with_name("cputune")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open('ran', 'a').write({name!r} + '\\n')\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("doctor",),
        ("doctor", "--python", sys.executable),
        ("emit", "--format", "all"),
        ("tune", "--dry-run"),
    ],
    ids=" ".join,
)
def test_nothing_of_it_is_run(folder: Path, words: tuple[str, ...]) -> None:
    done = ran([CPUTUNE, *words], cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    assert not (folder / "ran").exists()


def test_neither_by_the_children_that_are_asked_in_python(folder: Path) -> None:
    code = ELSEWHERE + "import json, typing"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, check=True)
    assert not (folder / "ran").exists()
