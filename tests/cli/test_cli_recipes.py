"""``cputune recipes``: listed, shown, described to editors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import Run

from cputune.workload import load_recipe, recipe_names


def test_the_list_names_every_recipe(cputune: Run) -> None:
    text = cputune("recipes").out
    listed = json.loads(cputune("recipes", "--json").out)["recipes"]
    assert [recipe["name"] for recipe in listed] == list(recipe_names())
    assert all(name in text for name in recipe_names())


def test_what_is_shown_is_a_recipe_that_can_be_read_again(cputune: Run, tmp_path: Path) -> None:
    mine = tmp_path / "gpt2-lora.toml"
    mine.write_text(cputune("recipes", "show", "gpt2-lora").out)
    assert load_recipe(str(mine)) == load_recipe("gpt2-lora")
    assert mine.read_text().startswith("# gpt2-lora: parameters: 124 million; memory: 1.2 GiB")
    assert json.loads(cputune("recipes", "show", "gpt2-lora", "--json").out)["lora"]["rank"] == 8


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("show",), "cputune recipes show gpt2-clm"),
        (("show", "no-such"), "recipes: bert-base-ner"),
        (("bake",), "one of list, show"),
    ],
)
def test_what_makes_no_sense_has_a_hint(cputune: Run, words: tuple[str, ...], hint: str) -> None:
    ended = cputune("recipes", *words)
    assert ended.code == 2
    assert hint in ended.err
