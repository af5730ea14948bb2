"""A real tune where IPEX lives: `make test-ipex` (torch 2.8, IPEX 2.8, transformers 4.55)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from in_process import ran

pytestmark = pytest.mark.ipex

SCRIPTS = Path(__file__).parent.parent / "scripts"
COMMAND = (sys.executable, "-m", "cputune")


@pytest.fixture(autouse=True)
def _ipex_era() -> None:
    try:
        metadata.version("intel_extension_for_pytorch")
    except metadata.PackageNotFoundError:
        pytest.skip("`make test-ipex` builds the environment for this")


@pytest.mark.timeout(1800)
def test_ipex_is_a_knob_and_what_ran_is_what_was_asked(tmp_path: Path) -> None:
    assert_both_ran_as_asked(tuned(tmp_path))


@pytest.mark.timeout(1800)
def test_of_a_users_script_too(tmp_path: Path) -> None:
    """It makes its TrainingArguments of the command line, as run_glue.py does."""
    place = tmp_path / "place"
    subprocess.run([sys.executable, SCRIPTS / "local.py", place], check=True)
    words = ("--place", place, "--output_dir", "out", "--do_train", "--max_steps", "200")
    result = tuned(tmp_path, "--", SCRIPTS / "parsed.py", *words)
    assert_both_ran_as_asked(result)
    assert result["workload"]["parses_arguments"], "the precision and IPEX are carried by flags"


def tuned(folder: Path, *words: str | Path) -> dict[str, Any]:
    """The result of six trials of one rank, or of as many as the time holds."""
    ended = ran(
        [*COMMAND, "tune", "--share-machine", "--budget", "6", "--fix", "ranks=1", *words],
        cwd=folder,
        timeout=1500,
    )
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads((folder / "cputune.json").read_text())
    return document


def assert_both_ran_as_asked(result: dict[str, Any]) -> None:
    """With IPEX and without; and each rank says what its plan says.

    Beside other work the time may hold one trial, and the comparison with a plan that has none: its
    ranks report too.
    """
    valid = [trial for trial in result["trials"] if trial["state"] != "failed"]
    started = [*valid, *result["reports"]]
    assert {each["plan"]["ipex"] for each in started} == {True, False}
    for each in started:
        assert each["observed"]
        for rank in each["observed"]:
            assert rank["ipex"] is each["plan"]["ipex"]
