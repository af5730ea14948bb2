"""What in_lightning.py gives the Trainer: the plan's, and the script's own where that fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cputune.inside.carry import Force
from cputune.inside.in_lightning import arguments

ENVIRONMENT = SimpleNamespace()
WRONG_ONE = SimpleNamespace(creates_processes_externally=True)
PRECISION = SimpleNamespace(precision="16-mixed")
OTHER = SimpleNamespace()


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "0")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def given(ranks: int, plan: str = "fp32", **own: Any) -> dict[str, Any]:
    force = Force(world_size=ranks, arguments={"bf16": plan == "bf16"})
    return arguments(own, force, ENVIRONMENT)


@pytest.mark.parametrize(
    ("ranks", "own", "strategy"),
    [
        (1, "auto", "auto"),
        (1, "ddp", "auto"),
        (2, "auto", "ddp"),
        (2, "ddp_spawn", "ddp"),
        (2, "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_true"),
        (2, ENVIRONMENT, ENVIRONMENT),
    ],
)
def test_a_strategy_that_fits_stays(ranks: int, own: Any, strategy: Any) -> None:
    arguments = given(ranks, strategy=own)
    assert arguments["strategy"] == strategy
    assert (arguments["accelerator"], arguments["devices"]) == ("cpu", ranks)


@pytest.mark.parametrize(
    ("plan", "own", "precision"),
    [
        ("fp32", None, "32-true"),
        ("fp32", 32, 32),
        ("fp32", "16-mixed", "32-true"),
        ("bf16", None, "bf16-mixed"),
        ("bf16", 32, "bf16-mixed"),
        ("bf16", "bf16-true", "bf16-true"),
    ],
)
def test_so_does_a_precision(plan: str, own: Any, precision: str) -> None:
    assert given(1, plan, precision=own)["precision"] == precision


@pytest.mark.parametrize("own", [[PRECISION, WRONG_ONE, OTHER], OTHER])
def test_plugins_that_contradict_are_left_out(own: Any) -> None:
    assert given(1, plugins=own)["plugins"] == [OTHER, ENVIRONMENT]


def test_ranks_of_several_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    arguments = given(4)
    assert (arguments["devices"], arguments["num_nodes"]) == (2, 2)
