"""What a rank tells of its first steps."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace

import pytest

from cputune.inside.applying.hooking import put
from cputune.inside.equivalence_check import Asker
from cputune.inside.first_steps import DROPOUTS, FirstSteps, settings, trained_numbers


def test_dropout_rests_in_the_first_step_unless_a_plan_draws_its_masks_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "cputune_applied", raising=False)
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
    hidden = SimpleNamespace(numel=lambda: 640)
    functional.dropout(hidden, 0.1, True)
    bytes_drawn = SimpleNamespace(parts={"dropout": None})
    monkeypatch.setitem(sys.modules, "cputune_applied", bytes_drawn)
    functional.dropout(hidden, 0.1, True)
    assert trains == [False, True], "verify looks for those masks in the ranks"
    assert first.mask_elements == 2 * 640
    assert not first.attention_drops
    told = first.step(SimpleNamespace(param_groups=[], state={}, defaults={}))
    assert told["dropout"] is True


class Weight(SimpleNamespace):
    requires_grad = True
    __hash__ = object.__hash__

    def numel(self) -> int:
        return math.prod(self.shape)


def test_weights_that_ipex_keeps_in_blocks_count_as_they_were() -> None:
    blocked, bias = Weight(shape=(1, 2, 16, 16, 2)), Weight(shape=(2,))
    kept = {
        blocked: SimpleNamespace(plain_format_shape=(2, 64)),
        bias: SimpleNamespace(plain_format_shape=None),
    }
    assert trained_numbers(SimpleNamespace(params_attr=kept), [blocked, bias]) == 130
    assert trained_numbers(SimpleNamespace(), [blocked, bias]) == 1026


def test_what_an_optimizer_is_set_to_is_plain_values_and_what_is_not_set_is_said() -> None:
    groups = [
        {"lr": 0.1, "maximize": None, "betas": (0.9, 0.99), "state": object()},
        {"lr": 0.1},
        {},
    ]
    assert settings(SimpleNamespace(optimizer=SimpleNamespace(param_groups=groups))) == {
        "class": "SimpleNamespace",
        "learning rate": ["0.1", "0"],
        "maximize": ["None"],
        "betas": ["(0.9, 0.99)"],
    }
