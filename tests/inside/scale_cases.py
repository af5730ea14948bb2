"""The loss of a Trainer has the scale of the launch as typed, whatever its model divides by.

These import torch: ``test_padding.py`` runs them in a process of their own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cputune.inside.applying.force import Force
from cputune.inside.applying.hooking import nothing
from cputune.inside.applying.scale import _ignores, keep_scale
from cputune.inside.applying.shared import Setting
from cputune.inside.applying.trainer import Divided

NUMBERS = torch.arange(1.0, 9.0)


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))


class Loss:
    """A Trainer: its model's loss is the sum over ``items``, or the mean of the batch."""

    model_accepts_loss_kwargs = True
    compute_loss_func = None

    def __init__(self, setting: Setting, *, divides: bool, typed: int, steps: int) -> None:
        batch = Divided(4)
        batch.typed = typed
        self.args = SimpleNamespace(
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            average_tokens_across_devices=False,
        )
        self.setting, self.divides = setting, divides
        self.told = SimpleNamespace(pretended=[], trained=[])  # a library's: it is not put back

    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self.told.pretended.append(self.setting.pretends)
        self.told.trained.append(model.training)
        loss = (model.weight * inputs["numbers"].sum()).detach()
        return loss / num_items_in_batch if self.divides else loss / len(inputs["numbers"])


def made(*, divides: bool = False, typed: int = 2, steps: int = 1, **force: Any) -> Any:
    setting = Setting(Force(**{"world_size": 2, **force}), nothing, nothing)
    trainer = Loss(setting, divides=divides, typed=typed, steps=steps)
    keep_scale(setting, trainer)  # type: ignore[arg-type]
    return trainer


def loss_of(trainer: Any, model: Any, items: int | None = 8) -> float:
    return float(trainer.compute_loss(model, {"numbers": NUMBERS}, num_items_in_batch=items))


@pytest.mark.parametrize(
    ("typed", "steps", "loss"), [(1, 1, 4.5), (2, 1, 9.0), (1, 2, 2.25), (2, 2, 4.5)]
)
def test_a_mean_of_its_batch_is_divided_as_typed(typed: int, steps: int, loss: float) -> None:
    """A Trainer divides it by no batches of a step, since it takes it for a share of all items."""
    trainer, model = made(typed=typed, steps=steps), Model()
    assert loss_of(trainer, model) == loss
    assert loss_of(trainer, model) == loss
    assert trainer.told.pretended == [False, False, True, True], "asked once, with and without"
    assert trainer.told.trained == [False, False, True, True]
    assert not trainer.setting.pretends
    assert loss_of(trainer, model.eval()) == 4.5, "an evaluation has no batches of a step"


def test_a_share_of_all_items_stays() -> None:
    trainer, model = made(divides=True), Model()
    assert [loss_of(trainer, model, items) for items in (8, 16)] == [4.5, 2.25]
    assert trainer.told.pretended == [False] * 4
    assert model.training


def test_without_items_nothing_is_asked() -> None:
    trainer, model = made(), Model()
    assert loss_of(trainer, model, None) == 4.5
    assert trainer.told.pretended == [False]


@pytest.mark.parametrize(
    ("typed_ranks", "averages"), [(1, True), (2, False)], ids=["items of all ranks", "as typed"]
)
def test_the_items_are_those_of_all_ranks_if_one_was_typed(
    typed_ranks: int, averages: bool
) -> None:
    assert made(typed_ranks=typed_ranks).args.average_tokens_across_devices is averages


@pytest.mark.parametrize(
    ("own", "force"),
    [
        ({"model_accepts_loss_kwargs": None}, {}),  # before 4.46
        ({}, {"typed_ranks": 2}),
    ],
    ids=["an older release", "the ranks and the batches that were typed"],
)
def test_what_has_its_scale_is_left_alone(
    own: dict[str, Any], force: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in own.items():
        monkeypatch.setattr(Loss, name, value)
    assert "compute_loss" not in vars(made(typed=1, **force))


def test_a_loss_is_set_once_and_a_model_that_divides_by_itself_is_not_scaled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = made()
    before = trainer.compute_loss
    keep_scale(trainer.setting, trainer)
    assert trainer.compute_loss is before
    monkeypatch.setattr(Loss, "loss_is_scaled_for_ga", False, raising=False)
    assert loss_of(made(), Model()) == 4.5


@pytest.mark.parametrize(("share", "ignores"), [(8.0, True), (80.0, False)])
def test_a_loss_that_hangs_little_on_its_items_ignores_them(share: float, ignores: bool) -> None:
    """20 and a part that is divided by 8 items, then by 16: 21 and 20.5, or 30 and 25."""

    def loss(model: Any, inputs: Any, *, num_items_in_batch: float) -> float:
        return 20 + share / num_items_in_batch

    assert _ignores(loss, Model(), {}, 8) == ignores
