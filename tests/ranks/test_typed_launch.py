"""The baseline of a script that a launcher starts is that launch, as it was typed."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import Workload
from cputune.host import this_interpreter
from cputune.plans.layout import baseline_plan
from cputune.ranks.runner import ProcessRunner
from cputune.ranks.typed import as_activated

FAULTS = Path(__file__).parent.parent / "faults"


def test_this_pythons_launchers_are_found_first() -> None:
    command = as_activated(
        ("torchrun", "train.py"), {"PATH": "/usr/bin", "A": "1"}, this_interpreter()
    )
    assert command["argv"] == ["torchrun", "train.py"]
    assert command["env"] == {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin", "A": "1"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("launcher", "threads", "dtype"),
    [
        ("torchrun --nproc-per-node 2", 1, "float32"),
        pytest.param(
            "python -m torch.distributed.run --standalone --nproc-per-node 1",
            None,
            "float32",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "accelerate launch --cpu --mixed_precision bf16 --num_cpu_threads_per_process 1",
            1,
            "bfloat16",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_the_launch_runs_as_typed(
    launcher: str, threads: int | None, dtype: str, workdir: Path
) -> None:
    script = "accelerate_script.py" if launcher.startswith("accelerate") else "trainer_script.py"
    own = [] if launcher.startswith("accelerate") else ["--use_cpu"]
    words = [*launcher.split(), str(FAULTS / script), "--output_dir", "out", *own]
    job = Workload.script(words)
    facts = cputune.probe()
    with ProcessRunner(job, facts) as runner:
        runner._offline = True
        plan = baseline_plan(facts, ranks=job.launch_ranks)
        with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
            taken = list(islice(steps, 3))
        ranks = runner.observed()
    assert len(ranks) == job.launch_ranks
    assert {step.samples for step in taken} == {8 * job.launch_ranks}
    assert runner.workload.global_batch_size == 8 * job.launch_ranks
    assert {rank["dtype"] for rank in ranks} == {dtype}
    if threads is not None:
        assert {rank["threads"] for rank in ranks} == {threads}
    assert os.listdir(workdir) == []
