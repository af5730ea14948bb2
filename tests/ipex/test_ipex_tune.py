"""A real tune where IPEX lives: `make test-ipex` (torch 2.8, IPEX 2.8, transformers 4.56)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.ipex

COMMAND = (sys.executable, "-m", "cputune")


@pytest.fixture(autouse=True)
def _ipex_era() -> None:
    try:
        metadata.version("intel_extension_for_pytorch")
    except metadata.PackageNotFoundError:
        pytest.skip("`make test-ipex` builds the environment for this")


@pytest.mark.timeout(1800)
def test_ipex_is_a_knob_and_what_ran_is_what_was_asked(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "tune", "--share-machine", "--budget", "6", "--fix", "ranks=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "cputune.json").read_text())
    valid = [trial for trial in result["trials"] if trial["state"] != "failed"]
    assert {trial["plan"]["ipex"] for trial in valid} == {True, False}
    for trial in valid:
        for rank in trial["observed"]:
            assert rank["ipex"] is trial["plan"]["ipex"]
