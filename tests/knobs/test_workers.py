"""Data loader workers: only where a step was seen to wait for its data, and seen in the rank."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from machines import TODAY, machine

import cputune
from cputune.carrier.command import carried, training_flags
from cputune.knobs import knob_named
from cputune.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.workload import Workload

FACTS = machine(cores_per_socket=2, packages=TODAY)
SCRIPT = Workload.script(["t.py"])
SEEN = SCRIPT.observed(framework="trainer", global_batch_size=8, parses_arguments=True)
WAITS = replace(SEEN, loading_share=0.2)
CPUS = sorted(os.sched_getaffinity(0))
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
ONE = PLAN.with_setting("workers", 1)


def values_of(job: Workload, **fix: object) -> set[object]:
    space = cputune.search_space(FACTS, job, fix=fix)
    return set(next(knob.values for knob in space.knobs if knob.name == "workers"))


def why(job: Workload) -> str:
    left_out = cputune.search_space(FACTS, job).left_out
    return next(out.why for out in left_out if out.what == "workers")


def test_a_step_that_waits_for_its_data_is_offered_one_and_two() -> None:
    assert values_of(WAITS) == {"default", 1, 2}


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (SEEN, "not known before it has run"),
        (replace(SEEN, loading_share=0.012), "waits for its data 1.2 % of its time"),
        (replace(WAITS, argv=("t.py", "--dataloader_num_workers", "4")), "asks for"),
        (replace(WAITS, framework="accelerate"), "makes its data loader itself"),
    ],
)
def test_is_left_out_with_the_reason(job: Workload, reason: str) -> None:
    assert values_of(job) == {"default"}
    assert reason in why(job)


def test_a_number_that_is_asked_for_is_honoured() -> None:
    assert values_of(SEEN, workers=3) == {3}


def test_it_is_carried_by_a_flag_and_by_code() -> None:
    assert "--dataloader_num_workers" in training_flags(SEEN, ONE, {})
    assert "--dataloader_num_workers" not in training_flags(SEEN, PLAN, {})
    force = carried(replace(SEEN, parses_arguments=False), ONE, {}).force
    assert force is not None
    assert force.arguments["dataloader_num_workers"] == 1


def test_it_stands_in_the_words_of_the_plan_and_a_rank_shows_it() -> None:
    assert ONE.describe() == "1 × 1 threads, fp32, 1 loader"
    (shown,) = knob_named("workers").shown
    assert (shown.expected(ONE, 0), shown.seen(ONE, {"loader_workers": 0})) == (1, 0)
    assert shown.expected(PLAN, 0) is None


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
def test_a_script_with_slow_data_is_seen_to_wait_and_its_workers_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faults = str(Path(__file__).parent.parent / "faults")
    Path("slow.py").write_text(SLOW_DATA.format(faults=faults), encoding="utf-8")
    job = Workload.script(["slow.py", "--output_dir", "out", "--use_cpu"])
    with ProcessRunner(job, cputune.probe()) as runner:
        for plan, workers in ((replace(PLAN, as_found=True), 0), (ONE, 1)):
            with closing(runner.steps(plan)) as steps:
                assert len(list(islice(steps, 5))) == 5
            (state,) = runner.observed()
            assert state["loader_workers"] == workers
        assert runner.workload.loading_share is not None
        assert runner.workload.loading_share > 0.03
        assert values_of(runner.workload) == {"default", 1, 2}
