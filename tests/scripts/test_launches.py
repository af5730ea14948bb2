"""Scripts of every kind: what was measured is what is launched, to the end, and verified."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.result import Measured, Result, Speedup, Throughput, host_fingerprint
from cputune.workload import Workload

HERE = Path(__file__).parent
CPUS = sorted(os.sched_getaffinity(0))
AS_FOUND = Plan(
    processes_per_node=1, threads_per_process=len(CPUS), cpus=(tuple(CPUS),), as_found=True
)
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))
ONE = Plan(processes_per_node=1, threads_per_process=1, cpus=((CPUS[0],),))

TRAINER = ("--output_dir", "trained", "--max_steps", "6", "--report_to", "none", "--use_cpu")
SCRIPTS = {
    "parsed.py": ("--place", "{place}", "--do_train", "--bf16", *TRAINER),
    "no_trainer.py": (
        *("--model_name_or_path", "{place}/bert", "--train_file", "{place}/data/train.jsonl"),
        *("--per_device_train_batch_size", "8", "--max_train_steps", "6"),
    ),
    "nlp_example.py": ("{place}", "--mixed_precision", "no", "--cpu", "--steps", "6"),
    "args_in_code.py": ("{place}", "6"),
    "trl_sft.py": (
        *("--dataset_name", "{place}/data/train.jsonl", "--model_name_or_path", "{place}/llama"),
        *("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"),
        *("--max_length", "32", *TRAINER),
    ),
    "sentence_pairs.py": ("{place}", "6"),
}
GLOBAL_BATCH = {"args_in_code.py": 16, "nlp_example.py": 16, "sentence_pairs.py": 16}
TODAY = {"parsed.py": "bf16", "trl_sft.py": "bf16"}
NEEDS = {"trl_sft.py": "trl", "sentence_pairs.py": "sentence_transformers"}
TAKE_FLAGS = ("parsed.py", "trl_sft.py")

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models and data on disk; made by a child, which loads what they need."""
    directory = tmp_path_factory.mktemp("place")
    subprocess.run([sys.executable, str(HERE / "local.py"), str(directory)], check=True)
    return directory


@pytest.fixture(params=SCRIPTS)
def workload(request: pytest.FixtureRequest, place: Path) -> Workload:
    name = request.param
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip("pip install --group scripts")
    words = (word.format(place=place) for word in SCRIPTS[name])
    return Workload.script([str(HERE / name), *words])


def result_for(workload: Workload, best: Plan, baseline: Plan) -> Result:
    facts = cputune.probe()
    speed = Throughput(median=1.0, low=0.9, high=1.1)
    return Result(
        host=host_fingerprint(facts),
        versions={p.name: p.version for p in facts.packages if p.version},
        workload=workload,
        baseline=Measured(plan=baseline, samples_per_second=speed),
        best=Measured(plan=best, samples_per_second=speed),
        speedup=Speedup(ratio=1.0, low=1.0, high=1.0),
        trials=(),
    )


def test_it_is_measured_launched_and_verified(
    workload: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = workload.name
    losses = {}
    with ProcessRunner(workload, cputune.probe(), fresh=True) as runner:
        for plan in (AS_FOUND, TWO):
            with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
                first = list(islice(steps, 2))
            losses[plan] = first[0].loss
            assert {step.samples for step in first} == {GLOBAL_BATCH.get(name, 8)}
            if plan.as_found:
                seen = cputune.knobs.as_seen(plan, runner.observed())
        seen_workload = runner.workload
    assert list(tmp_path.iterdir()) == [], "a trial writes nothing"
    assert seen.precision == TODAY.get(name, "fp32")
    assert losses[TWO] == pytest.approx(losses[AS_FOUND], rel=0.15)
    assert seen_workload.takes_flags is (name in TAKE_FLAGS)

    for best, format in ((TWO, "torchrun"), (ONE, "accelerate")):
        # Whatever the script has today, the other precision.
        best = Plan.from_json({**best.to_json(), "precision": other(seen.precision)})
        launch = tmp_path / format
        launch.mkdir()
        files = cputune.emit(result_for(seen_workload, best, seen), format, python=sys.executable)
        for file in files:
            (launch / file.name).write_text(file.text, encoding="utf-8")
        # Where flags suffice, it only lets several ranks end together.
        assert (launch / "carry.py").exists() is (best.world_size > 1 or name not in TAKE_FLAGS)

        checks = cputune.verify([launch / files[0].name], steps=3)[0].checks
        failed = [(c.summary, *(e.seen for e in c.evidence)) for c in checks if c.state == "failed"]
        assert failed == []
        done = subprocess.run(
            ["bash", str(launch / files[0].name)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = done.stderr.count("carry.py: set for the plan")  # maybe behind a progress bar
        changed = name not in TAKE_FLAGS and (format, name) != ("accelerate", "no_trainer.py")
        assert told == changed, done.stderr[-3000:]  # accelerate launch gives that one its bf16


def other(precision: str) -> str:
    return "fp32" if precision == "bf16" else "bf16"
