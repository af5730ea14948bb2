"""What a plan changed in a real trial is in the result, and decides what emit writes."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import Plan, Workload
from cputune.emitters.prepared import versions_of
from cputune.inside.applying.parts import needed
from cputune.plans.delivery.delivery import delivery_of
from cputune.plans.delivery.needed_parts import AVERAGE, used
from cputune.plans.layout import baseline_plan
from cputune.ranks.runner import ProcessRunner
from cputune.stack import Versions

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

TRAINER = """
import torch, transformers
config = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, vocab_size=100, max_position_embeddings=16)
model = transformers.BertForSequenceClassification(config)
rows = [{"input_ids": torch.arange(8) + i % 90, "labels": i % 2} for i in range(256)]
parser = transformers.HfArgumentParser(transformers.TrainingArguments)
(args,) = parser.parse_args_into_dataclasses()
transformers.Trainer(model, args, train_dataset=rows).train()
"""


def test_a_trainer_with_its_own_flags_needs_one_part_after_its_trial(workdir: Path) -> None:
    Path("train.py").write_text(TRAINER)
    facts = cputune.probe()
    cpus = facts.topology.allowed
    plan = Plan(processes_per_node=2, threads_per_process=1, cpus=(cpus[:1], cpus[1:2] or cpus[:1]))
    words = ["train.py", "--output_dir", "out", "--use_cpu", "--report_to", "none"]
    with ProcessRunner(Workload.script(words), facts, offline=True) as runner:
        with closing(runner.steps(baseline_plan(facts))) as typed:
            assert len(list(islice(typed, 3))) == 3
        with closing(runner.steps(plan)) as taken:
            assert len(list(islice(taken, 3))) == 3
            observed = runner.observed()
        workload = runner.workload
    assert len(observed) == 2
    assert all("applied" in rank for rank in observed)
    known = versions_of(facts)
    whole = delivery_of(workload, plan, known)
    assert whole.force is not None, "before its trial all parts are written"
    way, left_out = used(whole, [observed], workload, Versions.from_names(known))
    assert way.force is not None
    assert [part.module for part in needed(way.force)] == ["dispatch"], observed[0]["applied"]
    assert set(left_out) == {"trainer", "ranks", "apart"}
    assert f"--{AVERAGE}" in way.flags, "an argument does what a part did"
