"""``cputune recipes``: listed, shown, described to editors."""

from __future__ import annotations

from pathlib import Path

from in_process import Run

from cputune.plans.workload import load_recipe, recipe_names


def test_the_list_names_every_recipe(cputune: Run) -> None:
    text = cputune("recipes").out
    assert all(name in text for name in recipe_names())


def test_what_is_shown_is_a_recipe_that_can_be_read_again(cputune: Run, tmp_path: Path) -> None:
    mine = tmp_path / "gpt2-lora.toml"
    mine.write_text(cputune("recipes", "gpt2-lora").out)
    assert load_recipe(str(mine)) == load_recipe("gpt2-lora")
    size = "parameters: 124 million; memory: one rank needs at least 3.9 GiB in bf16, 5.5 GiB in"
    assert mine.read_text().startswith(f"# gpt2-lora: {size} fp32\n")
