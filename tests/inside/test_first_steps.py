"""What a rank tells of its first steps."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from cputune.inside.asking import Asker
from cputune.inside.carry.hooking import put
from cputune.inside.first_steps import DROPOUTS, FirstSteps


def test_dropout_rests_in_the_first_step_unless_a_plan_draws_its_masks_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trains: list[bool] = []

    def dropout(input: object, p: float, training: bool, inplace: bool) -> None:
        trains.append(training)

    functional = ModuleType("torch.nn.functional")
    for name in (*DROPOUTS, "scaled_dot_product_attention"):
        setattr(functional, name, dropout)
    first = FirstSteps(Asker(lambda answer: None))
    for module, what, called in first.hooks():
        if module == functional.__name__:
            put(functional, what, called)
    functional.dropout(0, 0.1, True)
    bytes_drawn = SimpleNamespace(parts={"dropout": None})
    monkeypatch.setitem(sys.modules, "cputune_carried", bytes_drawn)
    functional.dropout(0, 0.1, True)
    assert trains == [False, True], "verify looks for those masks in the ranks"
    told = first.step(SimpleNamespace(param_groups=[], state={}, defaults={}))
    assert told is not None
    assert told["dropout"] is True
