"""``cputune run``: the training in the foreground, with its own output, signals and exit code."""

from __future__ import annotations

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

from cputune.facts import HostFacts
from cputune.layout import baseline_plan
from cputune.plan import Plan
from cputune.probing import probe
from cputune.result import Trial
from cputune.workload import Workload

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
    time.sleep(60)
if "--fail" in sys.argv:
    if rank == "1":
        sys.exit(7)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def facts() -> HostFacts:
    return probe()


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, facts: HostFacts) -> Start:
    """Starts ``cputune run`` in a folder with a script and its result; nothing else is there."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(plan: Plan, *words: str, parses: bool | None = True) -> subprocess.Popen[str]:
        job = Workload.script(["train.py", "--tuned"], global_batch_size=8)
        job = replace(job, framework="trainer", parses_arguments=parses)
        trials = tuple(
            Trial(number=number, plan=one, state="failed", steps=0, delayed_steps=0)
            for number, one in enumerate((baseline_plan(facts), ONE, TWO))
        )
        tuned(facts, plan, job, TODAY, trials=trials).save(tmp_path / "cputune.json", force=True)
        return subprocess.Popen(
            [sys.executable, "-m", "cputune", "run", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def seen(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    out, err = process.communicate(timeout=60)
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
    out, err = process.communicate(timeout=60)
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
    assert process.stdout is not None
    for _ in range(plan.world_size):
        assert json.loads(process.stdout.readline())
    time.sleep(0.2)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode in codes, err


def test_a_plan_for_several_nodes_is_refused_with_what_launches_it(start: Start) -> None:
    out, err = start(replace(TWO, nodes=2)).communicate(timeout=60)
    assert out == ""
    assert "the plan is for 2 nodes" in err
    assert "cputune emit --format mpirun" in err
