"""``cputune run``: the training in the foreground, with its own output, signals and exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from emitters.emit_machines import TODAY, tuned

from cputune import HostFacts, Plan, Trial, Workload, probe
from cputune.emitters.imported import digest
from cputune.plans.layout import baseline_plan

CPUS = sorted(os.sched_getaffinity(0))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[-1],),))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))

SCRIPT = """
import json, os, sys, time
rank = os.environ.get("RANK", "0")
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "CPUTUNE_TRIAL_SOCKET")
seen = {name: os.environ.get(name) for name in names}
seen |= {"cpus": sorted(os.sched_getaffinity(0)), "argv": sys.argv}
os.write(1, json.dumps(seen).encode() + b"\\n")
if "--wait" in sys.argv:
    time.sleep(250)
if "--fail" in sys.argv:
    if rank == "1":
        sys.exit(7)
    time.sleep(250)
"""


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return probe()


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, facts: HostFacts) -> Start:
    """Starts ``cputune run`` in a folder with a script and its result; nothing else is there."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(
        plan: Plan,
        *words: str,
        parses: bool | None = True,
        typed: tuple[str, ...] = ("train.py", "--tuned"),
        stdin: int | None = None,
    ) -> subprocess.Popen[str]:
        job = Workload.script(typed, global_batch_size=8)
        job = replace(job, framework="trainer", parses_arguments=parses)
        trials = tuple(
            Trial(number=number, plan=one, state="failed", steps=0, delayed_steps=0)
            for number, one in enumerate((baseline_plan(facts), ONE, TWO))
        )
        tuned(facts, plan, job, TODAY, trials=trials).save(tmp_path / "cputune.json", force=True)
        for name in job.secrets:
            os.environ.pop(name, None)  # another shell does not have them
        return subprocess.Popen(
            [sys.executable, "-m", "cputune", "run", *words],
            cwd=tmp_path,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def seen(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert err.startswith("note: training with "), err
    return sorted((json.loads(line) for line in out.splitlines()), key=lambda s: str(s["RANK"]))


def test_one_rank_is_the_script_itself(start: Start, tmp_path: Path) -> None:
    (rank,) = seen(start(ONE))
    assert rank["cpus"] == [CPUS[-1]]
    assert rank["OMP_NUM_THREADS"] == "1"
    assert rank["RANK"] is None
    assert rank["CPUTUNE_TRIAL_SOCKET"] is None, "nothing is measured"
    assert rank["argv"][:3] == ["train.py", "--tuned", "--use_cpu"]  # type: ignore[index]
    assert sorted(os.listdir(tmp_path)) == ["cputune.json", "train.py"]


def test_each_of_several_ranks_has_its_number_and_cpus(start: Start) -> None:
    first, second = seen(start(TWO))
    assert (first["cpus"], second["cpus"]) == ([CPUS[0]], [CPUS[-1]])
    assert (second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("1", "1", "2")
    batch = first["argv"].index("--per_device_train_batch_size")  # type: ignore[attr-defined]
    assert first["argv"][batch + 1] == "4"  # type: ignore[index]


def test_a_script_without_flags_is_carried(start: Start) -> None:
    first, _ = seen(start(TWO, parses=None))
    assert first["argv"] == ["train.py", "--tuned"]


def test_todays_launch_with_other_arguments(start: Start) -> None:
    (rank,) = seen(start(TWO, "--plan", "baseline", "--", "python", "train.py", "--mine"))
    assert (rank["argv"], rank["cpus"]) == (["train.py", "--mine"], CPUS)


def test_a_rank_that_fails_ends_the_others_with_its_exit_code(start: Start) -> None:
    process = start(TWO, "--", "train.py", "--fail")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 7, err
    assert '"RANK": "1"' in out


@pytest.mark.parametrize("plan", [ONE, TWO], ids=["one", "two"])
@pytest.mark.parametrize(
    ("number", "codes"), [(signal.SIGTERM, {-15, 143}), (signal.SIGINT, {-2, 1, 130})]
)
def test_a_signal_to_us_ends_the_training(
    start: Start, plan: Plan, number: signal.Signals, codes: set[int]
) -> None:
    process = start(plan, "--", "train.py", "--wait")
    for _ in range(plan.world_size):
        assert json.loads(process.stdout.readline())
    time.sleep(0.2)
    process.send_signal(number)
    _, err = process.communicate(timeout=200)
    assert process.returncode in codes, err


def test_a_plan_for_several_nodes_is_refused_with_what_launches_it(start: Start) -> None:
    out, err = start(replace(TWO, nodes=2)).communicate(timeout=200)
    assert out == ""
    assert "the plan is for 2 nodes" in err
    assert "cputune emit --format mpirun" in err


def started(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``cputune run`` in a folder, with a history of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cputune", "run", *words],
        cwd=place,
        env={**os.environ, "XDG_STATE_HOME": str(place / "state"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, and nothing that was tuned."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for name in ("OMP_NUM_THREADS", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_if_no_plan_is_known_the_command_is_started_as_typed(bare: Path) -> None:
    done = started(bare, "--", "python", "train.py", "--mine")
    rank = json.loads(done.stdout)
    assert rank["argv"] == ["train.py", "--mine"]
    assert int(rank["OMP_NUM_THREADS"]) == len(rank["cpus"])
    assert set(rank["cpus"]) <= set(CPUS)
    (said,) = done.stderr.splitlines()
    assert said.startswith("note: no plan is known for this command; set OMP_NUM_THREADS=")
    assert "not measured" in said


def test_a_launch_whose_ranks_would_train_alone_is_warned_of(bare: Path) -> None:
    script = "from transformers import Trainer, TrainingArguments\n"
    (bare / "train.py").write_text(f"if False:\n    {script}")
    done = started(bare, "--dry-run", "--", "torchrun", "--nproc_per_node", "2", "train.py")
    said = done.stderr.splitlines()
    assert said == [
        "warning: Every rank trains alone (the launch: accelerate 1.15.0, without --use_cpu, 2 "
        "ranks here): export ACCELERATE_USE_CPU=true"
    ]


def test_what_was_asked_for_by_hand_stays(bare: Path) -> None:
    done = started(bare, "--", "train.py", OMP_NUM_THREADS="1", LD_PRELOAD="")
    rank = json.loads(done.stdout)
    assert (rank["OMP_NUM_THREADS"], rank["cpus"]) == ("1", CPUS)


def test_a_dry_run_prints_a_line_that_does_the_same(bare: Path) -> None:
    line = started(bare, "--dry-run", "--", "train.py", "--epochs", "3").stdout
    assert line.count("\n") == 1
    typed = subprocess.run(
        ["bash", "-c", line], cwd=bare, capture_output=True, text=True, check=True
    )
    assert json.loads(typed.stdout) == json.loads(
        started(bare, "--", "train.py", "--epochs", "3").stdout
    )


def test_the_history_knows_the_plan_of_a_command(bare: Path, facts: HostFacts) -> None:
    """Another folder may have a train.py, too: its plan is not taken."""
    kinds = (("train.py", ONE, bare), ("other.py", TWO, bare), ("train.py", TWO, bare / "more"))
    for second, (name, plan, place) in enumerate(kinds):
        job = replace(Workload.script([name]), framework="trainer", parses_arguments=True)
        history = bare / "state" / "cputune" / "history"
        history.mkdir(parents=True, exist_ok=True)
        kept = history / f"20261121-19300{second}.json"
        result = tuned(facts, plan, replace(job, global_batch_size=8), TODAY)
        replace(result, folder=digest(str(place))).save(kept)
    done = started(bare, "--", "train.py", "--mine")
    rank = json.loads(done.stdout)
    assert (rank["cpus"], rank["OMP_NUM_THREADS"]) == ([CPUS[-1]], "1")
    assert "note: training with 1 × 1 thread" in done.stderr
    assert "measured" in done.stderr


def test_the_plan_of_another_trial(start: Start) -> None:
    (rank,) = seen(start(TWO, "--plan", "1"))
    assert rank["cpus"] == [CPUS[-1]]
    _, err = start(TWO, "--plan", "9").communicate(timeout=200)
    assert "error: there is no trial 9\nhint: best, baseline, or of 0, 1, 2\n" in err


HIDDEN = ("train.py", "--db_password", "swordfish")


def test_a_hidden_value_is_asked_for_on_a_terminal(start: Start, tmp_path: Path) -> None:
    terminal, end = os.openpty()
    process = start(ONE, typed=HIDDEN, stdin=end)
    os.close(end)
    prompt = "DB_PASSWORD, which the result does not contain: "
    assert process.stderr.read(len(prompt)) == prompt
    os.write(terminal, b"typed anew\n")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["argv"][:3] == ["train.py", "--db_password", "typed anew"]
    assert "typed anew" not in err
    assert b"typed anew" not in _echoed(terminal), "it is not shown"
    assert "swordfish" not in (tmp_path / "cputune.json").read_text()


def _echoed(terminal: int) -> bytes:
    """What a terminal whose other end is closed has shown."""
    shown = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 1 << 12):
            shown += more
    os.close(terminal)
    return shown
