"""The least memory of a job: the same number for doctor and tuner, and a true lower bound."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from clean_machine import CLEAN, changed
from in_process import ran
from rows import every_row

import cputune
from cputune import Workload, diagnose
from cputune.doctor.checks.limits import GUIDES, MOST_GUIDE_BYTES
from cputune.plans.memory import LOGIT_BYTES, PROCESS_BYTES, SPARE, needed_bytes, spare_bytes
from cputune.plans.workload import Recipe, load_recipe, recipe_names

GIB = 1 << 30
LARGE = Workload.from_recipe("bert-large-squad")


def recipe_of(job: Workload) -> Recipe:
    assert job.recipe is not None
    return job.recipe


def test_both_let_the_same_machine_pass() -> None:
    assert max(needed_bytes(Workload.from_recipe(name)) for name in GUIDES) < MOST_GUIDE_BYTES
    enough = changed(limits={"memory_bytes": needed_bytes(LARGE)})
    assert not any(f.code == "memory-limit" for f in diagnose(enough).findings)
    ranks = {plan.processes_per_node for plan in cputune.search_space(enough, LARGE).plans()}
    assert ranks == {1}


@every_row(("batch", "ranks", "nodes", "samples"), [(12, 1, 5, 3), (None, 2, 3, 2)])
def test_each_node_keeps_its_share_of_the_batch(
    batch: int | None, ranks: int, nodes: int, samples: int
) -> None:
    recipe = recipe_of(LARGE)
    job = replace(LARGE, global_batch_size=batch, batch_per_rank=None)
    without = replace(job, recipe=replace(recipe, sample_bytes=0))
    more = needed_bytes(job, ranks, nodes=nodes) - needed_bytes(without, ranks, nodes=nodes)
    assert more == samples * recipe.sample_bytes > 0


def test_what_is_kept_of_a_sample_is_twice_as_large_without_bf16() -> None:
    """The doctor called gpt2-clm "4.1 GiB at least"; without bf16 it takes more than 23.6."""
    recipe = recipe_of(LARGE)
    more = needed_bytes(LARGE, value_bytes=4) - needed_bytes(LARGE)
    assert more == 12 * recipe.sample_bytes
    half = replace(LARGE, recipe=replace(recipe, model={**recipe.model, "dtype": "bfloat16"}))
    assert needed_bytes(half, value_bytes=4) == needed_bytes(half)
    need = needed_bytes(LARGE, value_bytes=4)
    short = changed(cpu={"isa": ("avx2",)}, limits={"memory_bytes": need - 1})
    evidence = next(f for f in diagnose(short).findings if f.code == "memory-limit").evidence
    assert f"bert-large-squad {need / GIB:.1f} GiB" in evidence
    left_out = cputune.search_space(short, LARGE).left_out
    assert any(f"at least {need / GIB:.1f} GiB" in item.why for item in left_out)


@pytest.mark.parametrize(
    ("name", "tokens"), [("gpt2-clm", 1024), ("roberta-base-mlm", 512), ("t5-small-cnn", 128)]
)
def test_a_language_model_has_logits_for_each_token_that_it_writes(name: str, tokens: int) -> None:
    job = Workload.from_recipe(name)
    recipe = recipe_of(job)
    other = replace(job, recipe=replace(recipe, task="token-classification"))
    logits = recipe.global_batch_size * tokens * recipe.model["vocab_size"]
    assert needed_bytes(job) - needed_bytes(other) == LOGIT_BYTES * logits


def test_a_study_counts_on_a_share_of_what_was_free() -> None:
    limits = replace(CLEAN.limits, memory_bytes=4 * GIB)
    assert spare_bytes(replace(CLEAN, limits=limits)) == SPARE * 4 * GIB


COUNT = """
import json, sys, torch, transformers
for model in json.loads(sys.argv[1]):
    with torch.device("meta"):
        real = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**model))
    print("count", sum(weight.numel() for weight in real.parameters()))
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_every_shipped_recipe_tells_the_parameters_that_its_model_has() -> None:
    """But for the head of its task."""
    recipes = [load_recipe(name) for name in recipe_names()]
    models = json.dumps([{**recipe.model} for recipe in recipes])
    done = ran([sys.executable, "-c", COUNT, models], timeout=200, check=True)
    counts = [int(text) for text in re.findall(r"^count (\d+)$", done.stdout, re.MULTILINE)]
    for recipe, count in zip(recipes, counts, strict=True):
        assert recipe.parameters == pytest.approx(count, rel=0.02), recipe.name


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.matrix
def test_a_real_training_needs_no_less(tmp_path: Path) -> None:
    """The peak of a real process stands above the bound."""
    job = Workload.from_recipe("bert-mini")
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(recipe_of(job).to_json()), encoding="utf-8")
    code = (
        "import resource, sys; from cputune.inside import train_recipe; train_recipe.main();"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    flags = "--max_train_samples 16 --max_steps 2 --use_cpu --bf16 --report_to none"
    argv = [sys.executable, "-c", code, str(recipe), "--output_dir", str(tmp_path / "out")]
    argv += [*flags.split(), "--per_device_train_batch_size", "8", "--save_strategy", "no"]
    done = ran(argv, timeout=300, check=True)
    assert needed_bytes(job) < 1024 * int(done.stdout.rpartition("peak ")[2])


def test_each_rank_has_weights_gradients_and_two_moments() -> None:
    recipe = recipe_of(LARGE)
    assert recipe.parameters is not None
    state, kept = 16 * recipe.parameters, 12 * recipe.sample_bytes
    assert needed_bytes(LARGE, 3) == 3 * (PROCESS_BYTES + state) + kept
    half = replace(recipe, model={**recipe.model, "dtype": "bfloat16"})
    assert needed_bytes(replace(LARGE, recipe=half)) == PROCESS_BYTES + state // 2 + kept
    lora = replace(recipe, lora=load_recipe("gpt2-lora").lora)
    assert needed_bytes(replace(LARGE, recipe=lora)) == PROCESS_BYTES + state // 4 + kept
