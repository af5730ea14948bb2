"""What in_lightning.py gives the Trainer: the plan's, and the script's own where that fits."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cputune.inside import in_lightning
from cputune.inside.carry import Carrier, Force, around
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


class RefusedError(Exception):
    pass


def refuse(reason: str) -> Any:
    raise RefusedError(reason)


class AdamW:
    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{}]


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the module in which Lightning's Trainer is made."""

    class FakeTrainer:
        def __init__(self, **given: Any) -> None:
            self.given = given

    class FakeConnector:
        def __init__(self, trainer: Any) -> None:
            self.trainer = trainer

        def _prepare_dataloader(self, loader: Any, shuffle: bool, mode: Any) -> Any:
            return loader

    class FakeStrategy:
        def setup_optimizers(self, trainer: Any) -> None:
            self.optimizers = [AdamW()]

    environments = ModuleType("lightning.pytorch.plugins.environments")
    vars(environments).update(LightningEnvironment=lambda: ENVIRONMENT)
    monkeypatch.setitem(sys.modules, environments.__name__, environments)
    ddp = ModuleType("lightning.pytorch.strategies.ddp")
    monkeypatch.setitem(sys.modules, ddp.__name__, ddp)
    module = ModuleType("lightning.pytorch.trainer.trainer")
    vars(module).update(Trainer=FakeTrainer, _DataConnector=FakeConnector, Strategy=FakeStrategy)
    return module


def patched(lightning: ModuleType, said: list[str], **force: Any) -> Any:
    carrier = Carrier(Force(**force), refuse, said.append)
    in_lightning.patch(lightning, carrier, around)
    return lightning


def trained(
    lightning: ModuleType, *, divided: bool = True, automatic: bool = True, mode: str = "train"
) -> tuple[int, int]:
    """The batch of a rank and the accumulation, of a script with 8 in 2 steps."""
    sampler = SimpleNamespace(num_replicas=2) if divided else SimpleNamespace()
    batches = SimpleNamespace(batch_size=8, sampler=sampler)
    trainer = SimpleNamespace(
        accumulate_grad_batches=2,
        lightning_module=SimpleNamespace(automatic_optimization=automatic),
    )
    connector = lightning._DataConnector(trainer)
    connector._prepare_dataloader(
        SimpleNamespace(batch_sampler=batches), True, SimpleNamespace(value=mode)
    )
    return batches.batch_size, trainer.accumulate_grad_batches


def test_a_trainer_is_made_with_the_plan_and_what_was_changed_is_said(
    lightning: ModuleType,
) -> None:
    said: list[str] = []
    made = patched(lightning, said, world_size=2, arguments={"bf16": True}).Trainer(max_steps=5)
    assert (made.given["max_steps"], made.given["devices"]) == (5, 2)
    assert trained(lightning) == (4, 2)
    assert said == [
        "set for the plan: precision=bf16-mixed (was 32-true), strategy=ddp (was auto), "
        "batch of the data loader=4 (was 8)"
    ]


def test_a_trainer_that_is_as_the_plan_says_is_said_nothing_of(lightning: ModuleType) -> None:
    said: list[str] = []
    patched(lightning, said, world_size=1).Trainer()
    assert trained(lightning, divided=False) == (8, 2)
    assert said == []


def test_the_data_of_a_validation_stay(lightning: ModuleType) -> None:
    patched(lightning, [], world_size=2)
    assert trained(lightning, mode="validate") == (8, 2)


def test_accumulation_follows_where_lightning_counts_it(lightning: ModuleType) -> None:
    patched(lightning, [], world_size=2, samples_per_rank=7)
    assert trained(lightning) == (7, 1)
    with pytest.raises(RefusedError, match="cannot be cut into the script's 2"):
        trained(lightning, automatic=False)


def test_an_evaluation_every_so_many_batches_stays_one_every_so_many_samples(
    lightning: ModuleType,
) -> None:
    """Lightning counts batches of a rank: 10 of a sample are 5 of a sample on two ranks."""
    batches = SimpleNamespace(batch_size=1, sampler=SimpleNamespace(num_replicas=2))
    trainer = SimpleNamespace(
        accumulate_grad_batches=2,
        val_check_interval=10,
        lightning_module=SimpleNamespace(automatic_optimization=True),
    )
    carrier = Carrier(Force(world_size=2), refuse)
    loader = SimpleNamespace(batch_sampler=batches)
    in_lightning.divide(carrier, trainer, loader)
    assert (batches.batch_size, trainer.accumulate_grad_batches) == (1, 1)
    assert trainer.val_check_interval == 5
    trainer.val_check_interval, trainer.accumulate_grad_batches = 5, 2
    with pytest.raises(RefusedError, match="no whole number"):
        in_lightning.divide(carrier, trainer, loader)


@pytest.mark.torch
def test_several_ranks_take_the_samples_that_one_shuffles_and_the_other_way_round() -> None:
    import torch
    from torch.utils.data import DistributedSampler, RandomSampler

    def passes(force: Force, sampler: Any) -> list[list[int]]:
        torch.manual_seed(5)
        carrier = Carrier(force, refuse)
        in_lightning.keep_shuffles(carrier, SimpleNamespace(current_epoch=0), sampler)
        return [list(sampler), list(sampler)]

    def ranks(force: Force) -> list[list[int]]:
        each = [
            passes(force, DistributedSampler(range(8), num_replicas=2, rank=rank))  # type: ignore
            for rank in (0, 1)
        ]
        return [
            [one for pair in zip(*both, strict=True) for one in pair]
            for both in zip(*each, strict=True)
        ]

    one = RandomSampler(range(8))
    typed = passes(Force(world_size=1), one)
    assert ranks(Force(world_size=2)) == typed
    assert typed[0] != typed[1]
    several = ranks(Force(world_size=2, typed_ranks=2))
    assert passes(Force(world_size=1, typed_ranks=2), RandomSampler(range(8))) == several


def test_data_that_one_rank_takes_in_their_order_are_not_shuffled_over_several() -> None:
    from torch.utils.data import DistributedSampler

    trainer, each = SimpleNamespace(current_epoch=0), []
    for rank in (0, 1):
        sampler: Any = DistributedSampler(range(8), num_replicas=2, rank=rank)  # type: ignore
        carrier = Carrier(Force(world_size=2), refuse)
        in_lightning.keep_shuffles(carrier, trainer, sampler, "SequentialSampler")
        each.append(list(sampler))
    assert each == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_data_that_are_not_divided_over_ranks_are_refused(lightning: ModuleType) -> None:
    patched(lightning, [], world_size=2)
    with pytest.raises(RefusedError, match="does not divide the data"):
        trained(lightning, divided=False)


def test_adamw_steps_as_the_plan_says(lightning: ModuleType) -> None:
    patched(lightning, [], world_size=1, arguments={"optim": "adamw_torch_fused"})
    strategy = lightning.Strategy()
    strategy.setup_optimizers(None)
    assert strategy.optimizers[0].param_groups == [{"fused": True, "foreach": False}]


@pytest.mark.parametrize(
    ("rank", "local", "node"), [("3", "2", "1"), ("1", "2", "0"), ("", "1", "0")]
)
def test_the_number_of_a_machine_is_that_of_its_ranks(
    rank: str, local: str, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_RANK")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    given(4)
    assert os.environ["NODE_RANK"] == node
