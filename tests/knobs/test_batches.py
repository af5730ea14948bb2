"""How a rank takes its samples: fewer and larger batches of a step, and who prepares them."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from machines import TODAY, machine

import cputune
from cputune import Plan, Workload
from cputune.ranks.runner import ProcessRunner

FACTS = machine(cores_per_socket=2, packages=TODAY)
FAULTS = Path(__file__).parent.parent / "faults"
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
AT_ONCE = PLAN.with_setting("accumulation", 1)
LOADER = PLAN.with_setting("workers", 1)


@pytest.mark.torch
@pytest.mark.matrix
def test_real_ranks_take_the_same_samples_at_once(workdir: Path) -> None:
    words = ["--output_dir", "out", "--use_cpu", "--per_device_train_batch_size", "2"]
    job = Workload.script(
        [str(FAULTS / "trainer_script.py"), *words, "--gradient_accumulation_steps", "4"]
    )
    with ProcessRunner(job, cputune.probe()) as runner:
        for plan, batch in ((replace(PLAN, as_found=True), (2, 4)), (AT_ONCE, (8, 1))):
            with closing(runner.steps(plan)) as steps:
                assert [step.samples for step in islice(steps, 2)] == [8, 8]
            (state,) = runner.observed()
            assert (state["batch"], state["accumulation"]) == batch


SLOW_DATA = """
import sys, time
sys.path.insert(0, {faults!r})
from tiny import Data, model
from transformers import HfArgumentParser, Trainer, TrainingArguments

class Slow(Data):
    def __getitem__(self, index):
        time.sleep(0.03)
        return super().__getitem__(index)

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=model(), args=arguments, train_dataset=Slow(64)).train()
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_a_script_with_slow_data_is_seen_to_wait_and_its_workers_are_seen(workdir: Path) -> None:
    Path("slow.py").write_text(SLOW_DATA.format(faults=str(FAULTS)), encoding="utf-8")
    job = Workload.script(["slow.py", "--output_dir", "out", "--use_cpu"])
    with ProcessRunner(job, cputune.probe()) as runner:
        for plan, workers in ((replace(PLAN, as_found=True), 0), (LOADER, 1)):
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 5))) == 5
            (state,) = runner.observed()
            assert state["loader_workers"] == workers
        assert runner.workload.loading_share is not None
        assert runner.workload.loading_share > 0.03
        space = cputune.search_space(FACTS, runner.workload)
        assert {1, 2} <= {plan.setting("workers") for plan in space.plans()}
