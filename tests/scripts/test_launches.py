"""Scripts of every kind: what was measured is what is launched, to the end, and verified."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from script_cases import CASES, Case

import cputune
from cputune.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.result import Measured, Result, Speedup, Throughput, host_fingerprint
from cputune.workload import Workload

CPUS = sorted(os.sched_getaffinity(0))
AS_FOUND = Plan(
    processes_per_node=1, threads_per_process=len(CPUS), cpus=(tuple(CPUS),), as_found=True
)
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))

IN_EVERY_RUN = ("args_in_code.py",)
"""A Trainer in whose arguments a plan is set; ``test_matrix.py`` has them all."""

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(
    params=[case for case in CASES if case.name in IN_EVERY_RUN], ids=lambda case: case.name
)
def case(request: pytest.FixtureRequest) -> Case:
    request.param.skip_without_packages()
    return request.param


def result_for(workload: Workload, best: Plan, baseline: Plan) -> Result:
    facts = cputune.probe()
    speed = Throughput(median=1.0, low=0.9, high=1.1)
    return Result(
        host=host_fingerprint(facts),
        versions={p.name: p.version for p in facts.packages if p.version},
        workload=workload,
        baseline=Measured(plan=baseline, samples_per_second=speed),
        best=Measured(plan=best, samples_per_second=speed),
        speedup=Speedup(ratio=1.0, low=1.0, high=1.0),
        trials=(),
    )


@pytest.mark.parametrize(
    ("best", "format"),
    [(TWO, "torchrun"), pytest.param(ONE, "accelerate", marks=pytest.mark.matrix)],
)
def test_it_is_measured_launched_and_verified(
    case: Case,
    best: Plan,
    format: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    workload = Workload.script(case.command(place))
    losses = {}
    with ProcessRunner(workload, cputune.probe(), fresh=True) as runner:
        for plan in (AS_FOUND, TWO):
            with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
                first = list(islice(steps, 2))
            losses[plan] = first[0].loss
            assert {step.samples for step in first} == {case.batch}
            if plan.as_found:
                seen = cputune.knobs.as_seen(plan, runner.observed())
        seen_workload = runner.workload
    assert list(tmp_path.iterdir()) == [], "a trial writes nothing"
    assert seen.precision == case.precision
    assert losses[TWO] == pytest.approx(losses[AS_FOUND], rel=0.15)
    assert seen_workload.takes_flags is case.flags

    # Whatever the script has today, the other precision.
    best = Plan.from_json({**best.to_json(), "precision": other(seen.precision)})
    launch = tmp_path / format
    launch.mkdir()
    files = cputune.emit(result_for(seen_workload, best, seen), format, python=sys.executable)
    for file in files:
        (launch / file.name).write_text(file.text, encoding="utf-8")
    # Where flags suffice, it only lets several ranks end together.
    assert (launch / "carry.py").exists() is (best.world_size > 1 or not case.flags)

    checks = cputune.verify([launch / files[0].name], steps=3)[0].checks
    failed = [(c.summary, *(e.seen for e in c.evidence)) for c in checks if c.state == "failed"]
    assert failed == []
    done = subprocess.run(
        ["bash", str(launch / files[0].name)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = done.stderr.count("carry.py: set for the plan")  # maybe behind a progress bar
    changed = not case.flags and (format, case.name) != ("accelerate", "no_trainer.py")
    assert told == changed, done.stderr[-3000:]  # accelerate launch gives that one its bf16


def other(precision: str) -> str:
    return "fp32" if precision == "bf16" else "bf16"
