"""Changes of a launch script: what it sets beside the plan, and the files that it misses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from emitters.emit_machines import one_socket, two_sockets_smt
from golden_texts import Golden
from rows import every_row

from cputune import Plan, Step, UsageError, emit, verify
from cputune.emitters import FORMATS
from cputune.ranks.job import Gather, Launched, Rank
from cputune.verifier import scripts
from cputune.verifier.checks import outcomes
from cputune.verifier.records import Expected

SCRIPTS = ("mpirun", "accelerate", "torchrun", "slurm")
PLANTED = (
    "export LD_PRELOAD=/usr/lib/libfoo.so",
    "export MALLOC_ARENA_MAX=1",
    "export ATEN_CPU_CAPABILITY=default",
    "export ONEDNN_MAX_CPU_ISA=SSE41",
    "export MKL_NUM_THREADS=1",
    "export KMP_AFFINITY=disabled",
    "export GOMP_CPU_AFFINITY=0",
    "export OMP_NUM_THREADS=1",
    "export OMP_PROC_BIND=spread",
    "export GLIBC_TUNABLES=glibc.malloc.arena_max=1",
    "export OPENBLAS_NUM_THREADS=1",
    "MALLOC_TRIM_THRESHOLD_=0",
    'rank=(env DNNL_MAX_CPU_ISA=SSE41 "${rank[@]}")',
    "export \\\n  TCMALLOC_AGGRESSIVE_DECOMMIT=1",
)


@pytest.fixture(scope="module", params=["one", "smt"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = one_socket() if request.param == "one" else two_sockets_smt()
    place = tmp_path_factory.mktemp("launch")
    for format in SCRIPTS:
        more = {"mpi": "openmpi5", "nodes": 1}
        for file in emit(case.result, format, facts=case.facts, **more):
            (place / file.name).write_text(file.text, encoding="utf-8")
    return place


def seen(path: Path) -> dict[str, tuple[str, str]]:
    (verdict,) = verify([path], run=False)
    return {check.name: (check.state, check.summary) for check in verdict.checks}


def planted(folder: Path, format: str, line: str) -> Path:
    path = folder / FORMATS[format].main
    text = path.read_text(encoding="utf-8")
    assert "set -euo pipefail\n" in text
    changed = folder / f"changed-{format}.sh"
    changed.write_text(text.replace("set -euo pipefail\n", f"set -euo pipefail\n{line}\n"))
    return changed


@every_row("format", ["mpirun", "accelerate", "torchrun"])
def test_every_variable_that_is_planted_is_seen(format: str, folder: Path) -> None:
    assert seen(folder / FORMATS[format].main)["variables"][0] == "passed"
    passed = [
        line for line in PLANTED if seen(planted(folder, format, line))["variables"][0] != "failed"
    ]
    assert passed == []


@pytest.mark.parametrize("format", SCRIPTS)
def test_a_missing_file_is_named_and_nothing_is_run(
    format: str, folder: Path, tmp_path: Path, golden: Golden
) -> None:
    alone = tmp_path / FORMATS[format].main
    alone.write_text((folder / alone.name).read_text(encoding="utf-8"), encoding="utf-8")
    plan = folder / "plan.json"
    if plan.exists():
        if format != "slurm":
            with pytest.raises(UsageError, match=r"plan\.json"):
                seen(alone)
        (tmp_path / plan.name).write_text(plan.read_text(encoding="utf-8"), encoding="utf-8")
    if format != "slurm":  # sbatch is asked first, if there is one
        state, said = seen(alone)["files"]
        assert state == "failed"
        assert "train.py" in said
    ended = subprocess.run(["bash", str(alone)], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    golden(ended.stderr)


PLAN = Plan(processes_per_node=1, threads_per_process=1, precision="fp32", cpus=((0,),))


def of_rank(environment: dict[str, str], **more: object) -> str:
    state = {"world_size": 1, "threads": 1, "affinity": [0], "dtype": "float32", "preload": []}
    state |= {"allocator": "default", "environment": environment, **more}
    steps = [Step(seconds=0.1, samples=1, loss=1.0) for _ in range(12)]
    gather = Gather(1)
    whole = tuple(step for n, one in enumerate(steps) if (step := gather.add(0, n, one)))
    ended = {"returncode": None, "enough": True, "timed_out": False, "seconds": 1.0, "output": ""}
    rank = Rank(number=0, state=state, steps=steps)  # type: ignore[arg-type]
    run = Launched(ranks=(rank,), steps=whole, **ended)
    expected = Expected(plan=PLAN, environment={}, outer={})
    states = {check.name: check.state for check in outcomes(run, expected, "python")}
    return states.get("environment", "passed")


def test_what_a_rank_shows_beside_the_plan_fails() -> None:
    assert of_rank({"ATEN_CPU_CAPABILITY": "default"}) == "failed"
    assert of_rank({}, preload=["/usr/lib/libfoo.so"]) == "failed"


@pytest.mark.parametrize(
    ("program", "check"), [("shellcheck", "lint"), ("sbatch", "sbatch --test-only")]
)
def test_a_program_that_gives_no_answer_has_not_accepted(
    program: str, check: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = tmp_path / program
    waits.write_text("#!/bin/sh\nsleep 60\n", encoding="utf-8")
    waits.chmod(0o755)
    monkeypatch.setattr(scripts, "ASK_SECONDS", 1.0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    state, summary = seen(folder / "slurm.sh")[check]
    assert (state, summary) == ("not checked", f"{program} gave no answer in 60 s")
