"""The Trainer of Lightning is measured as a loop over torch, and does nothing but train."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

import cputune
from cputune import Plan
from cputune.inside.lightning import Fitting, _without_metrics
from cputune.inside.messages import Speaker
from cputune.inside.meter import Meter
from cputune.ranks.runner import ProcessRunner

SCRIPT = """
import torch, {package} as L
from {package}.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        open("validated", "w").close()
        self.log("val_loss", 1.0)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {{
            "optimizer": optimizer,
            "lr_scheduler": {{"scheduler": schedule, "monitor": "val_loss"}},
        }}


def loader():
    return DataLoader(TensorDataset(torch.randn(20, 8), torch.ones(20).long()), batch_size=4)


trainer = L.Trainer(
    max_epochs=2,
    accumulate_grad_batches=2,
    accelerator="cpu",
    callbacks=[ModelCheckpoint(monitor="val_loss"), EarlyStopping("val_loss")],
)
trainer.fit(Module(), loader(), loader())
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "package",
    ["lightning.pytorch", pytest.param("pytorch_lightning", marks=pytest.mark.matrix)],
)
def test_a_fit_is_measured_beyond_its_own_end(package: str, workdir: Path) -> None:
    if find_spec(package.partition(".")[0]) is None:
        pytest.skip("pip install --group scripts")
    Path("train.py").write_text(SCRIPT.format(package=package))
    plan = Plan(processes_per_node=1, threads_per_process=1, cpus=((0,),), as_found=True)
    with ProcessRunner(cputune.Workload.script(["train.py"]), cputune.probe()) as runner:
        with contextlib.closing(runner.steps(plan)) as taken:
            steps = list(islice(taken, 12))
        training = runner.workload.training
        framework = runner.workload.framework
    # Five batches, two of them a step; the short last step of an epoch is not told. Two epochs have
    # four whole steps.
    assert [step.samples for step in steps] == [8] * 12
    assert framework == "pytorch"
    assert training.gradient is not None
    assert training.rates[0] == (0.5,)
    assert os.listdir() == ["train.py"], "no checkpoint, no log, no validation"


def test_the_end_of_a_training_is_the_scripts_if_nothing_is_fitted() -> None:
    fitting = Fitting(Meter(Speaker("")))
    assert fitting._limit(lambda *_: True, 3, 3), "trainer.test() and others have an end"
    fitting._fits = True
    assert not fitting._limit(lambda *_: True, 3, 3)


@pytest.mark.parametrize(("plateau", "calls"), [(True, []), (False, ["epoch"])])
def test_schedules_step_but_those_that_wait_for_a_validation(
    plateau: bool, calls: list[str]
) -> None:
    stepped: list[str] = []

    def original(loop: object, *, interval: str, update_plateau_schedulers: bool) -> None:
        stepped.append(interval)

    _without_metrics(original, SimpleNamespace(), "epoch", update_plateau_schedulers=plateau)
    assert stepped == calls


class FakeFit:
    """Of Lightning's Trainer what a trial sets before it trains."""

    __module__ = "lightning.pytorch.trainer.trainer"

    def __init__(self, max_steps: int, max_epochs: int | None) -> None:
        self.max_steps, self.max_epochs = max_steps, max_epochs
        self.limit_val_batches, self.num_sanity_val_steps = 1.0, 2
        self.callbacks = [type(name, (), {})() for name in ("EarlyStopping", "Mine")]


@pytest.mark.parametrize(
    ("steps", "epochs", "facts"),
    [(7, 3, {"steps_to_end": 7}), (-1, 3, {"epochs": 3}), (-1, -1, {}), (-1, None, {}), (0, 0, {})],
)
def test_a_fit_says_how_long_it_is_and_does_nothing_else(
    steps: int, epochs: int | None, facts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(Speaker(""))
    left: list[int] = []
    monkeypatch.setattr(meter, "leave", left.append)
    loggers = SimpleNamespace(DummyLogger=lambda: "none")
    monkeypatch.setitem(sys.modules, "lightning.pytorch.loggers.logger", loggers)
    trainer, fitted = FakeFit(steps, epochs), []
    Fitting(meter)._fit(lambda *given, **words: fitted.append(words), trainer, ckpt_path="last")
    assert meter.facts == facts
    assert (trainer.limit_val_batches, trainer.num_sanity_val_steps) == (0, 0)
    assert [type(one).__name__ for one in trainer.callbacks] == ["Mine"]
    assert vars(trainer)["loggers"] == ["none"]
    assert (fitted, left, meter.seen) == ([{}], [0], {"Trainer"})
