"""A Trainer script that never ran, launched by several ranks: its first step is that of one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from in_process import Run, ran

SCRIPT = """
import json
import torch
from transformers import BertConfig, BertForSequenceClassification, {imported}
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

{arguments}
set_seed(1)
config = BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
samples = torch.Generator().manual_seed(3)
data = [
    {{"input_ids": torch.randint(0, 100, (16,), generator=samples), "labels": number % 2}}
    for number in range(64)
]


class Log(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if state.is_world_process_zero and "loss" in logs:
            print("LOG", json.dumps(logs), flush=True)


model = BertForSequenceClassification(config)
Trainer(model=model, args=args, train_dataset=data, callbacks=[Log()]).train()
"""
PARSED = "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()"
MADE = (
    "args = TrainingArguments('out', max_steps=1, logging_steps=1, report_to='none', "
    "save_strategy='no', use_cpu=True, bf16=True, per_device_train_batch_size={batch})"
)
WORDS = (
    *("--output_dir", "out", "--max_steps", "1", "--logging_steps", "1", "--report_to", "none"),
    *("--save_strategy", "no", "--use_cpu", "--bf16", "--per_device_train_batch_size"),
)


def first_step(*command: str) -> tuple[float, float]:
    """Loss and norm of the gradient, as the first rank logs them."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = ran(command, env=environment)
    assert ended.returncode == 0, ended.stderr
    logs = json.loads(ended.stdout.split("LOG ", 1)[1].splitlines()[0])
    return logs["loss"], logs["grad_norm"]


@pytest.mark.torch
@pytest.mark.usefixtures("workdir")
@pytest.mark.parametrize(
    ("parses", "options"),
    [
        pytest.param(True, ("--self-contained",), id="parsed-copied", marks=pytest.mark.matrix),
        pytest.param(False, (), id="made-installed"),
        pytest.param(True, (), id="parsed-installed", marks=pytest.mark.matrix),
        pytest.param(False, ("--self-contained",), id="made-copied", marks=pytest.mark.matrix),
    ],
)
def test_ranks_that_each_take_a_batch_begin_as_one_process_with_all_of_it(
    parses: bool, options: tuple[str, ...], cputune: Run
) -> None:
    """BertForSequenceClassification ignores how many items a step has, and Trainer multiplies its
    loss by the ranks.
    """

    def written(batch: int) -> tuple[str, ...]:
        made = "" if parses else MADE.format(batch=batch)
        text = SCRIPT.format(imported="HfArgumentParser", arguments=PARSED if parses else made)
        Path("train.py").write_text(text)
        return ("train.py", *(WORDS if parses else ()), *((str(batch),) if parses else ()))

    loss, norm = first_step(sys.executable, *written(8))
    several = ("-f", "torchrun", "--ranks-per-node", "2", "--batch-per-rank", "4", *options)
    ended = cputune("emit", *several, "-o", "launch", "--", *written(4))
    assert ended.code == 0, ended.err
    assert first_step("bash", "launch/torchrun.sh") == pytest.approx((loss, norm), rel=5e-3)
