"""Padding is cut where the baseline was seen to train the same so, and its launch does it too."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import ran
from machines import machine
from rows import every_row

import cputune
from cputune import Plan, UsageError, Workload
from cputune.emitters import Emission, render
from cputune.plans.equivalence import Deviation, ModelAnswers
from cputune.plans.knobs import kept_between
from cputune.plans.workload import Padding
from cputune.ranks.compare import samples_to_end

JOB = Workload.script(["train.py"])
PLAN = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))
CUT = PLAN.with_setting("padding", "cut")
ORDERED = CUT.with_setting("order", "length")
SEEN = Padding(share=0.89, left=0.23)


def test_is_not_held_at_a_value_that_the_model_was_seen_to_train_otherwise_with() -> None:
    point = "after 24 updates"
    for apart in (0.43, 1e-8):
        answer = Deviation(
            question="padding", point=point, loss=(1, 1), gradient=(1, 1), apart=apart
        )
        job = replace(
            JOB, padding=SEEN, model_answers=ModelAnswers(answers=(answer,), dtype="float32")
        )
        if apart > 0.1:
            with pytest.raises(
                UsageError, match="no plan of this machine has padding=cut"
            ) as error:
                cputune.search_space(machine(), job, fix={"padding": "cut"})
            assert point in str(error.value.hint)
        else:
            assert tuple(cputune.search_space(machine(), job, fix={"padding": "cut"}).plans())


def test_what_it_keeps_is_named(golden: Golden) -> None:
    assert kept_between(PLAN, CUT) == "mathematics"
    assert CUT.describe() == "1 × 1 thread, fp32, padding cut"
    assert kept_between(CUT, ORDERED) == "distribution"
    golden(ORDERED.describe())


@every_row(
    ("state", "samples"),
    [
        ({"steps_to_end": 100}, 800),
        ({"epochs": 3.0, "dataset_samples": 50}, 150),
        ({"epochs": 3.0, "dataset_samples": None}, None),
        ({}, None),
    ],
)
def test_the_whole_training_is_what_the_script_says(
    state: dict[str, object], samples: int | None
) -> None:
    assert samples_to_end([{"batch": 4, "accumulation": 2, **state}]) == samples  # type: ignore[list-item]


@pytest.mark.torch
def test_an_emitted_launch_says_what_it_does_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "mask = torch.tensor([1] * 3 + [0] * 21)\n"
        "class Mean(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words = torch.nn.Embedding(9, 4)\n"
        "    def forward(self, input_ids, attention_mask):\n"
        "        weights = attention_mask.unsqueeze(-1).float()\n"
        "        return (self.words(input_ids) * weights).sum(1) / weights.sum(1)\n"
        "model = Mean()\n"
        "data = [{'input_ids': mask, 'attention_mask': mask}] * 6\n"
        "for batch in DataLoader(data, batch_size=2):\n"
        "    model(**batch).sum().backward()\n"
        "    print(tuple(batch['input_ids'].shape))\n"
    )
    job = replace(JOB, framework="pytorch")
    for file in render(CUT, job, "torchrun", Emission(facts=machine())):
        (tmp_path / file.name).write_text(file.text, encoding="utf-8")
    done = ran([sys.executable, "apply_plan.py", "train.py"], cwd=tmp_path)
    assert done.stdout.splitlines() == ["(2, 24)", "(2, 8)", "(2, 8)"], done.stderr
    assert "columns that are padding in every sample of a batch are cut off" in done.stderr
