"""A batch job reports over a step of itself. The programs of Slurm are fakes that start it here."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from cputune.inside import SOCKET_VARIABLE
from cputune.ranks.engines import batch_job
from cputune.ranks.job import Launched, observe

RANK = """
from cputune.inside.messages import Speaker
Speaker().say({"event": "error", "kind": "Spoken", "text": "heard"})
"""
SQUEUE = '#!/bin/sh\n[ "$4" = --format=%A ] && [ -e "{}" ] && echo 17\n'
SRUN = '#!/bin/sh\necho "$SLURM_JOB_ID $*" >> "{}"\n'


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """The folder of the fakes: ``job`` exists while the job runs, ``steps`` lists its steps."""
    write(tmp_path / "squeue", SQUEUE.format(tmp_path / "job"))
    srun = SRUN.format(tmp_path / "steps")
    write(tmp_path / "srun", srun + 'while [ "${1#-}" != "$1" ]; do shift; done\nexec "$@"\n')
    return tmp_path


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def submitted(slurm: Path, script: str, nodes: int = 1, *, runs: bool = True) -> Launched:
    """What is observed of a job of one rank; sbatch waits for its end."""
    if runs:
        script = f'touch "{slurm}/job"\n{script}'
    write(slurm / "sbatch", f"#!/bin/sh\n{script}\n")
    ours = {"PATH": f"{slurm}:{os.environ['PATH']}", "SLURM_NODELIST": "of our own allocation"}
    job = {"name": "cputune-verify-test", "nodes": nodes, "environment": {**os.environ, **ours}}
    return observe(
        lambda reporting: batch_job(("sbatch",), reporting=reporting, **job),
        ranks=1,
        steps=1,
        timeout_seconds=120.0,
    )


def test_what_a_rank_reports_comes_over_a_step_of_the_job(slurm: Path) -> None:
    rank = f"{shlex.quote(sys.executable)} -c {shlex.quote(RANK)}"
    seen = submitted(
        slurm, f"echo $CPUTUNE_TRIAL_SOCKET > {slurm}/address\n{rank}\nexit 3", nodes=2
    )
    assert [rank.trouble for rank in seen.ranks] == ["Spoken: heard"]
    assert seen.returncode == 3
    steps = (slurm / "steps").read_text().splitlines()
    assert sorted(step.split()[:2] for step in steps) == [
        ["17", "--relative=0"],
        ["17", "--relative=1"],
    ]
    address = Path((slurm / "address").read_text().strip().removeprefix("relay:"))
    assert address.parent.name.startswith("cputune-verify-test-")
    assert not address.parent.exists()


def test_a_job_is_judged_by_its_own_end_and_not_by_that_of_the_step(slurm: Path) -> None:
    """Slurm ends the steps with the job, before sbatch notices its end."""
    write(slurm / "srun", "#!/bin/sh\necho srun: error: no step >&2\nexit 1\n")
    seen = submitted(slurm, "sleep 3\nexit 75")
    assert (seen.returncode, seen.ranks, seen.timed_out) == (75, (), False)
    assert "srun: error: no step" in seen.output


def test_the_command_line_holds_no_secret_and_no_port(slurm: Path) -> None:
    socket = "/tmp/here/socket"
    commands = batch_job(
        ("sbatch", "slurm.sh"),
        name="cputune-verify-1-0",
        nodes=2,
        reporting={SOCKET_VARIABLE: socket},
        environment={"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "4", "A": "1"},
    )
    job, *steps = commands
    assert job["argv"] == ["sbatch", "slurm.sh"]
    assert job["env"][SOCKET_VARIABLE].startswith("relay:/tmp/cputune-verify-1-0-")
    for step in steps:
        assert step["env"] == {"SLURM_CONF": "/etc/slurm.conf", "A": "1"}
        assert step["relay"] == socket
        assert job["env"][SOCKET_VARIABLE].removeprefix("relay:") not in " ".join(step["argv"])
