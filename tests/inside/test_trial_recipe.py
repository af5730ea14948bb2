"""The recipe script on its own: every task trains on synthetic tokens, and writes its model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from cputune.inside import recipe_script
from cputune.workload import Task

MODELS = {"causal-lm": "gpt2"}
SIZES = {
    "bert": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
}

ALL_TASKS = """
import json, sys, torch
from types import SimpleNamespace
import train_recipe as script
for task, recipe in json.loads(sys.argv[1]).items():
    model, name = script.build_model(recipe, synthetic=True)
    options = SimpleNamespace(synthetic=True, max_train_samples=4)
    data, _ = script.build_data(recipe, model.config, options)
    batch = script.default_data_collator([data[i] for i in range(len(data))])
    assert torch.isfinite(model(**batch).loss), task
    print(task, name)
"""


def recipe(task: str, **more: object) -> dict[str, object]:
    kind = MODELS.get(task, "bert")
    model = {"model_type": kind, "vocab_size": 100, **SIZES[kind]}
    return {
        "task": task,
        "model": model,
        "sequence_length": 16,
        "global_batch_size": 4,
        "learning_rate": 1e-3,
        **more,
    }


@pytest.mark.torch
def test_every_task_has_a_finite_loss() -> None:
    recipes = json.dumps({task: recipe(task) for task in get_args(Task)})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALL_TASKS, recipes],
        env={**os.environ, "PYTHONPATH": str(recipe_script().parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(get_args(Task))


@pytest.mark.torch
def test_it_trains_without_cputune_and_says_what_on(tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(recipe("question-answering", hub_id="nobody/none", dataset="squad")))
    flags = ("--max_train_samples", "8", "--use_cpu", "--max_steps", "2", "--report_to", "none")
    done = subprocess.run(
        [sys.executable, str(recipe_script()), str(file), "--output_dir", "out", *flags],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "model: nobody/none cannot be had" in done.stdout
    assert "data: synthetic tokens, 8 samples" in done.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()
