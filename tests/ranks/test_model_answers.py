"""A plan that promises the same numbers is held to them in its trial, whatever it changes."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import Plan, Workload
from cputune.plans.equivalence import UNCHECKED
from cputune.plans.knobs import keeps_mathematics
from cputune.plans.layout import baseline_plan
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import Infeasible

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
changed = sys.argv[1] if "MALLOC_TOP_PAD_" in os.environ else ""
for x, y in DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), batch_size=8):
    loss = torch.nn.functional.mse_loss(model(x), y)
    if changed == "draws":
        loss = loss + 0 * torch.rand(())
    if changed == "scales":
        loss = 1.01 * loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param("as typed", None, marks=pytest.mark.matrix),
        pytest.param(
            "draws",
            "its first step draws random numbers, your current launch draws none",
            marks=pytest.mark.matrix,
        ),
        ("scales", "the gradient of the first step has the norm"),
    ],
)
def test_a_trial_of_the_same_numbers_has_to_have_them(
    workdir: Path, how: str, said: str | None
) -> None:
    (workdir / "train.py").write_text(SCRIPT, encoding="utf-8")
    facts = cputune.probe()
    alone = Plan(processes_per_node=1, threads_per_process=1, cpus=(facts.topology.allowed[:1],))
    today, plan = baseline_plan(facts), alone.with_setting("malloc", "kept")
    assert keeps_mathematics(today, plan)
    with ProcessRunner(Workload(name="train.py", argv=("train.py", how)), facts) as runner:
        with closing(runner.steps(today)) as steps:
            assert len(list(islice(steps, 2))) == 2
        with closing(runner.steps(plan)) as steps:
            if said is None:
                assert len(list(islice(steps, 2))) == 2
            else:
                with pytest.raises(Infeasible, match=said):
                    next(steps)


@pytest.mark.torch
def test_a_time_that_is_up_while_a_model_is_asked_ends_no_study(workdir: Path) -> None:
    (workdir / "train.py").write_text(SCRIPT, encoding="utf-8")
    notes: list[str] = []
    job = Workload.script(["train.py"])
    with ProcessRunner(job, cputune.probe(), offline=True, on_note=notes.append) as runner:
        for _ in islice(runner.steps(runner.baseline_as_typed), 2):
            pass
        runner.keep_to(lambda: 0.0)
        runner.check_model()
        assert notes[-1] == "the time limit was reached while the model was checked"
        assert runner.workload.model_answers == UNCHECKED, "it has answered nothing"
