"""A rank shows how its optimizer steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cputune.inside import state


class AdamW:
    """As torch's: what it was told stands in its parameter groups."""

    def __init__(self, **options: Any) -> None:
        self.param_groups = [{"lr": 1e-3, **options}, {"lr": 1e-3, **options}]


@pytest.mark.parametrize(
    ("options", "fused", "foreach"),
    [
        ({}, False, False),
        ({"fused": None, "foreach": None}, False, False),
        ({"fused": True}, True, False),
        ({"fused": False, "foreach": True}, False, True),
    ],
)
def test_by_its_class_and_its_parameter_groups(
    options: dict[str, Any], fused: bool, foreach: bool
) -> None:
    expected = {"class": "AdamW", "fused": fused, "foreach": foreach}
    assert state.optimizer(AdamW(**options)) == expected
    wrapped = SimpleNamespace(optimizer=AdamW(**options))
    assert state.optimizer(wrapped) == expected, "accelerate wraps it"


def test_one_without_parameter_groups_has_a_class_all_the_same() -> None:
    assert state.optimizer(object()) == {"class": "object", "fused": False, "foreach": False}
