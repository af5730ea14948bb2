"""Planning for a recorded machine: ``tune --dry-run --root DIR`` and ``emit --root DIR``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from golden_texts import Golden
from hosts.builder import machine
from in_process import Run


@pytest.fixture
def root(tmp_path: Path) -> str:
    packages = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
    record = {"packages": packages, "affinity": "0-111"}
    machine(tmp_path / "theirs", sockets=2, cores=28, smt=2, record=record)
    return str(tmp_path / "theirs")


def test_the_plans_of_a_dry_run_are_those_of_the_recorded_machine(cputune: Run, root: str) -> None:
    code, out, _ = cputune("tune", "--dry-run", "--json", "--root", root)
    assert code == 0
    plans = json.loads(out)["plans"]
    assert max(cpu for plan in plans for cpus in plan["cpus"] for cpu in cpus) == 111


def test_nothing_is_measured_on_a_recorded_machine(cputune: Run, root: str) -> None:
    code, _, err = cputune("tune", "--root", root)
    assert code == 2
    assert "--dry-run" in err


def test_files_are_emitted_for_the_recorded_machine(cputune: Run, root: str, workdir: Path) -> None:
    (workdir / "cputune.json").write_text("what was measured here is not looked at")
    code, out, _ = cputune("emit", "--format", "mpirun", "--root", root, "-o", "-")
    assert code == 0
    assert "# Plan: 2 × 28 threads" in out
    assert sys.executable not in out


@pytest.mark.parametrize("words", [("tune", "--dry-run"), ("emit", "-f", "mpirun", "-o", "-")])
def test_a_recording_that_is_not_there_is_named(
    cputune: Run, words: tuple[str, ...], golden: Golden
) -> None:
    code, _, err = cputune(*words, "--root", "/nowhere")
    assert code == 3
    golden(err)
