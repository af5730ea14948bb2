"""The recipe script on its own: every shipped recipe trains, and writes its model."""

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from in_process import ran

from cputune.inside import recipe_script
from cputune.plans.workload import Task, load_recipe, recipe_names

SMALL = {
    **dict.fromkeys(("hidden_size", "dim", "n_embd", "d_model"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 2),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), 64),
    "vocab_size": 100,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "d_kv": 16,
    "image_size": 32,
}
"""Sizes of a model that trains in no time, by the keys of every shipped recipe."""

IN_ONE_PROCESS = """
import json, sys, types
import train_recipe as script
from transformers import default_data_collator
recipes, of_lengths = map(json.loads, sys.argv[1:])
config = types.SimpleNamespace(vocab_size=100, num_labels=2, pad_token_id=1)
data = script.SyntheticSamples(of_lengths, config, 400)
used = [int(sample["attention_mask"].sum()) for sample in data]
three = [next(sample for sample, n in zip(data, used) if n == length) for length in (3, 5, 8)]
batch, cut = default_data_collator(three), script.to_the_longest(three)
weighed = [{**one, "weight": script.torch.ones(())} for one in three]
assert script.to_the_longest(weighed)["weight"].shape == (3,)
print(json.dumps([
    min(used), max(used), sum(used) / len(used),
    batch["input_ids"][0].tolist()[3:], batch["labels"][0].tolist()[3:],
    list(batch["labels"].shape), [list(value.shape) for value in cut.values()],
]))
for name, recipe in recipes.items():
    sys.argv = ["train.py", json.dumps(recipe), "--output_dir", name, "--use_cpu"]
    sys.argv += ["--max_steps", "2", "--report_to", "none", "--per_device_train_batch_size", "4"]
    sys.argv += ["--logging_steps", "1", "--save_strategy", "no", "--disable_tqdm", "true"]
    print("recipe", name)
    script.main()
flags = "--output_dir of-file --max_train_samples 8 --use_cpu --max_steps 2 --report_to none"
sys.argv = ["train.py", "recipe.json", *flags.split()]
print("recipe of a file")
script.main()
print("cputune" in sys.modules)
"""


def recipe(task: str, **more: object) -> dict[str, object]:
    return {
        "task": task,
        "model": {"model_type": "bert", "vocab_size": 100, "hidden_size": 32}
        | {"num_attention_heads": 2, "intermediate_size": 64},
        "sequence_length": 16,
        "global_batch_size": 4,
        "learning_rate": 1e-3,
        **more,
    }


def shrunken(name: str) -> dict[str, object]:
    """A shipped recipe with a small model and short samples, of the same task and model type."""
    document = load_recipe(name).to_json()
    model = {key: SMALL.get(key, value) for key, value in document["model"].items()}
    target = document["target_length"] and 8
    return {**document, "model": model, "sequence_length": 16, "target_length": target}


def test_there_is_a_recipe_for_every_task() -> None:
    assert len(recipe_names()) >= 12
    assert {load_recipe(name).task for name in recipe_names()} == set(get_args(Task))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a process says that looks at samples, then trains every recipe; and its folder."""
    recipes = json.dumps({name: shrunken(name) for name in recipe_names()})
    lengths = recipe("token-classification", lengths={"quantiles": [3, 5, 30], "source": "here"})
    folder = tmp_path_factory.mktemp("trained")
    (folder / "recipe.json").write_text(json.dumps(recipe("question-answering")))
    done = ran(
        [sys.executable, "-W", "ignore", "-c", IN_ONE_PROCESS, recipes, json.dumps(lengths)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(recipe_script().parent)},
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.mark.torch
def test_every_shipped_recipe_trains(trained: tuple[str, Path]) -> None:
    out, folder = trained
    for told in out.partition("recipe of a file")[0].split("recipe ")[1:]:
        name = told.split()[0]
        losses = [float(loss) for loss in re.findall(r"'loss': '?([\d.e+-]+|nan|inf)", told)]
        assert len(losses) == 2, name
        assert all(map(math.isfinite, losses)), name
        assert list((folder / name).glob("*model.safetensors")), name


@pytest.mark.torch
def test_samples_are_as_long_as_those_of_the_data(trained: tuple[str, Path]) -> None:
    shortest, longest, mean, ids, labels, full, cut = json.loads(trained[0].partition("\n")[0])
    assert (shortest, longest) == (3, 16), "none is longer than the recipe's sequence"
    assert 6.5 < mean < 9.5
    assert ids == 13 * [1]
    assert labels == 13 * [-100]
    assert full == [3, 16]
    assert cut == [[3, 8]] * 3


@pytest.mark.torch
def test_it_trains_without_cputune_and_says_what_on(trained: tuple[str, Path]) -> None:
    out, folder = trained
    of_file = out.partition("recipe of a file\n")[2]
    assert of_file.startswith("model: bert with random weights\ndata: synthetic tokens, 8 samples")
    assert of_file.endswith("False\n")
    assert (folder / "of-file" / "model.safetensors").is_file()
