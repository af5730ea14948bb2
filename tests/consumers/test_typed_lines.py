"""The line that is printed to be copied, run word for word under verify's observation."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from in_process import Run
from launch_lines import LOOP, TRAINER
from launches import THOROUGH, result_of

from cputune import Plan, Result, Workload, probe, verify
from cputune.emitters import Emission
from cputune.emitters.prepared import make_job
from cputune.host import LiveHost, locks
from cputune.records.claims import host_fingerprint

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]

DISTRIBUTED = """
import torch
torch.manual_seed(1)
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
for batch in torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=8):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
SCRIPTS = {"trainer": TRAINER, "accelerate": LOOP, "pytorch": DISTRIBUTED}
OF_TRAINER = ("--output_dir", "out", "--max_steps", "12", "--report_to", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of plan, and what its line starts the training with."""

    framework: str
    starter: str
    ranks: int = 1
    settings: dict[str, str] = field(default_factory=dict)

    def workload(self) -> Workload:
        arguments = OF_TRAINER if self.framework == "trainer" else ()
        together = 8 * self.ranks if self.framework == "pytorch" else 8  # it divides nothing
        job = Workload.script(["train.py", *arguments], global_batch_size=together)
        parses = self.framework == "trainer"
        return replace(job, framework=self.framework, parses_arguments=parses)

    def plan(self) -> Plan:
        first, second = sorted(os.sched_getaffinity(0))[:2]
        precision = "fp32" if self.framework == "pytorch" else "bf16"
        return Plan(
            processes_per_node=self.ranks,
            threads_per_process=2 // self.ranks,
            precision=precision,
            cpus=((first, second),) if self.ranks == 1 else ((first,), (second,)),
            settings=self.settings,
        )


KINDS = (
    pytest.param(Kind(framework="trainer", starter="taskset -c"), id="Trainer"),
    pytest.param(
        Kind(framework="accelerate", starter="ACCELERATE_MIXED_PRECISION=bf16"),
        id="Accelerator",
        marks=THOROUGH,
    ),
    pytest.param(
        Kind(framework="pytorch", starter="torchrun --standalone", ranks=2), id="torchrun"
    ),
    pytest.param(
        Kind(framework="trainer", starter="cputune run", settings={"dropout": "bytes"}),
        id="in the process",
        marks=THOROUGH,
    ),
    pytest.param(
        Kind(framework="trainer", starter="torchrun --standalone", ranks=2),
        id="carried",
        marks=THOROUGH,
    ),
    pytest.param(Kind(framework="recipe", starter="cputune run"), id="recipe", marks=THOROUGH),
)


def stored(kind: Kind, recipe: Workload) -> Result:
    """A result of this plan in cputune.json, and its script, in the folder here."""
    if kind.framework != "recipe":
        Path("train.py").write_text(SCRIPTS[kind.framework])
    workload = recipe if kind.framework == "recipe" else kind.workload()
    result = result_of(kind.plan(), workload)
    result = replace(result, host=host_fingerprint(probe()))
    result.save("cputune.json")
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_as_the_plan_says(
    kind: Kind, cputune: Run, tiny: Workload, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    result = stored(kind, tiny)
    printed = cputune("emit", "--format", "command", "-o", "-")
    assert printed.code == 0, printed.err
    assert kind.starter in printed.out
    assert printed.out.count("\n") <= 4
    asked = Emission(facts=probe(), python=sys.executable, host=LiveHost())
    promise = replace(make_job(result, asked).promise, format="torchrun")
    if kind.framework == "recipe":  # `run` hands the recipe over as text, not as a file
        promise = replace(promise, trained=None)
    Path("line.sh").write_text(printed.out + promise.line())
    (verdict,) = verify([Path("line.sh")], steps=4)
    assert [check for check in verdict.checks if check.state == "failed"] == [], verdict
    assert verdict.throughput is not None
