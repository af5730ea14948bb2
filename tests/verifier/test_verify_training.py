"""A training that somebody has changed behind an emitted launch, measured or not, is seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import ran

from cputune import Plan
from cputune.emitters.promise import PromisedTraining
from cputune.verifier.checks import what_is_trained, words_differ

WORDS = ("$here/apply_plan.py", "train.py", "--lr", "1e-3", "--token", "${TOKEN}")
PROMISED = PromisedTraining(words=WORDS, model="577 numbers in 4 tensors, shapes 0a", data=2000)
SHOWN = ["python", "-u", "/x/apply_plan.py", "train.py", "--lr", "1e-3", "--token", "swordfish"]

TRAINING = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=32)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--opt", default="AdamW")
parser.add_argument("--data", default="data.txt")
given = parser.parse_args()
x = torch.randn(2000, 16)
y = x.sum(1, keepdim=True) + len(open(given.data).read())
model = torch.nn.Sequential(torch.nn.Linear(16, given.hidden), torch.nn.Linear(given.hidden, 1))
optimizer = getattr(torch.optim, given.opt)(model.parameters(), lr=given.lr)
for _ in range(50):
    for inputs, wanted in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        inputs = inputs + torch.randn_like(inputs)  # each batch is drawn anew
        loss = ((model(inputs) - wanted) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text(encoding="utf-8")
        start = text.index(old) if name == "train.py" else text.rindex(old)
        path.write_text(text[:start] + new + text[start + len(old) :], encoding="utf-8")

    return change


LAUNCH = "launch/torchrun.sh"
CHANGES = {
    "learning rate": edit(LAUNCH, "--lr 1e-3", "--lr 1e-2"),
    "optimizer": edit(LAUNCH, "--opt AdamW", "--opt SGD"),
    "hidden size": edit(LAUNCH, "--hidden 32", "--hidden 64"),
    "data set": edit(LAUNCH, "--data data.txt", "--data more.txt"),
    "another script": edit(LAUNCH, "train.py", "other.py"),
    "an argument more": edit(LAUNCH, "--data", "--hidden 16 --data"),
    "hidden size in the script": edit("train.py", "(16, given.hidden)", "(16, 64)"),
    "optimizer in the script": edit(
        "train.py", "getattr(torch.optim, given.opt)", "torch.optim.SGD"
    ),
    "learning rate in the script": edit("train.py", "lr=given.lr", "lr=0.5"),
    "the data": edit("data.txt", "words", "other words"),
}

ALWAYS = ("hidden size in the script",)
ALIKE = [
    pytest.param(change, marks=() if change in ALWAYS else pytest.mark.matrix) for change in CHANGES
]


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emitted")
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    (folder / "other.py").write_text(TRAINING, encoding="utf-8")
    for name in ("data.txt", "more.txt"):
        (folder / name).write_text("words\n# cputune\n", encoding="utf-8")
    typed = "train.py --lr 1e-3 --opt AdamW --hidden 32 --data data.txt"
    done = cputune(folder, "emit", "-f", "torchrun", "-o", "launch", "--", *typed.split())
    assert done.returncode == 0, done.stderr
    return folder


def cputune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "cputune", *words], cwd=folder, timeout=280)


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("change", [None, *ALIKE])
def test_ten_trainings_that_were_changed_by_hand(change: str | None, emitted: Path) -> None:
    files = [path for path in emitted.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    before = {path: path.read_bytes() for path in files}
    try:
        if change is not None:
            CHANGES[change](emitted)
        run = ("--steps", "3", "--share-machine", "--json", "launch")
        done = cputune(emitted, "verify", *run)
    finally:
        for path, text in before.items():
            path.write_bytes(text)
    (verdict,) = json.loads(done.stdout)["verdicts"]
    failed = {check["name"] for check in verdict["checks"] if check["state"] == "failed"}
    assert bool(failed & {"what is trained", "files"}) == (change is not None), verdict
    assert done.returncode == (0 if change is None else 1)


def test_what_a_measured_launch_has_shown_is_held() -> None:
    plan = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),))
    good = {"command": SHOWN, "model": PROMISED.model, "dataset_samples": 2000}
    assert what_is_trained(PROMISED, plan, good, "torchrun").state == "passed"  # type: ignore[arg-type]
    for name, value in (("model", "1089 numbers in 4 tensors, shapes 0b"), ("dataset_samples", 9)):
        seen = what_is_trained(PROMISED, plan, {**good, name: value}, "torchrun")  # type: ignore[typeddict-item]
        assert seen.state == "failed"
    doubled = {**good, "model": "1089 numbers"}
    other = what_is_trained(PROMISED, replace(plan, ipex=True), doubled, "t")  # type: ignore[arg-type]
    assert other.state == "passed", "IPEX lays weights out anew"


def test_a_secret_is_neither_compared_nor_told() -> None:
    assert list(words_differ(WORDS, SHOWN)) == []
    told = list(words_differ(WORDS, [*SHOWN, "--hub_token", "swordfish"]))
    assert "swordfish" not in repr(told)
