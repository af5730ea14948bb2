"""Fused AdamW: offered where it is not what the script has anyway, and seen in the rank."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import Plan, Workload
from cputune.plans.knobs import knob_named
from cputune.plans.knobs.kernels import optimizer_of
from cputune.ranks.runner import ProcessRunner

KNOB = knob_named("optimizer")
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
FUSED = PLAN.with_setting("optimizer", "adamw_torch_fused")


@pytest.mark.torch
def test_real_ranks_step_as_the_plan_says(workdir: Path) -> None:
    script = Path(__file__).parent.parent / "faults" / "trainer_script.py"
    job = Workload.script([str(script), "--output_dir", "out", "--use_cpu"])
    with ProcessRunner(job, cputune.probe()) as runner:
        for value, seen in (
            ("adamw_torch", "AdamW as a loop"),
            ("adamw_torch_fused", "AdamW, fused"),
        ):
            plan = PLAN.with_setting("optimizer", value)
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 2))) == 2
            (state,) = runner.observed()
            assert KNOB.shown[0].reported(plan, state) == seen == KNOB.shown[0].expected(plan, 0)


@pytest.mark.torch
@pytest.mark.matrix
def test_the_loop_of_an_accelerate_script_is_fused_too(workdir: Path) -> None:
    script = Path(__file__).parent.parent / "faults" / "accelerate_script.py"
    with ProcessRunner(Workload.script([str(script), "--cpu"]), cputune.probe()) as runner:
        for plan, seen in (
            (replace(PLAN, as_found=True), "AdamW as a loop"),
            (FUSED, "AdamW, fused"),
        ):
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 2))) == 2
            assert optimizer_of(runner.observed()[0]) == seen
        assert runner.workload.optimizer == "AdamW as a loop"
