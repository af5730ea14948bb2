"""The command of a trial can be pasted into a shell, and a recipe trains as it says."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import ran
from rows import every_row

import cputune
from cputune import Plan, Workload
from cputune.inside import applying_script
from cputune.plans.delivery.delivery import delivery_of, launch_command, trial_command
from cputune.ranks.runner import ProcessRunner

CPU = min(os.sched_getaffinity(0))


ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPU,),))


MASKS = ONE.with_setting("dropout", "bytes")
SAME_AS_TYPED = (
    '{"world_size": 2, "samples_per_rank": 4, "typed_accumulation": 1, "by_flags": true}'
)

CPU = min(os.sched_getaffinity(0))


ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPU,),))


AS_FOUND = replace(ONE, as_found=True)

RATE = 7e-4
RECIPE = f"""
description = "So small that a step takes milliseconds"
task = "sequence-classification"
sequence_length = 8
global_batch_size = 4
learning_rate = {RATE}

[model]
model_type = "bert"
vocab_size = 50
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 16
max_position_embeddings = 16
"""
CPU = min(os.sched_getaffinity(0))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPU,),))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "it's tiny.toml"
    file.write_text(RECIPE, encoding="utf-8")
    return file


def run(words: list[str], directory: Path) -> None:
    done = ran(
        words,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def learning_rates(directory: Path) -> list[float]:
    """What a Trainer wrote down of its first step."""
    state = json.loads((directory / "out/checkpoint-1/trainer_state.json").read_text())
    return [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]


ONE_STEP = ("--max_steps", "1", "--save_steps", "1", "--logging_steps", "1", "--report_to", "none")


SCRIPT = Workload.script(["run_qa.py", "--run_name", "a b"])
SEEN = SCRIPT.observed(framework="trainer", global_batch_size=8, parses_arguments=True)


def test_one_rank_gets_no_backend_that_several_were_typed_with() -> None:
    typed = Workload.script(["torchrun", "--nproc_per_node", "2", "a.py", "--ddp_backend", "gloo"])
    job = typed.observed(framework="trainer", global_batch_size=8, parses_arguments=True)
    assert "--ddp_backend" not in trial_command(job, delivery_of(job, ONE, {}))
    assert "--ddp_backend" in trial_command(typed, delivery_of(typed, ONE, {})), "its own option"


@pytest.mark.parametrize(
    "job", [SCRIPT, replace(SEEN, parses_arguments=False), replace(SEEN, framework="accelerate")]
)
def test_all_others_are_set_by_code_and_one_never_run_is_among_them(job: Workload) -> None:
    way = delivery_of(job, replace(ONE, precision="bf16"), {})
    assert way.flags == ()
    assert way.force.arguments["bf16"] is True
    assert way.force.samples_per_rank == job.global_batch_size
    assert (way.force.arguments["use_cpu"], way.force.arguments["fp16"]) == (True, False)
    assert way.sets_objects


TWO = replace(ONE, processes_per_node=2, cpus=((0,), (1,)))
TINY = Workload.from_recipe("bert-mini")


@every_row(
    ("job", "plan", "is_guarded"),
    [
        (SEEN, ONE, False),
        (replace(SCRIPT, framework="pytorch"), TWO, True),
    ],
)
def test_several_ranks_of_a_script_are_compared_while_they_train(
    job: Workload, plan: Plan, is_guarded: bool
) -> None:
    words = launch_command(job, delivery_of(job, plan, {}))
    assert any('"guard": true' in word for word in words) == is_guarded
    without = launch_command(job, delivery_of(job, plan, {}), guard=False)
    assert not any("guard" in word for word in without)


@pytest.mark.torch
def test_a_trial_trains_at_the_learning_rate_of_its_recipe(
    recipe: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProcessRunner(Workload.from_recipe(str(recipe)), cputune.probe(), fresh=True) as runner:
        with closing(runner.steps(ONE)) as steps:  # type: ignore[type-var]
            next(steps)
        ((_, job),) = runner._shown
        trained = job.training()
    assert {*trained.rates[0]} == {RATE}
    assert list(workdir.iterdir()) == [recipe]
    monkeypatch.undo()


@pytest.mark.torch
@pytest.mark.matrix
def test_so_does_an_emitted_launch(recipe: Path, tmp_path: Path) -> None:
    facts = cputune.probe()
    files = cputune.emit(None, "torchrun", facts=facts, workload=Workload.from_recipe(str(recipe)))
    for file in files:
        (tmp_path / file.name).write_text(file.text, encoding="utf-8")
    script = tmp_path / "torchrun.sh"
    run(["env", f"PYTHON={sys.executable}", "bash", str(script), *ONE_STEP], tmp_path)
    assert learning_rates(tmp_path) == [RATE]


def test_a_recipe_of_the_baseline_keeps_its_batch() -> None:
    batch = str(TINY.global_batch_size)
    assert delivery_of(TINY, AS_FOUND, {}).flags == ("--per_device_train_batch_size", batch)


def test_every_format_has_the_recipe_with_its_learning_rate(recipe: Path) -> None:
    job = replace(Workload.from_recipe(str(recipe)), name="tiny")
    for format in ("mpirun", "accelerate", "torchrun", "slurm", "pytorchjob", "trainjob"):
        files = {
            f.name: f.text for f in cputune.emit(None, format, facts=cputune.probe(), workload=job)
        }
        assert json.loads(files["recipe.json"])["learning_rate"] == RATE
        assert "set_defaults(learning_rate" in files["train.py"]


@every_row(
    ("job", "plan", "carries"),
    [
        (SEEN, AS_FOUND, None),
        (SEEN, ONE, None),
        (SEEN, TWO, SAME_AS_TYPED),
        (replace(SEEN, launch_ranks=2), TWO, "{}"),  # its ranks end together
        (TINY, TWO, None),  # they do by themselves
        (TINY, MASKS, '{"torch": {"dropout": "bytes"}}'),
        (replace(SCRIPT, framework="pytorch"), TWO, "{}"),
    ],
)
def test_carry_is_before_a_script_that_needs_it(
    job: Workload, plan: Plan, carries: str | None
) -> None:
    way = delivery_of(job, plan, {})
    assert not way.sets_objects
    words = launch_command(job, way, guard=False)
    assert words[len(words) - len(way.flags) :] == way.flags
    assert (words[1] if words[0] == str(applying_script()) else None) == carries
