"""What is set in this shell and would change the plan is removed by a launch, by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from emit_machines import one_socket, script_workload
from test_emit_contract import SHELL_FORMATS, Launch

from cputune import EmittedFile, emit

SET = {
    "ACCELERATE_USE_IPEX": "true",
    "KMP_AFFINITY": "compact",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "7",
    "HF_HOME": "/data/hf",
    "SLURM_JOB_ID": "7",
}
"""Of a shell; the plan sets the threads itself, and the last two change nothing of it."""
REMOVED = ("ACCELERATE_USE_IPEX", "KMP_AFFINITY", "MALLOC_ARENA_MAX")


def files(format: str, environment: dict[str, str]) -> tuple[EmittedFile, ...]:
    case = one_socket()
    facts = replace(case.facts, environment=environment)
    return emit(case.result, format, workload=script_workload(), facts=facts, mpi="openmpi5")


@pytest.mark.parametrize("format", SHELL_FORMATS)
def test_a_launch_removes_what_is_set_here_and_changes_the_plan(
    format: str, tmp_path: Path
) -> None:
    _, seen = Launch(tmp_path).run(files(format, SET), environment=SET)
    assert not set(REMOVED) & set(seen)
    assert (seen["HF_HOME"], seen["OMP_NUM_THREADS"]) == ("/data/hf", "4")


@pytest.mark.parametrize("format", SHELL_FORMATS)
def test_nothing_is_removed_that_is_not_set(format: str) -> None:
    lines = files(format, {"HF_HOME": "/data/hf"})[0].text.splitlines()
    assert not [line for line in lines if line.startswith("unset ") and "SLURM_" not in line]
    (unset,) = [
        line for line in files(format, SET)[0].text.splitlines() if line.startswith("unset ACC")
    ]
    assert unset.startswith(f"unset {' '.join(REMOVED)}")
