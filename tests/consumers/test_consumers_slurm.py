"""A private Slurm on loopback judges and runs the emitted batch script."""

import os
import re
import shutil

import pytest
import slurm
from launches import two_ranks

from cputune import verify

pytestmark = [
    pytest.mark.consumer,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(slurm.missing()), reason=f"apt-get install {slurm.PACKAGES} (make test-consumers)"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd wants root"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.cluster(tmp_path_factory.mktemp("slurm") / "root", cpus=2) as configuration:
        yield configuration


def test_the_job_runs_as_planned(cluster, write, tiny, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster))
    directory = write("slurm", two_ranks(), tiny)
    verdicts = verify([directory], steps=4, submit=True)
    monkeypatch.undo()
    assert {verdict.state for verdict in verdicts} == {"passed"}, verdicts
    checks = {check.name: check for verdict in verdicts for check in verdict.checks}
    assert "in partition main" in checks["sbatch --test-only"].summary
    assert checks["world size"].state == "passed"


def test_a_step_that_slurm_refuses_is_reported(cluster, write, tiny, monkeypatch, tmp_path):
    """What ranks report comes over a step of the job."""
    srun = tmp_path / "srun"
    srun.write_text(
        '#!/bin/sh\ncase "$*" in *--relative=*) echo "srun: error: no step" >&2; exit 1;; esac\n'
        f'exec {shutil.which("srun")} "$@"\n'
    )
    srun.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(cluster))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    directory = write("slurm", two_ranks(), tiny)
    (verdict,) = verify([directory], steps=4, submit=True)
    monkeypatch.undo()
    checks = {check.name: check for check in verdict.checks}
    assert checks["launch"].state == "not checked"
    assert "srun" in (checks["launch"].remedy or "")
    assert "srun: error: no step" in [row.seen for row in checks["launch"].evidence]


def test_a_job_that_the_cluster_could_never_run_fails(cluster, write, tiny, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster))
    path = write("slurm", two_ranks(), tiny) / "slurm.sh"
    path.write_text(re.sub(r"--ntasks-per-node=\d+", "--ntasks-per-node=200", path.read_text()))
    (verdict,) = verify([path], run=False)
    monkeypatch.undo()
    assert verdict.state == "failed"


@pytest.mark.thorough
def test_without_a_cluster_it_is_not_checked(write, tiny, monkeypatch, tmp_path):
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n"
        "CredType=cred/none\nNodeName=localhost\nPartitionName=main Nodes=ALL\nMessageTimeout=2\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    verdicts = verify([write("slurm", two_ranks(), tiny)])
    monkeypatch.undo()
    (check,) = [c for v in verdicts for c in v.checks if c.name == "sbatch --test-only"]
    assert check.state == "not checked"
    assert check.remedy
