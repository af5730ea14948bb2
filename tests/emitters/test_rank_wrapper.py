"""rank.py, run for real: numbers, CPUs, variables, and what it refuses."""

from __future__ import annotations

import ast
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import ran

import cputune.emitters
from cputune import placing

RANK = Path(cputune.emitters.__file__).with_name("_rank.py")
SHOW = """import json, os, sys
print(json.dumps([sys.argv[1:], sorted(os.sched_getaffinity(0)), dict(os.environ)]))"""
BESIDE: dict[str, str] = {}
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rank.py finds place.py beside itself; here by PYTHONPATH."""
    (tmp_path / "place.py").symlink_to(placing.__file__)
    monkeypatch.setitem(BESIDE, "PYTHONPATH", str(tmp_path))


def start(
    *words: str, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], **BESIDE, **environment}
    return ran([*prefix, sys.executable, str(RANK), *words], env=variables)


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


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [("mpi", MPICH), ("mpi", OPENMPI), ("slurm", SLURM), ("torch", TORCH)],
)
def test_every_launcher_numbers_alike(launcher: str, environment: dict[str, str]) -> None:
    cpus = f"{ALLOWED[0]}/{LAST}"
    arguments, affinity, variables = seen("--launcher", launcher, "--cpus", cpus, **environment)
    assert [variables[name] for name in NUMBERS] == ["5", "6", "1", "2"]
    assert affinity == [ALLOWED[-1]]
    assert arguments == ["an argument"]


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        ("mpi", {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}),
        ("slurm", {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}),
        ("torch", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}),
        ("torch", {}),
    ],
)
def test_a_lone_rank_has_no_number(launcher: str, environment: dict[str, str]) -> None:
    _, affinity, variables = seen("--launcher", launcher, "--cpus", LAST, **environment)
    assert not set(NUMBERS) & set(variables)
    assert affinity == [ALLOWED[-1]]


def test_a_process_that_nobody_numbered_is_the_first() -> None:
    assert seen("--launcher", "torch", "--cpus", f"{ALLOWED[0]}/{LAST}")[1] == [ALLOWED[0]]


def test_it_is_python_3_8() -> None:
    ast.parse(RANK.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_rank_of_mpi_that_cannot_run_dies_of_a_signal() -> None:
    """hydra lets the others wait after a mere exit status, for as long as gloo does."""
    cpus = ("--cpus", f"{ALLOWED[0]}/4000", "--", "-c", "")
    answer = start("--launcher", "mpi", *cpus, **MPICH)
    assert answer.returncode == -signal.SIGTERM
    assert f"error: {socket.gethostname()}: rank 1 cannot have CPUs 4000" in answer.stderr
    assert start("--launcher", "slurm", *cpus, **SLURM).returncode == 3


def test_under_hydra_it_asks_for_an_abort() -> None:
    """Intel MPI lets the others wait after a signal, too."""
    cpus = ("--cpus", f"{ALLOWED[0]}/4000", "--", "-c", "")
    answer = start("--launcher", "mpi", *cpus, PMI_FD="1", **MPICH)
    assert answer.stdout == "cmd=abort exitcode=3\n"


def test_it_prints_which_of_the_hosts_it_is_on() -> None:
    here = socket.gethostname()
    assert start("--which", f"somewhere.invalid,{here}").stdout == "1\n"
    assert start("--which", "somewhere.invalid,127.0.0.1").stdout == "1\n"  # by its address
    slurm = {"SLURMD_NODENAME": "node2"}  # as Slurm calls it
    assert start("--which", "somewhere.invalid,node2", **slurm).stdout == "1\n"
    for hosts in ("somewhere.invalid", f"{here},localhost"):  # none of them, two of them
        told = start("--which", hosts)
        assert told.returncode == 3
        assert "is not one alone of" in told.stderr
        assert "NODE_RANK=0" in told.stderr


def test_variables_are_set_and_removed() -> None:
    _, _, variables = seen(
        *("--set", "KMP_BLOCKTIME=1", "--unset", "KMP_AFFINITY", "--set", "A=b=c"),
        KMP_AFFINITY="compact",
        KMP_BLOCKTIME="200",
    )
    assert variables["KMP_BLOCKTIME"] == "1"
    assert variables["A"] == "b=c"
    assert "KMP_AFFINITY" not in variables


def test_oneccl_without_mpirun_gets_its_local_numbers() -> None:
    options = ("--launcher", "torch", "--cpus", f"{LAST}/{LAST}")
    _, _, variables = seen(*options, **TORCH, CCL_PROCESS_LAUNCHER="none")
    assert (variables["CCL_LOCAL_RANK"], variables["CCL_LOCAL_SIZE"]) == ("1", "2")
    _, _, variables = seen(*options, **TORCH)
    assert "CCL_LOCAL_RANK" not in variables


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("--cpus", "4000-4003"), {}, r"rank 0 cannot have CPUs 4000,4001,4002,4003, it may use"),
        (("--cpus", f"{LAST},4000"), {}, "cannot have CPUs"),
        (("--launcher", "mpi"), {}, "did not set PMI_RANK or OMPI_COMM_WORLD_RANK"),
        (("--launcher", "torch", "--cpus", LAST), TORCH, "local rank 1 has no CPUs"),
        ((), {"LD_PRELOAD": "/gone/libtcmalloc.so.4"}, "preloads /gone/libtcmalloc.so.4, which is"),
        (("--colour", "red"), {}, "does not know '--colour'"),
    ],
)
def test_it_refuses_in_words(
    words: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    answer = start(*words, "--", "-c", "print('ran')", **environment)
    assert answer.returncode == 3
    assert "ran" not in answer.stdout
    assert said in answer.stderr
    assert "\nhint: " in answer.stderr
    assert "Traceback" not in answer.stderr


def test_what_the_system_refuses_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*words: object) -> None:
        raise OSError("Argument list too long")

    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(sys, "argv", ["rank.py", "--", "train.py"])
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(RANK), run_name="__main__")
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("error: Argument list too long\nhint: ")


def test_offered_cpus_that_are_not_there_leave_the_binding() -> None:
    options = ("--launcher", "slurm", "--cpus", f"4000/{LAST},4001", "--bind", "offered")
    answer = start(*options, "--", "-c", SHOW, **SLURM)
    assert json.loads(answer.stdout)[1] == ALLOWED
    assert f"note: rank 1 cannot have CPUs {LAST},4001" in answer.stderr


def test_a_pod_with_cpus_of_its_own_is_cut_into_shares() -> None:
    if len(ALLOWED) < 2:
        pytest.skip("needs two CPUs")
    own = f"{ALLOWED[0]},{ALLOWED[1]}"
    shares = []
    for rank in ("0", "1"):
        answer = start(
            *("--launcher", "torch", "--bind", "pod=4", "--", "-c", SHOW),
            prefix=("taskset", "-c", own),
            OMP_NUM_THREADS="1",
            **{**TORCH, "LOCAL_RANK": rank},
        )
        shares.append(json.loads(answer.stdout)[1])
    assert shares == [[ALLOWED[0]], [ALLOWED[1]]]


def test_a_pod_on_shared_cpus_is_not_bound() -> None:
    options = ("--launcher", "torch", "--bind", "pod=0")
    answer = start(*options, "--", "-c", SHOW, **{**TORCH, "LOCAL_RANK": "0"})
    assert json.loads(answer.stdout)[1] == ALLOWED
    assert "has no CPUs of its own" in answer.stderr


def test_oneccl_workers_of_a_pod_have_cpus_of_their_own() -> None:
    if len(ALLOWED) < 2:
        pytest.skip("needs two CPUs")
    own = f"{ALLOWED[0]},{ALLOWED[1]}"
    answer = start(
        *("--launcher", "torch", "--bind", "pod=2", "--", "-c", SHOW),
        prefix=("taskset", "-c", own),
        OMP_NUM_THREADS="1",
        CCL_WORKER_COUNT="1",
    )
    _, affinity, variables = json.loads(answer.stdout)
    assert affinity == [ALLOWED[1]]
    assert variables["CCL_WORKER_AFFINITY"] == str(ALLOWED[0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cpu", "0", "--", "x.py"), "does not know '--cpu'"),
        (("--launcher", "lsf", "--", "x.py"), "invalid choice: 'lsf'"),
        (("--bind", "tight", "--", "x.py"), "--bind is exact, offered or pod=N"),
        (("--bind", "pod=many", "--", "x.py"), "not 'many'"),
        (("--cpus", "zero", "--", "x.py"), "a CPU is a whole number, not 'zero'"),
        (("--cpus", "5-1", "--", "x.py"), "is no list of CPUs"),
        (("--cpus", "²", "--", "x.py"), "not '²'"),
        (("--set", "=x", "--", "x.py"), "error:"),
        (("--cpus", "0", "--"), "no command"),
        (("--cpus",), "expected one argument"),
    ],
)
def test_a_wrong_word_is_told_with_an_example(words: tuple[str, ...], said: str) -> None:
    answer = start(*words)
    assert answer.returncode == 3
    assert said in answer.stderr
    assert "hint: for example: rank.py --launcher" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_number_that_the_launcher_garbled_is_told() -> None:
    answer = start("--cpus", LAST, "--", "x.py", **{**TORCH, "LOCAL_RANK": "one"})
    assert answer.returncode == 3
    assert "LOCAL_RANK is a whole number, not 'one'" in answer.stderr


def test_half_of_a_launchers_numbers_is_none() -> None:
    cpus = ("--launcher", "mpi", "--cpus", f"{LAST}/{LAST}")
    assert seen(*cpus, **OPENMPI, PMI_RANK="0", PMI_SIZE="1")[2]["RANK"] == "5"
    assert seen(*cpus, **OPENMPI, MPI_LOCALRANKID="0")[2]["RANK"] == "5"
