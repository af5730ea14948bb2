"""A private Slurm of two nodes: it runs the emitted batch script with four ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confirmed import UNCOMPARED
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.launches import tiny, write
from nodes.namespaces import until
from nodes.slurm_nodes import slurm

import cputune
from cputune.text import cpulist

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(install.why_no_slurm() is not None, reason=str(install.why_no_slurm())),
]


@pytest.fixture(scope="module")
def allocated() -> Iterator[Cluster]:
    """Two hosts on which sbatch and srun start jobs."""
    with two_hosts() as hosts, slurm(hosts):
        yield hosts


def submit(hosts: Cluster, script: Path, *arguments: str) -> str:
    """Run a batch script to its end on the first host; its output."""
    argv = ["sbatch", "--wait", "--output=job.out", script.name, *arguments]
    done = hosts.run("alpha", argv, cwd=script.parent, check=False, timeout=600)
    out = script.with_name("job.out")
    told = out.read_text() if out.exists() else ""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{told[-4000:]}"
    return told


def test_the_batch_script_trains_to_its_end(allocated: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = write(tmp_path, "slurm", tiny(tmp_path))
    submit(allocated, script, "--max_steps", "2", "--output_dir", str(out))
    assert (out / "model.safetensors").exists()


LIGHT = Path(__file__).with_name("answering.py")
CUT = ("env", "SRUN_CPUS_PER_TASK=1", "SLURM_EXACT=1", "SLURM_CPUS_PER_TASK=1")
"""What salloc hands on where it was asked for one CPU: each cuts a step to that."""


TUNE = [sys.executable, "-m", "cputune", "tune", "--share-machine", "--max-time", "3m"]


def tuned(hosts: Cluster, folder: Path, granted: tuple[str, ...], *words: str) -> dict[str, Any]:
    salloc = ["salloc", "--quiet", *granted, *CUT, *TUNE, *words]
    hosts.run("alpha", salloc, cwd=folder, env={"HF_HUB_OFFLINE": "1"}, timeout=600)
    return json.loads((folder / "cputune.json").read_text())


@pytest.mark.timeout(900)
def test_a_tune_means_its_allocation_and_its_plan_runs_as_a_job(
    allocated: Cluster, tmp_path: Path
) -> None:
    fixed = ("--fix", "nodes=2", "--fix", "ranks=2", "--budget", "2")
    result = tuned(allocated, tmp_path, ("-N2", "--exclusive"), *fixed, "--", str(LIGHT), "0.05")
    assert result["hosts"] == ["alpha", "beta"]
    allowed = cpulist.render(sorted(os.sched_getaffinity(0)))
    assert result["host"]["topology"]["allowed"] == allowed
    whole = [trial for trial in result["trials"] if len(trial["observed"]) == 4]
    assert whole, [trial["reason"] for trial in result["trials"]]
    for trial in whole:
        planned = [sorted(cpus) for cpus in trial["plan"]["cpus"]] * 2
        seen = [cpulist.parse(rank["affinity"]) for rank in trial["observed"]]
        assert [sorted(one) for one in seen] == planned
    kept = cputune.Result.load(tmp_path / "cputune.json")
    four = next(trial.plan for trial in kept.trials if trial.plan.world_size == 4)
    # On shared CPUs it may lose against one host: it is emitted as if it had won.
    best = replace(kept.baseline, plan=four)
    (tmp_path / "launch").mkdir()
    for file in cputune.emit(
        replace(kept, best=best, **UNCOMPARED), "slurm", python=sys.executable
    ):
        (tmp_path / "launch" / file.name).write_text(file.text)
        (tmp_path / "launch" / file.name).chmod(0o755)
    verify = [sys.executable, "-m", "cputune", "verify", "--submit", "--share-machine", "--json"]
    done = allocated.run(
        "alpha", [*verify, "launch/slurm.sh"], cwd=tmp_path, check=False, timeout=600
    )
    (verdict,) = json.loads(done.stdout)["verdicts"]
    checks = {check["name"]: check for check in verdict["checks"]}
    assert checks["affinity"]["state"] == "passed", checks
    until(lambda: not any(allocated.left(name) for name in allocated.names))


@pytest.mark.timeout(900)
def test_beside_an_allocation_of_one_node_that_node_is_meant(
    allocated: Cluster, tmp_path: Path
) -> None:
    words = ("--budget", "2", "--knobs", "threads", "--", str(LIGHT), "0.02")
    result = tuned(allocated, tmp_path, ("-N1", "--exclusive", "-w", "beta"), *words)
    assert result["hosts"] == ["beta"]


@pytest.mark.timeout(900)
def test_of_its_own_node_a_job_has_the_cpus_that_were_granted(
    allocated: Cluster, tmp_path: Path
) -> None:
    words = ("--budget", "2", "--knobs", "threads", "--", str(LIGHT), "0.02")
    result = tuned(allocated, tmp_path, ("-n1", "-w", "alpha"), *words)
    assert result["hosts"] == ["alpha"]
    (granted,) = cpulist.parse(result["host"]["topology"]["allowed"])
    seen = [rank["affinity"] for trial in result["trials"] for rank in trial["observed"]]
    assert set(seen) == {str(granted)}


COUNTED = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = torch.utils.data.DataLoader(torch.randn(64000, 64), batch_size=8)
steps = 0
for batch in batches:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
print(f"trained {steps} steps on {os.uname().nodename}")
"""


@pytest.mark.timeout(900)
def test_a_job_that_tunes_itself_trains_with_what_it_found(
    allocated: Cluster, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "cputune", "emit", "--format", "slurm", "--tune", "-o", "."]
    (tmp_path / "train.py").write_text(COUNTED)
    allocated.run("alpha", [*words, "--", "train.py"], cwd=tmp_path)
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    options = ("--budget", "2", "--knobs", "threads", "--share-machine", "--max-time", "4m")
    argv = ["sbatch", "--wait", "--output=job.out", "-w", "beta", "slurm-tune.sh", *options]
    done = allocated.run(
        "alpha", argv, cwd=tmp_path, check=False, env={"PATH": beside}, timeout=600
    )
    told = (tmp_path / "job.out").read_text()
    assert done.returncode == 0, f"{done.stderr}\n{told[-4000:]}"
    assert len(list(tmp_path.glob("cputune-*.json"))) == 1
    assert "trained 8000 steps on beta" in told
