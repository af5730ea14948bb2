"""The real runner with real processes: what scripts do, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import HostFacts, Plan, Step, TrialError, UsageError, Workload
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import Crashed, Infeasible, NoMeasurement, OutOfMemory, TimedOut

FAULTS = Path(__file__).parent.parent / "faults"
CPUS = sorted(os.sched_getaffinity(0))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))
AS_FOUND = Plan(
    processes_per_node=1, threads_per_process=len(CPUS), cpus=(tuple(CPUS),), as_found=True
)
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))

Open = Callable[..., ProcessRunner]


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return cputune.probe()


@pytest.fixture
def script(facts: HostFacts, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens runners of scripts in tests/faults, as fresh processes unless told otherwise."""
    runners: list[ProcessRunner] = []

    def open_runner(name: str, *args: str, fresh: bool = True, **options: object) -> ProcessRunner:
        of = Workload(name=name, argv=(str(FAULTS / name), *args))
        runner = ProcessRunner(of, facts, fresh=fresh, **options)  # type: ignore[arg-type]
        runner._offline = True
        runners.append(runner)
        return runner

    yield open_runner
    for runner in runners:
        runner.close()
        assert not runner.work.path.exists()
    monkeypatch.undo()


def first_steps(runner: ProcessRunner, plan: Plan, count: int = 3) -> list[Step]:
    with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
        return list(islice(steps, count))


def fault(runner: ProcessRunner, plan: Plan = ONE) -> TrialError:
    with pytest.raises(TrialError) as caught:
        first_steps(runner, plan)
    return caught.value


def ended(pid: int) -> bool:
    """Gone, or dead and only not yet waited for."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def test_a_script_that_is_not_there_is_refused_at_once(facts: HostFacts) -> None:
    with pytest.raises(UsageError, match="there is no script"):
        ProcessRunner(Workload.script(["no_such_script.py"]), facts)


def test_a_script_without_trainer_or_accelerator(script: Open) -> None:
    error = fault(script("no_framework.py"))
    assert isinstance(error, Infeasible)
    seen = "no Trainer, no Accelerator and no step of an optimizer was seen in no_framework.py"
    assert seen in str(error)


def test_a_script_that_asks_for_input(script: Open) -> None:
    error = fault(script("asks.py"))
    assert isinstance(error, Crashed)
    assert "asks for input" in str(error)


def test_a_script_that_fails_shows_its_own_traceback(script: Open) -> None:
    error = fault(script("crashes.py"))
    assert isinstance(error, Crashed)
    assert "ValueError: a shape does not fit" in str(error)
    assert error.details.startswith("the last words")
    assert "crashes.py" in error.details
    assert "runpy" not in error.details


def test_a_flood_on_stderr_does_not_drown_the_last_words(script: Open) -> None:
    error = fault(script("floods.py"))
    assert isinstance(error, Crashed)
    assert error.details.endswith("RuntimeError: after the flood")
    assert len(error.details) < 100_000


def test_no_memory_is_its_own_kind(script: Open) -> None:
    assert isinstance(fault(script("no_memory.py")), OutOfMemory)


def test_a_rank_that_is_killed_from_outside(script: Open) -> None:
    error = fault(script("killed.py"))
    assert isinstance(error, Crashed)
    assert "SIGKILL" in str(error)


def test_one_rank_that_dies_takes_the_others_with_it(script: Open) -> None:
    runner = script("one_rank_dies.py")
    error = fault(runner, TWO)
    assert isinstance(error, Crashed)
    assert error.details == "rank 1 gives up"


@pytest.mark.parametrize("fresh", [True, False])
def test_a_hang_ends_with_everything_it_started(script: Open, tmp_path: Path, fresh: bool) -> None:
    note = tmp_path / "child"
    runner = script("hangs.py", str(note), fresh=fresh)
    runner.start_within(2.0)
    runner.source = ""  # what a fork would import is not the question here
    error = fault(runner)
    assert isinstance(error, TimedOut)
    assert "no first step in 2 s" in str(error)
    assert ended(int(note.read_text()))


TUNER = """
import cputune
from cputune.plans.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.plans.workload import Workload

plan = Plan(processes_per_node=1, threads_per_process=1, cpus=(({cpu},),))
of = Workload.script({script!r}.split())
runner = ProcessRunner(of, cputune.probe(), fresh={fresh})
runner._offline = True
next(runner.steps(plan))
"""


def test_nothing_is_left_when_the_tuner_itself_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = TUNER.format(script=f"{FAULTS / 'hangs.py'} {note}", cpu=CPUS[0], fresh=True)
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as tuner:
        while not (note.exists() and note.read_text()):
            assert tuner.poll() is None
            time.sleep(0.05)
        tuner.send_signal(signal.SIGKILL)
    child = int(note.read_text())
    try:
        assert ended(child)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_when_it_is_killed_while_torch_is_imported(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "modules").mkdir()
    note, temporary = tmp_path / "importing", tmp_path / "tmp"
    (tmp_path / "modules" / "torch.py").write_text(
        "import os, time\n"
        f"with open({str(note)!r}, 'w') as file: file.write(str(os.getpid()))\n"
        "time.sleep(120)\n"
    )
    temporary.mkdir()
    code = TUNER.format(script=str(FAULTS / "tiny.py"), cpu=CPUS[0], fresh=False)
    variables = {"PYTHONPATH": str(tmp_path / "modules"), "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **variables}) as tuner:
        while not (note.exists() and note.read_text()):
            assert tuner.poll() is None
            time.sleep(0.02)
        tuner.send_signal(number)
    assert ended(int(note.read_text()))
    assert list(temporary.iterdir()) == []


@pytest.mark.torch
def test_a_trainer_script_is_measured_unmodified(script: Open, tmp_path: Path) -> None:
    arguments = ("--output_dir", "out", "--per_device_train_batch_size", "8")
    arguments += ("--gradient_accumulation_steps", "2", "--num_train_epochs", "1")
    arguments += ("--eval_strategy", "steps", "--eval_steps", "1", "--load_best_model_at_end")
    arguments += ("--save_strategy", "steps", "--save_steps", "1", "--bf16", "--use_cpu")
    runner = script("trainer_script.py", *arguments, fresh=False)

    alone = first_steps(runner, ONE, 6)
    assert len(alone) == 6, "an epoch has four steps: training does not end with it"
    assert {step.samples for step in alone} == {16}
    assert runner.workload.global_batch_size == 16
    assert runner.workload.framework == "trainer"
    assert runner.workload.parses_arguments
    (rank,) = runner.observed()
    assert (rank["batch"], rank["accumulation"]) == (8, 2)
    assert rank["dtype"] == "float32", "the plan's precision beats the script's --bf16"
    assert rank["optimizer"]["class"] == "AdamW"

    both = first_steps(runner, TWO)
    assert {step.samples for step in both} == {16}, "the global batch is constant"
    assert both[0].loss == pytest.approx(alone[0].loss, rel=0.1)
    ranks = runner.observed()
    assert [rank["world_size"] for rank in ranks] == [2, 2]
    assert [rank["affinity"] for rank in ranks] == [str(CPUS[0]), str(CPUS[-1])]
    assert {rank["backend"] for rank in ranks} == {"gloo"}
    assert os.listdir(tmp_path) == [], "the script's output folder is not written"

    first_steps(runner, AS_FOUND)
    (rank,) = runner.observed()
    assert rank["dtype"] == "bfloat16", "as found, the script's own flags stand"


@pytest.mark.torch
@pytest.mark.matrix
def test_an_accelerate_script_is_measured_unmodified(script: Open, tmp_path: Path) -> None:
    arguments = ("--output_dir", "out", "--batch_size", "8", "--accumulation", "2", "--cpu")
    runner = script("accelerate_script.py", *arguments, fresh=False)

    alone = first_steps(runner, ONE, 6)
    assert len(alone) == 6, "an epoch has four steps: the loader of training has no end"
    assert {step.samples for step in alone} == {16}
    assert runner.workload.framework == "accelerate"
    assert runner.workload.global_batch_size == 16
    loop = {"class": "AdamW", "fused": False, "foreach": False}
    assert runner.observed()[0]["optimizer"] == loop

    both = first_steps(runner, TWO)
    assert {step.samples for step in both} == {16}
    assert {rank["batch"] for rank in runner.observed()} == {4}
    assert os.listdir(tmp_path) == []

    bf16 = Plan(processes_per_node=1, threads_per_process=1, cpus=ONE.cpus, precision="bf16")
    first_steps(runner, bf16, 1)
    assert runner.observed()[0]["dtype"] == "bfloat16"


@pytest.mark.torch
@pytest.mark.matrix
def test_a_trainer_that_never_trains(script: Open) -> None:
    error = fault(script("no_training.py"))
    assert isinstance(error, NoMeasurement)
    assert "--do_train" in str(error)


RECIPE = """
description = "so small that a step takes milliseconds"
task = "sequence-classification"
sequence_length = 16
global_batch_size = 8
learning_rate = 1e-3
[model]
model_type = "bert"
vocab_size = 100
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_a_fork_measures_what_a_fresh_process_does(facts: HostFacts, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    of = Workload.from_recipe(str(recipe))
    seen = []
    for fresh in (True, False):
        with ProcessRunner(of, facts, fresh=fresh) as runner:
            losses = [step.loss for step in first_steps(runner, ONE)]
            (rank,) = runner.observed()
            own = ("pid", "peak_bytes")
            seen.append((losses, {k: v for k, v in rank.items() if k not in own}))
            if fresh:
                continue
            assert "synthetic tokens" in str(runner.data)
            fp16 = Plan(
                processes_per_node=1, threads_per_process=1, cpus=ONE.cpus, precision="fp16"
            )
            error = fault(runner, fp16)
            assert isinstance(error, Infeasible)
            assert str(error) == "precision: float32, the plan says float16"
            uneven = Plan(processes_per_node=3, threads_per_process=1, cpus=((CPUS[0],),) * 3)
            assert "cannot be divided over 3 ranks" in str(fault(runner, uneven))
    assert seen[0] == seen[1]


def test_ranks_that_tell_no_profile_are_not_waited_for(script: Open) -> None:
    with closing(script("light.py").living(AS_FOUND)) as living:
        living.turn(2)
        assert living.profile() == ()
