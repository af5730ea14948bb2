"""Trials write nothing into the folder of the script, whatever trains in it and how it ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

import cputune
from cputune import Plan, Step, TrialError, Workload
from cputune.plans.layout import baseline_plan
from cputune.ranks.runner import ProcessRunner

FAULTS = Path(__file__).parent.parent / "faults"
CPUS = sorted(os.sched_getaffinity(0))
TWO = Plan(processes_per_node=2, threads_per_process=1, cpus=((CPUS[0],), (CPUS[-1],)))

SAVES = """
import torch
from accelerate import Accelerator
from tiny import Data, model
accelerator = Accelerator(cpu=True)
net = model()
optimizer = torch.optim.AdamW(net.parameters())
loader = torch.utils.data.DataLoader(Data(), batch_size=8)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for batch in loader:
    accelerator.backward(net(**batch).loss)
    optimizer.step()
    optimizer.zero_grad()
    torch.save(net.state_dict(), "model.pt")
"""
TRACKS = """
import hydra
import torch
from omegaconf import DictConfig
from tiny import Data, model
from torch.utils.tensorboard import SummaryWriter
@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    writer, default = SummaryWriter("mine"), SummaryWriter()
    for number, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=8)):
        loss = net(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        writer.add_scalar("loss", float(loss), number)
main()
"""
FROM_DISK = """
import datasets
import torch
from tiny import Data, model
rows = datasets.load_from_disk("rows").map(lambda row: {"b": row["a"] + 1})
net = model()
optimizer = torch.optim.AdamW(net.parameters())
for batch in torch.utils.data.DataLoader(Data(), batch_size=len(rows)):
    net(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ONE_STEP = SAVES.replace("    torch.save", "    raise SystemExit(0)\n    torch.save")


@pytest.fixture
def folder(workdir: Path) -> Iterator[Path]:
    """The user's folder: nobody may write into it, where permissions are heeded."""
    for name in ("tiny.py", "trainer_script.py", "accelerate_script.py"):
        shutil.copy(FAULTS / name, workdir)
    for name, text in (
        ("saves.py", SAVES),
        ("tracks.py", TRACKS),
        ("from_disk.py", FROM_DISK),
        ("one_step.py", ONE_STEP),
    ):
        (workdir / name).write_text(text)
    yield workdir
    workdir.chmod(0o755)


def trained(folder: Path, plans: tuple[Plan, ...], *words: str) -> list[list[Step]]:
    """The first steps under each plan; the folder is the same afterwards."""
    before = inventory(folder)
    folder.chmod(0o555)
    taken = []
    try:
        with ProcessRunner(Workload.script(words), cputune.probe()) as runner:
            runner._offline = True
            for plan in plans:
                with closing(runner.steps(plan)) as steps:  # type: ignore[type-var]
                    taken.append(list(islice(steps, 12)))
    finally:
        assert inventory(folder) == before
    return taken


def inventory(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        seen = path.stat()
        found[str(path)] = (seen.st_mtime_ns, seen.st_size)
    return found


@pytest.mark.torch
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            "trainer_script.py --output_dir out --use_cpu --save_strategy steps --save_steps 1",
            marks=pytest.mark.matrix,
        ),
        pytest.param("accelerate_script.py --output_dir out --cpu", marks=pytest.mark.matrix),
        "saves.py",
    ],
)
def test_nothing_is_written_while_it_trains(folder: Path, words: str) -> None:
    today, two = trained(folder, (baseline_plan(cputune.probe()), TWO), *words.split())
    assert {step.samples for step in today} == {step.samples for step in two} == {8}
    assert two[0].loss == pytest.approx(today[0].loss, rel=0.15)


@pytest.mark.torch
@pytest.mark.matrix
@pytest.mark.parametrize("script", ["tracks.py", "from_disk.py"])
def test_nor_by_what_writes_of_itself(folder: Path, script: str) -> None:
    """Hydra's folder of a run, TensorBoard's, what datasets prepares beside the user's data."""
    for needed in ("hydra", "tensorboard") if script == "tracks.py" else ("datasets",):
        if find_spec(needed) is None:
            pytest.skip("pip install --group scripts")
    if script == "from_disk.py":
        make = "import datasets; datasets.Dataset.from_dict({'a': [0] * 8}).save_to_disk('rows')"
        subprocess.run([sys.executable, "-c", make], cwd=folder, check=True)
    (today,) = trained(folder, (baseline_plan(cputune.probe()),), script)
    assert {step.samples for step in today} == {8}


@pytest.mark.torch
@pytest.mark.matrix
def test_nor_if_it_fails(folder: Path) -> None:
    said = "ended by itself after 1 step: too few to measure; let it train longer"
    with pytest.raises(TrialError, match=said):
        trained(folder, (baseline_plan(cputune.probe()),), "one_step.py")
