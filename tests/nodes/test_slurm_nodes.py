"""A private Slurm of two nodes: it runs the emitted batch script with four ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import install
from nodes.cluster import Cluster, two_hosts
from nodes.launches import assert_four_ranks, tiny, witnessed, write
from nodes.slurm_nodes import slurm

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
    done = hosts.run("alpha", argv, cwd=script.parent, check=False, timeout=240)
    out = script.with_name("job.out")
    told = out.read_text() if out.exists() else ""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{told[-4000:]}"
    return told


def test_an_allocation_has_both_hosts(allocated: Cluster) -> None:
    names = allocated.run("alpha", ["srun", "-N2", "-n2", "hostname"]).stdout.split()
    assert sorted(names) == ["alpha", "beta"]


def test_the_batch_script_starts_four_ranks_as_planned(allocated: Cluster, tmp_path: Path) -> None:
    submit(allocated, write(tmp_path, "slurm", witnessed(tmp_path)))
    assert_four_ranks(tmp_path)


def test_the_batch_script_trains_to_its_end(allocated: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = write(tmp_path, "slurm", tiny(tmp_path))
    submit(allocated, script, "--max_steps", "2", "--output_dir", str(out))
    assert (out / "model.safetensors").exists()
