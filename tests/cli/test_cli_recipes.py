"""``cputune recipes``: listed, shown, described to editors, begun from a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import Run

from cputune.cli.recipes import begun, recipe_schema
from cputune.errors import CannotError
from cputune.workload import load_recipe, recipe_names

STATE = {
    "sequence_length": 64,
    "learning_rate": 3e-5,
    "model": {
        "class": "BertForTokenClassification",
        "config": {"model_type": "bert", "hidden_size": 32, "num_labels": 9, "tie": True},
    },
}


def test_the_list_names_every_recipe(cputune: Run) -> None:
    text = cputune("recipes").out
    listed = json.loads(cputune("recipes", "--json").out)["recipes"]
    assert [recipe["name"] for recipe in listed] == list(recipe_names())
    assert all(name in text for name in recipe_names())


def test_what_is_shown_is_a_recipe_that_can_be_read_again(cputune: Run, tmp_path: Path) -> None:
    mine = tmp_path / "gpt2-lora.toml"
    assert cputune("recipes", "show", "gpt2-lora", "-o", str(mine)).code == 0
    assert load_recipe(str(mine)) == load_recipe("gpt2-lora")
    assert mine.read_text().startswith("# gpt2-lora: parameters: 124 million; memory: 1.2 GiB")
    assert json.loads(cputune("recipes", "show", "gpt2-lora", "--json").out)["lora"]["rank"] == 8


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("show",), "cputune recipes show gpt2-clm"),
        (("show", "no-such"), "recipes: bert-base-ner"),
        (("new",), "cputune recipes new -o mine.toml -- train.py"),
        (("list", "--", "train.py"), "cputune recipes new"),
        (("new", "--", "missing.py"), "-- train.py --epochs 3"),
        (("bake",), "one of list, show"),
    ],
)
def test_what_makes_no_sense_has_a_hint(cputune: Run, words: tuple[str, ...], hint: str) -> None:
    ended = cputune("recipes", *words)
    assert ended.code == 2
    assert hint in ended.err


def test_the_schema_has_every_key_of_a_recipe_and_its_meaning() -> None:
    schema = recipe_schema()
    known = set(load_recipe("bert-mini").to_json()) - {"name"}
    assert set(schema["properties"]) == known
    assert all(part["description"] for part in schema["properties"].values())
    assert "name" not in schema["required"]


def test_a_recipe_is_begun_by_what_a_first_step_shows(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(begun('a "b".py\n', STATE, 8))
    recipe = load_recipe(str(path))
    assert recipe.task == "token-classification"
    assert recipe.model == STATE["model"]["config"]
    assert (recipe.sequence_length, recipe.global_batch_size) == (64, 8)
    assert recipe.learning_rate == 3e-5


def test_the_length_of_an_image_is_its_patches_and_one(tmp_path: Path) -> None:
    config = {"model_type": "vit", "image_size": 224, "patch_size": 16}
    path = tmp_path / "mine.toml"
    path.write_text(
        begun("t.py", {"model": {"class": "ViTForImageClassification", "config": config}}, 8)
    )
    assert load_recipe(str(path)).sequence_length == 197


@pytest.mark.parametrize("model", [{}, {"class": "MyNet", "config": {}}])
def test_a_model_that_no_recipe_describes_is_said(model: dict[str, object]) -> None:
    with pytest.raises(CannotError, match="no recipe describes"):
        begun("train.py", {"model": model}, 8)


SCRIPT = """
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments
config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=64)
ids = torch.randint(64, (24,))
data = [{"input_ids": ids, "labels": ids}] * 64
arguments = TrainingArguments("out", per_device_train_batch_size=4, use_cpu=True,
                              learning_rate=1e-4)
Trainer(BertForMaskedLM(config), arguments, train_dataset=data).train()
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_a_real_script_becomes_a_recipe_that_can_be_read(
    cputune: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    ended = cputune("recipes", "new", "-o", "mine.toml", "--", "train.py")
    assert ended.code == 0, ended.err
    recipe = load_recipe("./mine.toml")
    assert recipe.task == "masked-lm"
    assert (recipe.sequence_length, recipe.global_batch_size) == (24, 4)
    assert recipe.learning_rate == 1e-4
    assert recipe.model["hidden_size"] == 32
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.toml", "train.py"]
