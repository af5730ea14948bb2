"""The least memory of a job: the same number for doctor and tuner, and a true lower bound."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clean_machine import CLEAN, changed
from in_process import ran

import cputune
from cputune.doctor import diagnose
from cputune.facts import HostFacts, Unknown
from cputune.memory import PROCESS_BYTES, needed_bytes, parameters, room_bytes
from cputune.workload import Workload, recipe_names

GIB = 1 << 30
LARGE = Workload.from_recipe("bert-large-squad")
MODELS: tuple[dict[str, Any], ...] = (
    {"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 3, "intermediate_size": 700},
    {"model_type": "distilbert", "dim": 96, "n_layers": 2, "hidden_dim": 200},
    {"model_type": "gpt2", "n_embd": 192, "n_layer": 2},
    {"model_type": "opt", "ffn_dim": 512, "num_hidden_layers": 2},
    {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_key_value_heads": 8},
    {"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 2, "head_dim": 64},
    {"model_type": "t5", "num_layers": 4, "num_decoder_layers": 2},
    {"model_type": "t5"},
    {"model_type": "vit", "patch_size": 32},
)


def known(job: Workload, ranks: int = 1) -> int:
    need = needed_bytes(job, ranks)
    assert not isinstance(need, Unknown)
    return need


def test_doctor_and_tuner_name_the_same_number() -> None:
    """bert-large needed "at least" 5.46 GiB by the one and 8.94 by the other."""
    need = known(LARGE)
    short = changed(limits={"memory_bytes": need - 1})
    said = next(f for f in diagnose(short).findings if f.code == "memory-limit").evidence
    left_out = cputune.search_space(short, LARGE).left_out
    assert f"bert-large-squad {need / GIB:.1f} GiB" in said
    assert any(f"at least {need / GIB:.1f} GiB" in item.why for item in left_out)


def test_both_let_the_same_machine_pass() -> None:
    need = known(LARGE)
    enough = changed(limits={"memory_bytes": need})
    assert not any(f.code == "memory-limit" for f in diagnose(enough).findings)
    ranks = {plan.processes_per_node for plan in cputune.search_space(enough, LARGE).plans()}
    assert ranks == {1}


def test_the_need_of_every_shipped_recipe_is_known() -> None:
    for name in recipe_names():
        assert known(Workload.from_recipe(name)) > PROCESS_BYTES


def test_a_model_without_a_count_is_named_with_the_reason() -> None:
    assert LARGE.recipe is not None
    recipe = replace(LARGE.recipe, name="mine", model={"model_type": "mamba"})
    job = replace(LARGE, recipe=recipe)
    need = needed_bytes(job)
    assert isinstance(need, Unknown)
    assert (need.fact, "mamba" in need.reason) == ("memory need of recipe mine", True)
    left_out = cputune.search_space(changed(limits={"memory_bytes": GIB}), job).left_out
    assert any("memory need of recipe mine is not known" in item.why for item in left_out)


@pytest.mark.parametrize("size", ["768", 0, -1, True, [224, 224]])
def test_a_size_that_is_no_number_is_unknown(size: object) -> None:
    assert parameters({"model_type": "bert", "hidden_size": size}) is None


def test_a_model_in_16_bits_needs_half_the_state() -> None:
    assert LARGE.recipe is not None
    model = {**LARGE.recipe.model, "dtype": "bfloat16"}
    small = replace(LARGE, recipe=replace(LARGE.recipe, model=model))
    assert known(LARGE) - known(small) == 8 * (parameters(model) or 0)


def test_of_a_script_only_the_processes_are_known() -> None:
    assert needed_bytes(Workload.script(["train.py"]), 3) == 3 * PROCESS_BYTES


def test_the_room_is_the_smaller_of_limit_and_machine() -> None:
    facts: HostFacts = changed(limits={"memory_bytes": 4 * GIB})
    assert (room_bytes(facts), room_bytes(CLEAN)) == (4 * GIB, 512 * GIB)


# What a model type is without any size of its own: hidden size, layers, inner size, vocabulary ...
# as transformers 5.23 has it. Weights are vocabulary * hidden for the embedding, and for a layer
# 4 * hidden^2 of attention and 2 * hidden * inner (3 with a gate) of the feed-forward block.
PLAIN_BERT = 12 * (4 * 768**2 + 2 * 768 * 3072)
COUNTS = {
    "bert": 30522 * 768 + PLAIN_BERT,  # google-bert/bert-base-uncased has 109.5 million
    "camembert": 30522 * 768 + PLAIN_BERT,
    "xlm-roberta": 30522 * 768 + PLAIN_BERT,
    "distilbert": 30522 * 768 + PLAIN_BERT // 2,
    "mpnet": 30527 * 768 + PLAIN_BERT,
    "roberta": 50265 * 768 + PLAIN_BERT,
    "gpt2": 50257 * 768 + PLAIN_BERT,  # openai-community/gpt2 has 124.4 million
    "opt": 50272 * 768 + PLAIN_BERT,
    "gemma": 256000 * 3072 + 28 * (4 * 3072 * 4096 + 3 * 3072 * 24576),  # 7B: 8.54 billion
    "llama": 32000 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008),  # 7B: 6.74, its head left out
    "mistral": 32000 * 4096 + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336),  # 7.24
    "qwen2": 151936 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 22016),
    "t5": 32128 * 512 + 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * (8 * 512**2 + 2 * 512 * 2048),
    "vit": 3 * 16**2 * 768 + PLAIN_BERT,  # google/vit-base-patch16-224 has 86.4 million
    "deit": 3 * 16**2 * 768 + PLAIN_BERT,
}


@pytest.mark.parametrize("kind", COUNTS)
def test_the_weights_of_a_model_type(kind: str) -> None:
    assert parameters({"model_type": kind}) == COUNTS[kind]


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ({"model_type": "gpt2", "n_embd": 96, "n_layer": 1, "vocab_size": 10}, 960 + 12 * 96**2),
        ({"model_type": "gpt2", "n_embd": 96, "n_layer": 1, "n_inner": 1, "vocab_size": 1},
         96 + 4 * 96**2 + 2 * 96),
        ({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 1,
          "intermediate_size": 10, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 8}, 64 + 2 * 64 * 32 + 2 * 64 * 16 + 3 * 64 * 10),
        ({"model_type": "t5", "d_model": 64, "num_layers": 1, "num_decoder_layers": 3, "d_ff": 10,
          "num_heads": 2, "d_kv": 4, "vocab_size": 1},
         64 + (4 * 64 * 8 + 1280) + 3 * (8 * 64 * 8 + 1280)),
        ({"model_type": "vit", "patch_size": 8, "hidden_size": 12, "num_hidden_layers": 1,
          "intermediate_size": 1}, 3 * 64 * 12 + 4 * 12**2 + 24),
    ],
)  # fmt: skip
def test_sizes_of_its_own(model: dict[str, Any], count: int) -> None:
    assert parameters(model) == count


MIB = 1 << 20
BERT = {"model_type": "bert"}


def job_of(model: dict[str, Any], *, batch: int | None = 12, **recipe: Any) -> Workload:
    assert LARGE.recipe is not None
    of = {"sequence_length": 384, "target_length": None, "lora": None, "lengths": None, **recipe}
    return replace(LARGE, recipe=replace(LARGE.recipe, model=model, **of), global_batch_size=batch)


def test_what_bert_base_needs() -> None:
    """3.0 GiB, as it stands at the top of the module."""
    token = 12 * (12 * 768 + 4 * 3072)  # bytes of its twelve layers
    state = 16 * COUNTS["bert"]  # weight, gradient and two moments in 32 bits
    assert known(job_of(BERT)) == 256 * MIB + state + 12 * 384 * token
    assert known(job_of(BERT), 3) == 3 * (256 * MIB + state) + 12 * 384 * token
    assert known(job_of(BERT, batch=None), 3) == 3 * (256 * MIB + state + 384 * token)
    lora = {"r": 8}
    assert known(job_of(BERT, lora=lora)) == 256 * MIB + state // 4 + 12 * 384 * token // 2


def test_each_node_has_its_share_of_the_batch() -> None:
    for nodes, samples in ((1, 12), (2, 6), (5, 3)):
        need = needed_bytes(job_of(BERT), nodes=nodes)
        alone = needed_bytes(job_of(BERT, batch=1))
        assert isinstance(need, int)
        assert isinstance(alone, int)
        assert need - alone == (samples - 1) * 384 * 12 * (12 * 768 + 4 * 3072)
    two = job_of(BERT, batch=None)
    assert needed_bytes(two, 2, nodes=3) == needed_bytes(two, 2)


def test_what_a_sample_of_an_image_and_of_two_texts_needs() -> None:
    def sample(model: dict[str, Any], **recipe: Any) -> int:
        return known(job_of(model, batch=2, **recipe)) - known(job_of(model, batch=1, **recipe))

    assert sample({"model_type": "vit"}) == 14**2 * 12 * (12 * 768 + 4 * 3072)
    small = {"model_type": "t5", "num_layers": 2, "num_decoder_layers": 3}
    each = 12 * 512 + 4 * 2048
    assert sample(small) == 384 * (2 + 3) * each
    assert sample(small, task="seq2seq-lm", target_length=100) == (384 * 2 + 100 * 3) * each


COUNT = """
import json, sys, torch, transformers
for model in json.loads(sys.argv[1]):
    with torch.device("meta"):
        real = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**model))
    print("count", sum(weight.numel() for weight in real.parameters()))
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_parameters_are_a_close_lower_bound_of_real_models() -> None:
    argv = [sys.executable, "-c", COUNT, json.dumps(MODELS)]
    done = ran(argv, timeout=200, check=True)
    counts = [int(text) for text in re.findall(r"^count (\d+)$", done.stdout, re.MULTILINE)]
    for model, count in zip(MODELS, counts, strict=True):
        counted = parameters(model)
        assert counted is not None
        assert 0.85 * count < counted <= count, model


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.matrix
def test_a_real_training_needs_no_less(tmp_path: Path) -> None:
    """The peak of a real process stands above the bound."""
    job = Workload.from_recipe("bert-mini")
    assert job.recipe is not None
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(job.recipe.to_json()), encoding="utf-8")
    code = (
        "import resource, sys; from cputune.inside import train_recipe; train_recipe.main();"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    flags = "--synthetic --max_train_samples 16 --max_steps 2 --use_cpu --bf16 --report_to none"
    argv = [sys.executable, "-c", code, str(recipe), "--output_dir", str(tmp_path / "out")]
    argv += [*flags.split(), "--per_device_train_batch_size", "8", "--save_strategy", "no"]
    done = ran(argv, timeout=300, check=True)
    assert known(job) < 1024 * int(done.stdout.rpartition("peak ")[2])
