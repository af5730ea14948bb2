"""What is set in torch itself: dropout masks of bytes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from machines import TODAY, machine

import cputune
from cputune import HostFacts, Plan, Result, UsageError, Workload
from cputune.emitters import Emission
from cputune.emitters.format import LaunchJob
from cputune.emitters.prepared import make_job
from cputune.plans.knobs import KNOBS, varied
from cputune.records.claims import host_fingerprint
from cputune.records.result import Measured, Throughput

JOB = Workload.from_recipe("bert-mini")
SCRIPT = Workload.script(["train.py"])
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))


def amd(torch: str = "2.13.0", vendor: str | None = "AuthenticAMD") -> HostFacts:
    facts = machine(
        cores_per_socket=2,
        packages=tuple(replace(p, version=torch) if p.name == "torch" else p for p in TODAY),
    )
    return replace(facts, cpu=replace(facts.cpu, vendor=vendor, isa=("avx512_bf16", "avx512f")))


def test_without_names_of_knobs_all_are_varied() -> None:
    assert varied(None) == {knob.name for knob in KNOBS}
    with pytest.raises(UsageError, match="'colour'"):
        varied(["colour"])


@pytest.mark.torch
@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("bert-mini", {"dropout": "bytes"}),
        ("bert-mini-sst2", {"dropout": "bytes", "order": "length", "padding": "cut"}),
    ],
)
def test_a_launch_is_verified_whole(recipe: str, settings: dict[str, str], workdir: Path) -> None:
    tuned = replace(
        launched(replace(PLAN, settings=settings)), workload=Workload.from_recipe(recipe)
    )
    for file in cputune.emit(tuned, "torchrun", python=sys.executable):
        (workdir / file.name).write_text(file.text, encoding="utf-8")
    (verdict,) = cputune.verify(["torchrun.sh"], steps=3, share_machine=True)
    checks = {check.name: check for check in verdict.checks}
    failed = {name: check for name, check in checks.items() if check.state == "failed"}
    assert failed.keys() <= {"throughput", "speed", "quiet"}, failed
    seen = {proof.what: proof.seen for check in checks.values() for proof in check.evidence}
    assert seen["dropout masks"] == "bytes"
    assert seen.get("padding", "cut") == "cut"
    assert seen.get("order of samples", "length") == "length"


def launched(plan: Plan) -> Result:
    facts = amd()
    measured = Measured(plan=plan, samples_per_second=Throughput(centre=2.0, low=1.9, high=2.1))
    return Result(
        host=host_fingerprint(facts),
        versions={"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"},
        workload=JOB,
        baseline=measured,
        best=measured,
        speedup=None,
        not_compared="it is one plan",
        trials=(),
    )


def launch(plan: Plan) -> LaunchJob:
    return make_job(launched(plan), Emission(facts=amd()))
