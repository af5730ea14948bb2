"""A launch as typed that is the best plan is written down without anything inside its process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confirmed import UNCOMPARED
from emit_machines import TODAY, machine, tuned

from cputune import EmittedFile, Plan, Result, Trial, Workload, emit
from cputune.records.result import COMPLETED, Reports

BUILT = """
from transformers import Trainer, TrainingArguments
Trainer(model, TrainingArguments("out", use_cpu=True), train_dataset=rows).train()
"""
FACTS = machine("Intel(R) Xeon(R) w5-3425", sockets=1, cores=8)


def observed(words: list[str], framework: str, ranks: int) -> Workload:
    seen = {"framework": framework, "global_batch_size": 8 * ranks, "accumulation": 1}
    return Workload.script(words).observed(parses_arguments=False, **seen)


def result_of(words: list[str], framework: str) -> Result:
    """What tune writes if it has compared nothing: the launch as typed, as its ranks showed it."""
    workload = observed(words, framework, 2)
    cpus = (tuple(range(8)),) * 2
    plan = Plan(processes_per_node=2, threads_per_process=1, cpus=cpus, as_found=True)
    result = tuned(FACTS, replace(plan, as_found=False), workload, TODAY)
    own = replace(result.baseline, plan=plan)
    return replace(result, best=own, baseline=own, confirmation=(), **UNCOMPARED)


def written(result: Result, format: str, **asked: object) -> tuple[EmittedFile, ...]:
    """The files of this format."""
    return emit(result, format, facts=FACTS, **asked)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _place(workdir: Path) -> None:
    Path("train.py").write_text(BUILT)


TYPED = ["torchrun", "--nproc-per-node", "2", "train.py"]


@pytest.mark.parametrize("format", ["torchrun", "mpirun", "slurm", "pytorchjob"])
@pytest.mark.parametrize("self_contained", [True, False])
@pytest.mark.parametrize(
    ("words", "framework"),
    [
        (TYPED, "trainer"),
        (TYPED, "accelerate"),
        (["mpirun", "-n", "2", "python", "train.py"], "trainer"),
        (["accelerate", "launch", "--cpu", "--num_processes", "2", "train.py"], "trainer"),
    ],
)
def test_it_needs_no_carry(
    words: list[str], framework: str, format: str, self_contained: bool
) -> None:
    where = {"self_contained": self_contained, "importable": not self_contained}
    files = written(result_of(words, framework), format, **where)
    assert "apply_plan.py" not in [file.name for file in files]
    if format in ("torchrun", "mpirun"):
        of_ours = [file.name for file in files if file.name.endswith(".py")]
        assert of_ours == (["rank.py"] if self_contained else [])
        assert '"set"' not in files[-1].text, "cputune.apply sets nothing either"
    assert "--use_cpu" not in files[0].text, "its own words decide"


@pytest.mark.parametrize("reported", ["trial", "comparison", "nothing"])
def test_notes_of_what_changed_nothing_count_from_trials_and_from_the_comparison(
    reported: str,
) -> None:
    """A plan between your launch and the best one has no trial, and `emit --keep` writes it."""
    workload = observed(["train.py"], "trainer", 1)
    plan = Plan(processes_per_node=2, threads_per_process=4, cpus=(tuple(range(4)), (4, 5, 6, 7)))
    ranks = ({"applied": {"trainer": [], "ranks": [], "apart": []}},) * 2
    trial = Trial(number=0, plan=plan, state=COMPLETED, observed=ranks)
    evidence = {
        "trial": {"trials": (trial,)},
        "comparison": {"reports": (Reports(plan=plan, observed=ranks),)},
        "nothing": {},
    }
    result = replace(tuned(FACTS, plan, workload, TODAY), **evidence[reported])
    result = Result.from_json(result.to_json())
    files = written(result, "torchrun", self_contained=True)
    assert ("apply_plan.py" in [file.name for file in files]) == (reported == "nothing")
