"""Recipes and scripts: read, checked, refused in words."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from golden_texts import Golden
from rows import every_row

from cputune import RecipeError, UsageError, Workload
from cputune.plans.workload import load_recipe
from cputune.text.documents import record_of

SOUND = """
description = "tiny"
task = "masked-lm"
sequence_length = 16
global_batch_size = 4
learning_rate = 1e-4

[model]
model_type = "bert"
"""


def test_a_workload_of_a_recipe_of_ones_own_reads_back_equal(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SOUND)
    job = Workload.from_recipe(str(tmp_path / "own.toml"))
    assert record_of(Workload, job.to_json()) == job


@every_row(
    ("sound", "damaged", "said"),
    [
        ("= 1e-4", "= nan", "nan is not a finite number"),
        ("= 4", "= 4\nlengths.source = 'x'\nlengths.quantiles = [9, 3]", "must not decrease"),
        ('"bert"', '"bert"\nx = ' + 5000 * "[", "is not TOML"),
        ('"bert"', '"bert"\nx = ' + 100 * "[" + 100 * "]", "nested too deeply"),
        ('"bert"', '"bert"\nx = 2020-01-01', "not a text, number, list or mapping"),
    ],
)
def test_a_damaged_recipe_is_refused_in_words(
    tmp_path: Path, sound: str, damaged: str, said: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SOUND.replace(sound, damaged, 1))
    with pytest.raises(RecipeError, match=said) as caught:
        load_recipe(str(file))
    assert caught.value.hint


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (str(tmp_path / "pipe.toml"), "/dev/zero", f"{tmp_path}/"):
        with pytest.raises(RecipeError, match="cannot read"):
            load_recipe(path)


def test_a_recipe_larger_than_any_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.toml").write_text("#" * (2 << 20))
    with pytest.raises(RecipeError, match="larger than 1 MiB"):
        load_recipe(str(tmp_path / "large.toml"))


@every_row(
    ("word", "found"),
    [
        ("${HF_TOKEN}", ("", "HF_TOKEN")),
        ("--token=${HF_TOKEN}", ("--token=", "HF_TOKEN")),
        ("x${HF_TOKEN}", None),
        ("--epochs", None),
    ],
)
def test_a_secret_is_a_word_or_the_value_of_one(word: str, found: tuple[str, str] | None) -> None:
    workload = replace(Workload.script(["train.py", word]), secrets=("HF_TOKEN",))
    assert workload.secret_of(word) == found
    if found is not None:
        assert workload.filled([word], {"HF_TOKEN": "abc"}) == [f"{found[0]}abc"]


def test_a_workload_trains_something(golden: Golden) -> None:
    with pytest.raises(UsageError, match="no script"):
        Workload.script([])
    with golden.raises(ValueError):
        record_of(Workload, {"name": "x"})
