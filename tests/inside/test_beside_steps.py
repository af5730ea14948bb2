"""What a training does beside its steps: evaluations and checkpoints, seen before it makes any."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune.inside.messages import Speaker
from cputune.inside.meter import Meter, times
from cputune.layout import baseline_plan
from cputune.ranks.runner import ProcessRunner
from cputune.workload import Workload


@pytest.mark.parametrize(
    ("when", "steps", "epochs", "count"),
    [
        ("no", None, None, 0),
        ("epoch", None, 2.5, 3),
        ("epoch", 100, None, None),
        ("best", 100, 3.0, None),
        (30.0, 100, None, 3),
        (30.0, None, 3.0, None),
        (0.25, None, None, 4),
    ],
)
def test_how_often_it_comes(
    when: str | float, steps: int | None, epochs: float | None, count: int | None
) -> None:
    assert times(when, steps, epochs) == count


def test_evaluations_whose_samples_nobody_knows_are_not_told() -> None:
    meter = Meter(Speaker(""))
    meter.cadence = {"evaluation": "epoch", "saving": 10.0}
    meter.see_beside(None, 3.0, None)
    assert not {"evaluated_samples", "checkpoints"} & set(meter.facts)
    meter.see_beside(45, 3.0, 100, more=1)
    assert (meter.facts["evaluated_samples"], meter.facts["checkpoints"]) == (400, 4)


SCRIPT = """
import torch
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser
from transformers import Trainer, TrainingArguments

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = BertForSequenceClassification(BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=16))
row = {"input_ids": [7] * 8, "attention_mask": [1] * 8, "labels": 1}
Trainer(model=model, args=args, train_dataset=[row] * 64, eval_dataset=[row] * 10).train()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "evaluated", "saves"),
    [
        (["--do_eval", "--save_strategy", "epoch"], 10, True),
        (["--eval_strategy", "steps", "--eval_steps", "5", "--save_strategy", "no"], 40, False),
    ],
)
def test_a_trainer_is_seen_to_evaluate_and_save(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    evaluated: int,
    saves: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    given = ["--output_dir", "out", "--use_cpu", "--num_train_epochs", "3"]
    given += ["--per_device_train_batch_size", "8", "--report_to", "none"]
    job, facts = Workload.script(["train.py", *given, *words]), cputune.probe()
    with ProcessRunner(job, facts) as runner:
        with closing(runner.steps(baseline_plan(facts))) as steps:
            assert len(list(islice(steps, 2))) == 2
        seen = runner.workload
    assert (seen.samples_to_end, seen.epochs) == (192, 3.0)
    assert seen.evaluated_samples == evaluated
    assert seen.checkpoint_seconds is not None
    assert (seen.checkpoint_seconds > 0) is saves
    assert not (tmp_path / "out").exists()
