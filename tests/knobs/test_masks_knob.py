"""What is set in torch itself: dropout masks of bytes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from golden_texts import Golden
from machines import TODAY, machine

import cputune
from cputune import HostFacts, Plan, Result, UsageError, Workload
from cputune.emitters import Emission
from cputune.emitters.format import LaunchJob
from cputune.emitters.prepared import make_job
from cputune.inside import applying_script
from cputune.plans.delivery.applied_command import applied_command, launch_command
from cputune.plans.equivalence import Training
from cputune.plans.knobs import KNOBS, varied
from cputune.records.claims import host_fingerprint
from cputune.records.result import Measured, Throughput

JOB = Workload.from_recipe("bert-mini")
SCRIPT = Workload.script(["train.py"])
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
MASKS = PLAN.with_setting("dropout", "bytes")


def amd(torch: str = "2.13.0", vendor: str | None = "AuthenticAMD") -> HostFacts:
    facts = machine(
        cores_per_socket=2,
        packages=tuple(replace(p, version=torch) if p.name == "torch" else p for p in TODAY),
    )
    return replace(facts, cpu=replace(facts.cpu, vendor=vendor, isa=("avx512_bf16", "avx512f")))


def values_of(facts: HostFacts, name: str, *knobs: str, **fix: str) -> set[object]:
    space = cputune.search_space(facts, JOB, knobs=knobs or None, fix=fix)
    return set(next(knob.values for knob in space.knobs if knob.name == name))


def why(facts: HostFacts, what: str, *knobs: str) -> str:
    left_out = cputune.search_space(facts, JOB, knobs=knobs or None).left_out
    return next(out.why for out in left_out if out.what == what)


class TestAskingForAKnob:
    def test_it_is_varied_alone(self) -> None:
        assert values_of(amd(), "dropout", "dropout") == {"torch", "bytes"}
        assert values_of(amd(), "precision", "dropout") == {"fp32"}
        assert values_of(amd(), "dropout", "ranks") == {"torch"}

    def test_a_model_that_drops_nothing_has_no_masks_to_draw(self, golden: Golden) -> None:
        job = replace(JOB, training=Training(dropout=False))
        space = cputune.search_space(amd(), job)
        (why_not,) = (out.why for out in space.left_out if out.what == "dropout=bytes")
        golden(why_not)
        dropping = cputune.search_space(amd(), replace(JOB, training=Training(dropout=True)))
        assert {"torch", "bytes"} in [set(k.values) for k in dropping.knobs if k.name == "dropout"]

    def test_without_names_all_are(self) -> None:
        assert varied(None) == {knob.name for knob in KNOBS}
        with pytest.raises(UsageError, match="'colour'"):
            varied(["colour"])


class TestWhereItLives:
    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            (amd(vendor="GenuineIntel"), "on all threads already"),
            (amd(vendor=None), "not known"),
            (amd("1.13.1"), "cannot be replaced from Python"),
        ],
    )
    def test_masks_of_bytes_are_left_out_with_the_reason(
        self, facts: HostFacts, reason: str
    ) -> None:
        assert values_of(facts, "dropout") == {"torch"}
        assert reason in why(facts, "dropout=bytes")


class TestTheWayIntoAScript:
    @pytest.mark.parametrize(
        "job",
        [
            JOB,
            SCRIPT,
            replace(SCRIPT, framework="trainer", parses_arguments=True),
            replace(SCRIPT, framework="accelerate"),
            replace(SCRIPT, framework="pytorch"),
        ],
    )
    def test_every_kind_of_script_is_carried(self, job: Workload) -> None:
        way = applied_command(job, MASKS, {})
        assert way.force is not None
        assert way.force.torch == {"dropout": "bytes"}
        script, plan, *rest = launch_command(job, way)
        assert Path(script) == applying_script()
        assert json.loads(plan)["torch"] == {"dropout": "bytes"}
        assert rest
        assert (
            applied_command(job, PLAN, {}).force is None
            or not applied_command(job, PLAN, {}).force.torch
        )

    def test_a_launch_brings_the_file_that_it_needs(self) -> None:
        names = {file.name for file in launch(MASKS).companions}
        assert {"apply_plan.py", "train.py"} <= names
        assert "apply_plan.py" not in {file.name for file in launch(PLAN).companions}

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
    def test_a_launch_is_verified_whole(
        self,
        recipe: str,
        settings: dict[str, str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        tuned = replace(
            launched(replace(PLAN, settings=settings)), workload=Workload.from_recipe(recipe)
        )
        for file in cputune.emit(tuned, "torchrun", python=sys.executable):
            (tmp_path / file.name).write_text(file.text, encoding="utf-8")
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
