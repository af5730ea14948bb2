"""rank.py, run for real: numbers, CPUs, variables, and what it refuses."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden_texts import Golden
from in_process import ran
from rows import every_row

from cputune.inside import rank
from cputune.plans import placing

RANK = Path(str(rank.__file__))
PLACE = Path(placing.__file__)
SHOW = """import json, os, sys
print(json.dumps([sys.argv[1:], sorted(os.sched_getaffinity(0)), dict(os.environ)]))"""
NO_TORCH = """import types
ddp = type("FakeDDP", (), {"forward": None})
nn = types.SimpleNamespace(parallel=types.SimpleNamespace(DistributedDataParallel=ddp))
distributed = types.SimpleNamespace(is_available=lambda: False)
"""
"""What rank.py touches of torch before a script trains; importing torch takes seconds."""
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
ALLOWED = sorted(os.sched_getaffinity(0))


def start(
    *words: str, prefix: tuple[str, ...] = (), file: Path = RANK, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], **environment}
    if "-c" in words:  # rank.py takes a script, or -m and a module, as a training is
        at = words.index("-c")
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(words[at + 1])
            (Path(folder) / "torch.py").write_text(NO_TORCH)
            words = (*words[:at], str(script), *words[at + 2 :])
            return ran([*prefix, sys.executable, str(file), *words], env=variables)
    return ran([*prefix, sys.executable, str(file), *words], env=variables)


def seen(*words: str, **environment: str) -> tuple[list[str], list[int], dict[str, str]]:
    answer = start(*words, "--", "-c", SHOW, "an argument", **environment)
    assert answer.returncode == 0, answer.stderr
    arguments, affinity, variables = json.loads(answer.stdout)
    return arguments, affinity, variables


MPICH = {"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1"}
TORCH = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
LAST = str(ALLOWED[-1])


@every_row(
    ("launcher", "environment"),
    [("mpi", MPICH), ("mpi", OPENMPI), ("slurm", SLURM), ("torch", TORCH)],
)
def test_every_launcher_numbers_alike(launcher: str, environment: dict[str, str]) -> None:
    cpus = f"{ALLOWED[0]}/{LAST}"
    arguments, affinity, variables = seen("--launcher", launcher, "--cpus", cpus, **environment)
    assert [variables[name] for name in NUMBERS] == ["5", "6", "1", "2"]
    assert affinity == [ALLOWED[-1]]
    assert arguments == ["an argument"]


def test_a_lone_rank_of_a_pod_has_no_number() -> None:
    numbers = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    answer = start("9999", "--", "-c", SHOW, file=PLACE, OMP_NUM_THREADS="1", **numbers)
    assert not set(NUMBERS) & set(json.loads(answer.stdout)[2])


def test_it_is_python_3_9() -> None:
    ast.parse(RANK.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_a_rank_of_mpi_that_cannot_run_dies_of_a_signal(golden: Golden) -> None:
    """hydra lets the others wait after a mere exit status, for as long as gloo does."""
    cpus = ("--cpus", f"{ALLOWED[0]}/4000", "--", "-c", "")
    answer = start("--launcher", "mpi", *cpus, **MPICH)
    assert answer.returncode == -signal.SIGTERM
    golden(answer.stderr)
    assert start("--launcher", "slurm", *cpus, **SLURM).returncode == 3


def test_under_hydra_it_asks_for_an_abort(golden: Golden) -> None:
    """Intel MPI lets the others wait after a signal, too."""
    cpus = ("--cpus", f"{ALLOWED[0]}/4000", "--", "-c", "")
    answer = start("--launcher", "mpi", *cpus, PMI_FD="1", **MPICH)
    golden(answer.stdout)


def test_oneccl_without_mpirun_gets_its_local_numbers() -> None:
    options = ("--launcher", "torch", "--cpus", f"{LAST}/{LAST}")
    _, _, variables = seen(*options, **TORCH, CCL_PROCESS_LAUNCHER="none")
    assert (variables["CCL_LOCAL_RANK"], variables["CCL_LOCAL_SIZE"]) == ("1", "2")
    assert "CCL_LOCAL_RANK" not in seen(*options, **TORCH)[2]


def test_a_rank_may_have_all_cpus() -> None:
    every = ",".join(map(str, ALLOWED))
    assert seen("--launcher", "torch", "--cpus", f"{LAST}/{every}", **TORCH)[1] == ALLOWED


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(NO_TORCH)
    (tmp_path / "trains.py").write_text("import sys; print(sys.argv[1:], __name__)")
    words = [sys.executable, str(RANK), "--", "-m", "trains", "--lr", "1"]
    answer = ran(words, env={"PATH": os.environ["PATH"]}, cwd=tmp_path)
    assert answer.stdout == "['--lr', '1'] __main__\n", answer.stderr


@every_row(
    ("words", "said"),
    [
        (("--cpus", "4000-4003"), r"rank 0 cannot have CPUs 4000-4003, it may use"),
        (("--cpus", f"{LAST},4000"), "cannot have CPUs"),
        (("--launcher", "mpi", "--cpus", LAST), "mpi did not number this process"),
        (("--launcher", "torch", "--cpus", LAST), "local rank 1 has no CPUs"),
        (("--cpus", LAST), "preloads /gone/libtcmalloc.so.4, which is"),
    ],
)
def test_it_refuses_in_words(words: tuple[str, ...], said: str) -> None:
    local = "1" if "local rank" in said else "0"
    preload = {"LD_PRELOAD": "/gone/libtcmalloc.so.4"} if "preloads" in said else {}
    words = words if "--launcher" in words else ("--launcher", "torch", *words)
    numbers = {**TORCH, "LOCAL_RANK": local}
    answer = start(*words, "--", "-c", "print('ran')", **numbers, **preload)
    assert answer.returncode == (-signal.SIGTERM if "mpi" in words else 3)
    assert "ran" not in answer.stdout
    assert said in answer.stderr
    assert "\nhint: " in answer.stderr
    assert "Traceback" not in answer.stderr


def test_offered_cpus_that_are_not_there_leave_the_binding(golden: Golden) -> None:
    options = ("--launcher", "slurm", "--cpus", f"4000/{LAST},4001", "--bind", "offered")
    answer = start(*options, "--", "-c", SHOW, **SLURM)
    assert json.loads(answer.stdout)[1] == ALLOWED
    golden(answer.stderr)


def in_a_pod_of_two_cpus(cpus: str, **environment: str) -> tuple[list[int], dict[str, str]]:
    """The CPUs and variables of a rank that is given so many CPUs of the pod."""
    if len(ALLOWED) < 2:
        pytest.skip("needs two CPUs")
    prefix = ("taskset", "-c", f"{ALLOWED[0]},{ALLOWED[1]}")
    environment = {"OMP_NUM_THREADS": "1", **environment}
    answer = start(cpus, "--", "-c", SHOW, file=PLACE, prefix=prefix, **environment)
    return tuple(json.loads(answer.stdout)[1:])


def test_a_pod_with_cpus_of_its_own_is_cut_into_shares() -> None:
    numbers = [{**TORCH, "LOCAL_RANK": number} for number in ("0", "1")]
    shares = [in_a_pod_of_two_cpus("4", **own)[0] for own in numbers]
    assert shares == [[ALLOWED[0]], [ALLOWED[1]]]


def test_a_pod_on_shared_cpus_is_not_bound(golden: Golden) -> None:
    answer = start("0", "--", "-c", SHOW, file=PLACE, **{**TORCH, "LOCAL_RANK": "0"})
    assert json.loads(answer.stdout)[1] == ALLOWED
    golden(answer.stderr)


def test_oneccl_workers_of_a_pod_have_cpus_of_their_own() -> None:
    affinity, variables = in_a_pod_of_two_cpus("2", CCL_WORKER_COUNT="1")
    assert affinity == [ALLOWED[1]]
    assert variables["CCL_WORKER_AFFINITY"] == str(ALLOWED[0])


def test_half_of_a_launchers_numbers_is_not_enough() -> None:
    cpus = ("--launcher", "mpi", "--cpus", f"{LAST}/{LAST}")
    assert seen(*cpus, **OPENMPI, PMI_RANK="0", PMI_SIZE="1")[2]["RANK"] == "5"
    assert seen(*cpus, **OPENMPI, MPI_LOCALRANKID="0")[2]["RANK"] == "5"


class FakeModel:
    """What rank.py reads of a DDP model; ``scale`` is that of a weight on the other rank."""

    training = require_backward_grad_sync = True

    def __init__(self, torch: Any, scale: float = 1.0) -> None:
        self.module = torch.nn.Linear(3, 2)
        self.process_group = "all"
        self.scale = scale
        self._join_config = SimpleNamespace(enable=False)

    def others(self, bounds: Any, operation: object) -> None:
        """The all-reduce of two ranks; only the last weight differs."""
        other = bounds.clone()
        other[:, -1] *= self.scale
        bounds.copy_(bounds.maximum(other))


@pytest.mark.torch
class TestInTheTraining:
    def test_passes_are_due_often_at_first_and_then_each_64th(self) -> None:
        due = [number for number in range(200) if rank.is_due(number)]
        assert due == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192]

    @every_row(
        ("scale", "stops"), [(1.0, False), (1.0005, False), (1.002, True), (0.998, True), (2, True)]
    )
    def test_ranks_are_stopped_if_a_weight_differs_by_a_thousandth(
        self, scale: float, stops: bool
    ) -> None:
        import torch

        model = FakeModel(torch, scale)
        model.passes = 4
        ended: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", "0")
            patch.setattr(torch.distributed, "all_reduce", model.others)
            patch.setattr(rank.os, "_exit", ended.append)
            said = io.StringIO()
            patch.setattr(sys, "stderr", said)
            rank.compare(torch, model)
        assert ended == ([5] if stops else [])
        assert (
            "error: bias is not equal on all ranks, before training pass 4" in said.getvalue()
        ) is stops

    def test_only_training_passes_count_and_the_due_ones_are_compared(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        compared: list[int] = []
        ddp = torch.nn.parallel.DistributedDataParallel
        monkeypatch.setattr(ddp, "forward", lambda model, number: number)
        monkeypatch.setattr(rank, "compare", lambda torch, model: compared.append(model.passes))
        rank.watch_passes({})
        model = FakeModel(torch)
        for number in range(10):
            model.training = number != 3
            model.require_backward_grad_sync = number != 5
            assert ddp.forward(model, number) == number
        assert model.passes == 8
        assert compared == [0, 1, 2, 8]

    @every_row(("number", "apart"), [("0", False), ("1", True), ("3", True)])
    def test_all_but_the_first_rank_draw_numbers_of_their_own(
        self, number: str, apart: bool
    ) -> None:
        import torch

        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
            patch.setenv("RANK", number)
            torch.manual_seed(7)
            rank.draw_apart(torch)
            assert torch.initial_seed() == 7
            found = torch.rand(4)
            seed = (7 ^ int(number) * 0x9E3779B97F4A7C15) & (2**63 - 1)
            expected = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(found, expected)
        assert (seed != 7) is apart
