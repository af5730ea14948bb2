"""Scripts that no plan can train are told at the first look, and leave nothing behind."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import ran

import cputune
from cputune import NoValidTrialError, Workload


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory that nobody may write into, where permissions are heeded."""
    place = tmp_path / "users"
    place.mkdir()
    monkeypatch.chdir(place)
    yield place
    place.chmod(0o755)


def tuned_in_vain(folder: Path, *words: str) -> NoValidTrialError:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    folder.chmod(0o555)
    with pytest.raises(NoValidTrialError) as caught:
        cputune.tune(Workload.script(words), budget=7)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert after == before, "nothing of the user's is written"
    return caught.value


def test_a_failure_that_a_plan_might_fix_is_tried_with_one(folder: Path) -> None:
    (folder / "train.py").write_text("raise ValueError('8 samples do not divide by 3 ranks')\n")
    assert "the next plan fail in the same way" in str(tuned_in_vain(folder, "train.py").hint)


def test_the_command_line_shows_the_last_lines(folder: Path) -> None:
    (folder / "train.py").write_text("import os\nprint('about to fail')\nos.enviro\n")
    answer = ran(
        [sys.executable, "-m", "cputune", "tune", "--budget", "7", "--", "python", "train.py"]
    )
    assert answer.returncode == 4
    told = answer.stderr[answer.stderr.index("error: ") :]
    failed = "AttributeError: module 'os' has no attribute 'enviro'"
    assert told.startswith(f"error: train.py failed before its first step: {failed}")
    assert "about to fail" in told
    assert "line 3" in told
    assert re.search(rf"\n  {failed}.*\nhint: no plan", told)
    assert answer.stderr.count("\ntrial ") + answer.stderr.startswith("trial ") == 1
    assert os.listdir(folder) == ["train.py"]


HANGS = """
import multiprocessing, torch
torch.set_num_threads(2)
a = torch.randn(900, 900); a @ a
def work(n): return float((a @ a).sum())
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(work, range(2))
"""


@pytest.mark.matrix
@pytest.mark.torch
@pytest.mark.slow
def test_a_pool_that_was_forked_after_openmp_threads_costs_no_patience(folder: Path) -> None:
    (folder / "train.py").write_text(HANGS)
    error = tuned_in_vain(folder, "train.py")
    assert "its pool was forked after OpenMP threads had started" in str(error)
    assert "work (" in str(error)
    assert "no plan can avoid this" in str(error.hint)


@pytest.mark.torch
def test_a_loop_without_a_data_loader_ends_at_its_first_step(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(1000):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "torch.save(model, 'model.pt')\n"
    )
    error = tuned_in_vain(folder, "train.py")
    assert "it has its own training loop" in str(error)


@pytest.mark.torch
def test_a_loss_that_is_no_number_costs_one_start(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for batch in torch.utils.data.DataLoader(torch.ones(80, 2), batch_size=4):\n"
        "    (model(batch).sum() * float('nan')).backward()\n"
        "    optimizer.step()\n"
    )
    error = tuned_in_vain(folder, "train.py")
    assert str(error).startswith("the loss is NaN in step 1 of the current launch")
    assert "no plan can avoid this" in str(error.hint)


TRAINS = """
import sys, time
sys.path.insert(0, {faults!r})
def train(rank=0):
    import torch
    from tiny import Data, model
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for batch in torch.utils.data.DataLoader(Data(), batch_size=8):
        net(**batch).loss.backward()
        optimizer.step()
    open("trained", "w").close()
"""
STARTS = {
    "subprocess": "import subprocess, sys; subprocess.run([sys.executable, 'child.py'])",
    "spawn": "import torch; torch.multiprocessing.spawn(train, nprocs=1)",
    "fork": "import os; pid = os.fork(); train() if pid == 0 else os.waitpid(pid, 0)",
    "torchrun": (
        "import subprocess, sys; subprocess.run([sys.executable, '-m', 'torch.distributed.run', "
        "'--standalone', '--nproc-per-node', '1', 'child.py'])"
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize(
    "way",
    [
        "spawn",
        pytest.param("subprocess", marks=pytest.mark.matrix),
        pytest.param("fork", marks=pytest.mark.matrix),
        pytest.param("torchrun", marks=pytest.mark.matrix),
    ],
)
def test_a_child_that_trains_is_named_at_its_first_batch(folder: Path, way: str) -> None:
    trains = TRAINS.format(faults=str(Path(__file__).parent.parent / "faults"))
    (folder / "child.py").write_text(trains + "train()\n")
    (folder / "starts.py").write_text(f"{trains}if __name__ == '__main__':\n    {STARTS[way]}\n")
    error = tuned_in_vain(folder, "starts.py")
    assert "it trains in a process that it starts itself (" in str(error)
    assert {"subprocess": "child.py", "torchrun": "child.py", "spawn": "spawn_main"}.get(
        way, "a fork of the script"
    ) in str(error)
    assert not (folder / "trained").exists()
