"""``cputune prove``: what it prints of a command, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from golden_texts import Golden
from in_process import Run
from launch_lines import MODEL

from cputune.host import locks
from cputune.host.children import in_session
from cputune.plans.equivalence import Deviation, ModelAnswers
from cputune.tuner.knob_proofs import Proof, Proven

ASKED = Deviation(question="ranks", point="at the first step", loss=(0.6923, 0.6923), apart=4.7e-8)
UNASKED = Deviation(
    question="padding", point="at the first step", loss=(), apart=None, why="nothing to ask"
)
KNOBS = (
    Proven(knob="threads=1", verdict="the same", deviation=9.4e-9, why="same samples (1e-8)"),
    Proven(knob="ranks=2", verdict="not the same", deviation=0.4, why="step 1 takes others"),
    Proven(knob="workers", verdict="as typed", deviation=None, why="its samples are a stream"),
)


@pytest.fixture(autouse=True)
def _script(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "MEASURING", f"\0cputune.test.{os.getpid()}")
    Path("train.py").write_text("import torch\n")


def proven(monkeypatch: pytest.MonkeyPatch, *, unlike: str = "") -> None:
    """Stand in for the engine: the knobs of a command, without a training."""
    model_answers = ModelAnswers(answers=(ASKED, UNASKED), unlike=unlike)
    found = Proof(typed=None, model_answers=model_answers, knobs=KNOBS)
    monkeypatch.setattr("cputune.tuner.knob_proofs.prove", lambda *given, **more: found)


def test_it_says_what_the_model_answers_and_what_each_knob_trains(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    proven(monkeypatch)
    ended = cputune("prove", "--", "python", "train.py")
    assert ended.code == 0
    golden([" ".join(line.split()) for line in ended.out.splitlines()])
    assert max(map(len, ended.out.splitlines())) <= 100


def test_a_command_that_does_not_repeat_itself_ends_with_1_and_the_two_figures(
    cputune: Run, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    proven(monkeypatch, unlike="the loss of step 1 is 0.7, and 0.8 when it is started again")
    ended = cputune("prove", "--", "python", "train.py")
    assert ended.code == 1
    golden(ended.out)


def test_its_document_has_every_answer(cputune: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    proven(monkeypatch)
    document = json.loads(cputune("prove", "--json", "--", "python", "train.py").out)
    assert document["schema"] == "cputune.proof/1"
    verdicts = [knob["verdict"] for knob in document["knobs"]]
    assert verdicts == ["the same", "not the same", "as typed"]


def test_a_recipe_and_a_script_are_one_too_many(cputune: Run, golden: Golden) -> None:
    ended = cputune("prove", "--recipe", "bert-mini", "--", "python", "train.py")
    assert ended.code == 2
    golden(ended.err)


FORTY_FOUR = f"""{MODEL}
args = transformers.TrainingArguments("out", num_train_epochs=300, per_device_train_batch_size=8,
    use_cpu=True, report_to="none", remove_unused_columns=False, save_strategy="no")
transformers.Trainer(
    model=model, args=args, train_dataset=rows[:44], data_collator=collate
).train()
"""


@pytest.mark.torch
@pytest.mark.matrix
def test_two_ranks_divide_the_last_batch_of_an_epoch(cputune: Run) -> None:
    Path("train.py").write_text(FORTY_FOUR)
    ended = cputune("prove", "--json", "--", "python", "train.py")
    assert ended.code == 0, ended.err
    knobs = {knob["knob"]: knob for knob in json.loads(ended.out)["knobs"]}
    assert knobs["threads=1"]["verdict"] == "the same"
    assert knobs["ranks=2"]["verdict"] == "the same"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_leaves_nothing(
    cputune: Run, tmp_path: Path, number: int
) -> None:
    (tmp_path / "waits.py").write_text("import time; time.sleep(300)")
    place = tmp_path / "temporary"
    place.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "cputune", "prove", "--", sys.executable, "waits.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(place)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:  # it may wait for another one that measures on this machine
        if "check 1" in line:
            break
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    assert in_session(process.pid) == []
    assert list(place.iterdir()) == []


def test_the_time_limit_ends_it(cputune: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "waits.py").write_text("import time; time.sleep(300)")
    ended = cputune("prove", "--max-time", "2s", "--", "python", str(tmp_path / "waits.py"))
    assert ended.code == 3
    golden(ended.err)
