"""Every script of this folder, every step: plain run, tune, emit, launch to the end, verify.

`make test-scripts` runs it; the table of benchmarks/scripts.md is what it says.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from confirmed import UNCOMPARED
from in_process import ran
from script_cases import CASES, Case

import cputune
from cputune import Plan, Result
from cputune.records.result import Measured

CPUS = sorted(os.sched_getaffinity(0))
MPICH = ":".join(map(str, Path(sys.prefix).glob("consumers/mpich-*/bin")))

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    request.param.skip_without_packages()
    return request.param


@pytest.fixture
def result(case: Case, place: Path, work: Path) -> Result:
    """Of a study of three trials, two of them of two ranks, after the script has run by itself.

    Its time holds them on a busy machine too; of the default of six minutes the first may take all.
    """
    launcher = case.launcher or ("python",)
    run([*launcher, *case.command(place)[len(case.launcher) :]])
    empty(work)
    words = [sys.executable, "-m", "cputune", "tune", "--budget", "3", "--share-machine"]
    words += ["--max-time", "15m", "--fix", f"ranks={case.ranks or 2}"]
    run([*words, "--", *case.command(place)], most_seconds=1000)
    assert sorted(os.listdir(work)) == ["cputune.db", "cputune.json"], "a trial writes nothing"
    return Result.load(Path("cputune.json"))


@pytest.fixture
def work(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and commands of this environment."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{MPICH}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return workdir


def test_a_script_comes_through_every_step(case: Case, result: Result, work: Path) -> None:
    assert result.baseline.plan.precision == case.precision
    assert result.workload.global_batch_size == case.batch
    failures = [trial for trial in result.trials if trial.state == "failed"]
    assert [f.reason for f in failures if f.kind != "contended"] == []  # that is the machine's
    tuned = {trial.plan.world_size for trial in result.trials[1:] if trial.steps}
    assert tuned == {case.ranks or 2}

    for ranks in (case.ranks,) if case.ranks else (1, 2):
        for format in ("torchrun", *(("mpirun",) if shutil.which("mpirun") else ())):
            empty(work)
            plan = of_ranks(result, ranks)
            launched = replace(
                result,
                best=Measured(plan=plan, samples_per_second=result.baseline.samples_per_second),
                **UNCOMPARED,
            )
            files = cputune.emit(launched, format, python=sys.executable)
            for file in files:
                (work / file.name).write_text(file.text, encoding="utf-8")
            (verdict,) = cputune.verify([work / files[0].name], steps=3, share_machine=True)
            failed = {check.name: check for check in verdict.checks if check.state == "failed"}
            failed.pop("throughput", None)  # another one on a busy machine, and for another plan
            assert failed == {}
            run(["bash", str(work / files[0].name)])


def of_ranks(result: Result, ranks: int) -> Plan:
    """A plan in a precision that the script does not have by itself, where it can be given one."""
    cpus = tuple((cpu,) for cpu in (CPUS[0], CPUS[-1])[:ranks])
    precision = result.baseline.plan.precision
    if result.workload.framework != "pytorch":
        precision = "fp32" if precision == "bf16" else "bf16"
    return Plan(processes_per_node=ranks, threads_per_process=1, cpus=cpus, precision=precision)


def run(words: list[str], *, most_seconds: float = 600) -> None:
    done = ran(words, timeout=most_seconds)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def empty(work: Path) -> None:
    shutil.rmtree(work)
    work.mkdir()
    os.chdir(work)
