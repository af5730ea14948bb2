"""A real ``cputune tune`` of a script that is given a token, and what is on disk afterwards."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import ran

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUv"
LIGHT = Path(__file__).parent.parent / "faults" / "light.py"
TUNE = (sys.executable, "-m", "cputune", "tune", "--share-machine", "--budget", "2")
SCRIPT = f"""
import os, sys
assert sys.argv[-1] == {TOKEN[:5]!r} + {TOKEN[5:]!r}, "the value did not arrive"
if "OMP_NUM_THREADS" in os.environ:
    sys.exit("refused: " + sys.argv[-1])
sys.argv[1:] = ["0.005"]
exec(open({str(LIGHT)!r}).read())
"""


def run(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return ran(words, cwd=cwd, env={**variables, **more}, timeout=200)


def test_a_token_reaches_the_ranks_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run(*TUNE, "--", "train.py", "--hub_token", TOKEN, cwd=tmp_path)
    assert done.returncode == 4, done.stderr  # today alone gave a number: nothing was compared
    assert "refused: (hidden)" in (tmp_path / "cputune.json").read_text()
    emitted = run(sys.executable, "-m", "cputune", "emit", "-f", "all", cwd=tmp_path)
    assert emitted.returncode == 0, emitted.stderr
    assert "HUB_TOKEN" in emitted.stderr
    assert TOKEN not in done.stdout + done.stderr + emitted.stdout + emitted.stderr
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path
    for name in ("cputune.json", "cputune.db"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.matrix
def test_a_study_goes_on_without_its_stderr(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = " ".join((*TUNE, "--", "train.py", "--hub_token", TOKEN))
    done = run("bash", "-c", f"{words} 2> >(head -n 1 >/dev/null)", cwd=tmp_path)
    assert done.returncode == 4
    assert (tmp_path / "cputune.json").is_file()
