"""A private Slurm on loopback judges and runs the emitted batch script."""

import os
import re

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
