"""Each MPI runs the emitted script: what the ranks saw, an all-reduce, and the training."""

import os
import subprocess
import time

import psutil
import pytest
from in_process import ran
from launches import HOSTILE, THOROUGH, two_ranks

from cputune import verify

pytestmark = [pytest.mark.consumer, pytest.mark.torch, pytest.mark.slow]

LAUNCHERS = ("mpich", "openmpi5", "openmpi4", "impi")
DIALECTS = {"mpich": "mpich", "openmpi5": "openmpi5", "openmpi4": "openmpi4", "impi": "intelmpi"}


NAMED = [pytest.param(name, DIALECTS[name], id=name) for name in LAUNCHERS]
FOUND = [pytest.param(name, None, id=f"{name}-found", marks=THOROUGH) for name in LAUNCHERS]
THROUGH = [
    ("mpich", "mpirun"),
    ("mpich", "accelerate"),
    *(
        pytest.param(name, format, marks=THOROUGH)
        for name in LAUNCHERS[1:]
        for format in ("mpirun", "accelerate")
    ),
]
"""Each MPI, and accelerate, which starts it, too; one of them where time is short."""
ONCE = [
    ("mpich", "mpirun"),
    *(pytest.param(name, "mpirun", marks=THOROUGH) for name in LAUNCHERS[1:]),
    *(pytest.param(name, "accelerate", marks=THOROUGH) for name in LAUNCHERS),
]
"""The same, where a training is started: one in the suite, all by ``make test-consumers``."""


@pytest.mark.parametrize(("launcher_path", "mpi"), [*NAMED, *FOUND], indirect=["launcher_path"])
def test_ranks_see_the_plan_and_add_up(launcher_path, mpi, write, witness, environment):
    workload, read = witness
    plan = two_ranks()
    directory = write("mpirun", plan, workload, mpi=mpi)
    outer = {**environment, "PATH": launcher_path, "RANK": "7", "OMP_NUM_THREADS": "64"}
    done = ran([str(directory / "mpirun.sh")], env=outer)
    assert done.returncode == 0, done.stderr
    seen = read()
    assert [rank["rank"] for rank in seen] == [0, 1]
    assert [rank["world_size"] for rank in seen] == [2, 2]
    assert [rank["sum"] for rank in seen] == [3.0, 3.0]
    assert [tuple(rank["affinity"]) for rank in seen] == list(plan.cpus)
    assert [rank["threads"] for rank in seen] == [1, 1]
    for rank in seen:
        assert rank["arguments"] == list(HOSTILE)
        assert rank["environment"]["OMP_NUM_THREADS"] == "1"
        assert rank["environment"]["ACCELERATE_USE_CPU"] == "true"
        assert rank["environment"]["ACCELERATE_MIXED_PRECISION"] == "bf16"
        assert rank["environment"]["MASTER_ADDR"] == "127.0.0.1"
        assert rank["environment"]["LOCAL_WORLD_SIZE"] == "2"


@pytest.mark.thorough  # in the suite verify observes a line of torchrun (test_typed_lines)
@pytest.mark.parametrize(("launcher_path", "format"), ONCE, indirect=["launcher_path"])
def test_the_recipe_trains_as_planned(launcher_path, format, write, tiny, monkeypatch):
    monkeypatch.setenv("PATH", launcher_path)
    directory = write(format, two_ranks(), tiny)
    (verdict,) = verify([directory / f"{format}.sh"], steps=4)
    assert verdict.state == "passed", verdict
    names = {check.name for check in verdict.checks}
    assert names >= {"syntax", "lint", "world size", "threads", "affinity", "precision", "backend"}
    monkeypatch.undo()
    assert not [name for name in os.listdir(directory) if name == "out"]


@pytest.mark.parametrize(("launcher_path", "format"), THROUGH, indirect=["launcher_path"])
def test_cpus_that_are_not_here_have_one_verdict(launcher_path, format, write, tiny, monkeypatch):
    monkeypatch.setenv("PATH", launcher_path)
    directory = write(format, two_ranks(cpus=((4000,), (4001,))), tiny)
    (verdict,) = verify([directory / f"{format}.sh"], steps=4)
    (launch,) = [check for check in verdict.checks if check.name == "launch"]
    assert launch.state == "not checked"
    assert "it cannot run here: CPUs 4000-4001 are not all on this machine" in launch.summary


def _trains(command, train):
    """Whether a Python runs the script, itself or within rank.py: not a launcher of it."""
    script = [word for word in command[1:] if word.endswith(".py")][:1]
    within = script and script[0].endswith("rank.py") and "--launcher" not in command
    return script == [train] or bool(within and train in command)


def ranks_of(directory):
    """The processes that train, whoever is their parent."""
    train = str(directory / "train.py")
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if _trains(process.info["cmdline"] or [], train)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def until(true):
    deadline = time.monotonic() + 90
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize(("launcher_path", "format"), ONCE, indirect=["launcher_path"])
def test_a_signal_to_the_script_alone_ends_its_ranks(
    launcher_path, format, write, tiny, tmp_path, environment
):
    directory = write(format, two_ranks(), tiny)
    argv = [str(directory / f"{format}.sh"), "--max_steps", "1000000", "--output_dir", "out"]
    outer = {**environment, "PATH": launcher_path}
    with subprocess.Popen(argv, env=outer, cwd=tmp_path) as script:
        try:
            until(lambda: len(ranks_of(directory)) == 2 or script.poll() is not None)
            script.terminate()
            assert script.wait(30) != 0
            until(lambda: not ranks_of(directory))
        finally:
            script.kill()
            for rank in ranks_of(directory):
                rank.kill()


@pytest.mark.thorough
@pytest.mark.parametrize(("format", "option"), [("torchrun", "--nproc-per-node"), ("mpirun", "-n")])
@pytest.mark.parametrize("launcher_path", ["mpich"], indirect=True)
def test_a_rank_that_was_taken_out_by_hand_is_missing(
    format, option, launcher_path, write, tiny, monkeypatch
):
    monkeypatch.setenv("PATH", launcher_path)
    script = write(format, two_ranks(), tiny) / f"{format}.sh"
    text = script.read_text()
    assert f" {option} 2 " in text
    script.write_text(text.replace(f" {option} 2 ", f" {option} 1 "))
    (verdict,) = verify([script], steps=4)
    (launch,) = (check for check in verdict.checks if check.name == "launch")
    assert launch.state == "failed", verdict
    assert "1 rank" in launch.summary, launch
    assert "the plan has 2" in launch.summary, launch
