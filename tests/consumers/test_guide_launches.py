"""The launches of the guides, each written by one command, and started as far as this machine can.

Several hosts are addresses of this one, and more ranks than CPUs share them: their lists in the
files are replaced by those of this machine, nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hosts.builder import machine as built
from in_process import Run, ran
from local_pods import pods_of

from cputune import verify

pytestmark = [
    pytest.mark.consumer,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

QA = (
    *("run_qa.py", "--model_name_or_path", "google-bert/bert-large-uncased"),
    *("--dataset_name", "squad", "--do_train", "--do_eval", "--learning_rate", "3e-5"),
    *("--num_train_epochs", "2", "--max_seq_length", "384", "--doc_stride", "128"),
    *("--output_dir", "out", "--use_cpu", "--ddp_backend", "ccl", "--bf16"),
    *("--per_device_train_batch_size", "12"),
)
"""The guides' arguments, as transformers 5 takes them."""

Through = tuple[dict[str, str], Callable[[], str]]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parent / "run_qa.py", "run_qa.py")


def on_these_cpus(script: Path, ranks: int) -> None:
    """The ranks of a machine on the CPUs of this one, several on one where there are too few."""
    cpus = sorted(os.sched_getaffinity(0))
    shares = "/".join(str(cpus[at % len(cpus)]) for at in range(ranks))
    text, count = re.subn(r"--cpus [0-9,/-]+", f"--cpus {shares}", script.read_text())
    assert count == 1
    script.write_text(text)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("launcher_path", "ranks"), [("mpich", 4), ("openmpi4", 2)], indirect=["launcher_path"]
)
def test_accelerate_with_four_ranks_on_each_of_four_nodes(
    cputune: Run, through_ssh: Through, tmp_path: Path, ranks: int
) -> None:
    """accelerate binds to sockets, and Open MPI 4 refuses more ranks than a socket has CPUs: this
    machine may have two."""
    built(tmp_path / "machine", sockets=2, cores=4)
    hosts = ",".join(f"127.0.0.{number}" for number in (2, 3, 4, 5))
    each = ("--ranks-per-node", str(ranks), "--batch-per-rank", "1")
    asked = ("--nodes", "4", "--hosts", hosts, *each)
    done = cputune("emit", "-f", "accelerate", "--root", "machine", *asked, "--", *QA[:-2])
    assert done.code == 0, done.err
    written = yaml.safe_load(Path("launch/accelerate.yaml").read_text())
    assert (written["num_machines"], written["num_processes"]) == (4, 4 * ranks)
    assert written["main_process_port"] == 29500
    assert "mpirun_hostfile" in written["mpirun_config"]
    on_these_cpus(Path("launch/accelerate.sh"), ranks)
    outer, _ = through_ssh
    started = ran(["launch/accelerate.sh"], env=outer, timeout=550)
    assert started.returncode == 0, started.stderr
    assert started.stdout.count(f"trained: world {4 * ranks}") == 4 * ranks


@pytest.mark.thorough
def test_a_pytorchjob_of_four_workers(
    cputune: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    asked = ("--nodes", "4", "--ranks-per-node", "1", "--batch-per-rank", "12")
    cluster = ("--max-restarts", "10", "--pvc", "transformers-pvc", "--image", "example.com/qa:1")
    done = cputune("emit", "-f", "pytorchjob", *asked, *cluster, "--", *QA)
    assert done.code == 0, done.err
    path = Path("launch/pytorchjob.yaml")
    checks = {
        check.name: check.state for verdict in verify([path], run=False) for check in verdict.checks
    }
    assert checks.get("SDK models", "passed") == "passed"
    job = yaml.safe_load(path.read_text())
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    cpus = sorted(os.sched_getaffinity(0))
    pods = pods_of(job, path, cpus, tmp_path / "volumes", environment)
    assert len(pods) == 4
    started = [
        subprocess.Popen(
            pod.argv,
            env=dict(pod.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for pod in pods
    ]
    try:
        ended = [process.communicate(timeout=250) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert [process.returncode for process in started] == [0] * 4, ended
    assert sum(out.count("trained: world 4") for out, _ in ended) == 4
