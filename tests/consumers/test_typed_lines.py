"""The line that is printed to be copied, run word for word under verify's observation."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launches import result_of

import cputune
from cputune.emitters import Emission, emit
from cputune.emitters.job import make_job
from cputune.host import LiveHost, locks
from cputune.plan import Plan
from cputune.verifier import verify
from cputune.workload import Workload

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]

MODEL = """
import torch, transformers
config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, vocab_size=100, max_position_embeddings=32)
model = transformers.BertForSequenceClassification(config)
rows = [{"input_ids": torch.full((16,), 3 + i % 90), "labels": i % 2} for i in range(256)]
"""
TRAINER = f"""{MODEL}
parser = transformers.HfArgumentParser(transformers.TrainingArguments)
(args,) = parser.parse_args_into_dataclasses()
transformers.Trainer(model, args, train_dataset=rows).train()
"""


def script(framework: str, *arguments: str) -> Workload:
    job = Workload.script(["train.py", *arguments], global_batch_size=8)
    return replace(job, framework=framework, parses_arguments=framework == "trainer")


def one_rank(precision: str = "bf16") -> Plan:
    cpus = tuple(sorted(os.sched_getaffinity(0))[:2])
    return Plan(processes_per_node=1, threads_per_process=2, precision=precision, cpus=(cpus,))


def test_it_trains_as_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, plan = script("trainer", "--output_dir", "out"), one_rank()
    monkeypatch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    Path("train.py").write_text(TRAINER)
    facts = cputune.probe()
    result = result_of(plan, workload)
    result = replace(result, host=cputune.result.host_fingerprint(facts))
    result.save("cputune.json")
    asked = Emission(facts=facts, python=sys.executable, host=LiveHost())
    (line,) = emit(result, "command", facts=facts, python=sys.executable, host=LiveHost())
    assert "taskset" in line.text
    assert line.text.count("\n") <= 4
    promise = replace(make_job(result, asked).promise, format="torchrun")
    Path("line.sh").write_text(line.text + promise.line())
    (verdict,) = verify([Path("line.sh")], steps=4)
    assert [check for check in verdict.checks if check.state == "failed"] == [], verdict
    assert verdict.throughput is not None
