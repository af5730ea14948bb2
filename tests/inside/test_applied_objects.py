"""What apply_plan.py sets in the objects of a script, on stand-ins for those of the frameworks."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from golden_texts import Golden
from rows import every_row

from cputune.inside.applying.force import Force
from cputune.inside.applying.hooking import put, set_hooks
from cputune.inside.applying.parts import made
from cputune.inside.applying.run_script import hooks_of
from cputune.inside.applying.trainer import Divided


class RefusedError(Exception):
    pass


def refuse(reason: str) -> Any:
    raise RefusedError(reason)


class Delivery:
    """A script's frameworks under a plan, and what was said of it."""

    def __init__(self, **force: Any) -> None:
        self.said: list[str] = []
        self.parts = made(Force(**force), refuse, self.said.append)

    @property
    def changes(self) -> dict[str, str]:
        """What was set and not yet told."""
        return next(part._setting.changes for part in self.parts if hasattr(part, "_setting"))

    def patched(self, module: str, **members: Any) -> Any:
        """A module of this name with these members, after it was loaded."""
        loaded = ModuleType(module)
        vars(loaded).update(members, __file__="/libraries/accelerate/accelerator.py")
        for name, what, called in hooks_of(self.parts):
            if name == module:
                put(loaded, what, called)
        return loaded

    def arguments(self) -> Callable[..., Any]:
        class FakeArguments:
            def __init__(self, **fields: Any) -> None:
                usual = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
                self.__dict__.update({"bf16": False, **usual, **fields})
                self.__post_init__()

            def __post_init__(self) -> None:
                self.checked = dict(self.__dict__)

        found = self.patched("transformers.training_args", TrainingArguments=FakeArguments)
        return found.TrainingArguments  # type: ignore[no-any-return]

    def trainer(self) -> Callable[..., Any]:
        class FakeTrainer:
            def __init__(self, args: Any) -> None:
                self.args = args

            def train(self, resume: bool = False) -> tuple[str, bool]:
                return "trained", resume

            def _get_train_sampler(self) -> None: ...

            def get_train_dataloader(self) -> None: ...

        found = self.patched("transformers.trainer", Trainer=FakeTrainer)
        return found.Trainer  # type: ignore[no-any-return]

    def accelerator(self) -> Callable[..., Any]:
        class FakeAccelerator:
            num_processes = property(lambda self: 2)
            gradient_accumulation_steps = 1
            gradient_state = SimpleNamespace(active_dataloader=None)

            def __init__(
                self,
                split_batches: bool = False,
                mixed_precision: str | None = None,
                cpu: bool = False,
            ) -> None:
                self.split_batches = split_batches
                self.mixed_precision, self.cpu = mixed_precision, cpu

            def prepare(self, *objects: Any) -> list[Any]:
                return [self.prepare_data_loader(held) for held in objects]

            def prepare_data_loader(self, loader: Any, shift: int = 0) -> tuple[int, int]:
                return loader.batch_sampler.batch_size, shift

            def backward(self, loss: float) -> float:
                return loss

            def prepare_optimizer(self, optimizer: Any) -> Any:
                return optimizer.param_groups

        members = {"Accelerator": FakeAccelerator, "prepare_data_loader": None}
        found = self.patched("accelerate.accelerator", **members)
        return found.Accelerator  # type: ignore[no-any-return]


def loader(batch: int | None) -> Any:
    return SimpleNamespace(batch_size=batch, batch_sampler=SimpleNamespace(batch_size=batch))


class AdamW:
    def __init__(self, *fused: bool | None) -> None:
        self.param_groups = [{"fused": each} for each in fused]


def batch_of(args: Any) -> tuple[int, int]:
    return args.per_device_train_batch_size, args.gradient_accumulation_steps


def test_training_arguments_are_set_before_they_are_checked() -> None:
    way = Delivery(world_size=2, arguments={"bf16": True, "optim": "adamw_hf"})
    args = way.arguments()()
    assert args.checked["bf16"]
    assert not hasattr(args, "optim"), "a field that this version does not have"
    assert batch_of(args) == (4, 1)


class TestTrainer:
    def test_trains_and_says_once_what_was_changed(self, golden: Golden) -> None:
        way = Delivery(world_size=2, arguments={"bf16": True})
        trainer = way.trainer()(way.arguments()())
        assert trainer.train(resume=True) == ("trained", True)
        trainer.train()
        golden(way.said)

    def test_is_refused_a_batch_that_cannot_be_divided(self, golden: Golden) -> None:
        way = Delivery(world_size=3)
        trainer = way.trainer()(way.arguments()())
        with golden.raises(RefusedError):
            trainer.train()

    def test_a_batch_that_the_script_sets_later_is_divided_too(self) -> None:
        way = Delivery(world_size=2, samples_per_rank=4)
        args = way.arguments()()
        args.per_device_train_batch_size, args.gradient_accumulation_steps = 12, 3
        way.trainer()(args).train()
        assert batch_of(args) == (6, 3)

    def test_a_second_training_keeps_the_batch_that_it_has_by_itself(self) -> None:
        """4 is what the first one takes on each of two ranks, and the second on all of them."""
        way = Delivery(world_size=2, samples_per_rank=4)
        make, trainer = way.arguments(), way.trainer()
        first, second = make(), make(per_device_train_batch_size=4)
        trainer(first).train()
        trainer(second).train()
        assert (batch_of(first), batch_of(second)) == ((4, 1), (2, 1))

    @pytest.mark.parametrize(("typed", "before_flags"), [(None, 2), (1, 1)])
    def test_batches_that_flags_have_accumulated_stay_and_those_before_are_known(
        self, typed: int | None, before_flags: int
    ) -> None:
        way = Delivery(world_size=3, samples_per_rank=6, by_flags=True, typed_accumulation=typed)
        args = way.arguments()(per_device_train_batch_size=3, gradient_accumulation_steps=2)
        assert batch_of(args) == (3, 2)
        assert args.per_device_train_batch_size.typed == before_flags


class TestAccelerator:
    @pytest.mark.parametrize("own", [None, "no", "bf16"])
    def test_has_the_precision_of_the_plan_and_the_cpu(self, own: str | None) -> None:
        way = Delivery(world_size=2, arguments={"bf16": True})
        made = way.accelerator()(False, own)
        assert (made.mixed_precision, made.cpu) == ("bf16", True)
        made.prepare_data_loader(loader(8))
        assert ("mixed_precision=bf16 (was no)" in "".join(way.said)) is (own == "no")

    def test_says_nothing_of_a_precision_that_stays(self) -> None:
        way = Delivery(world_size=1)
        way.accelerator()(mixed_precision="no").prepare_data_loader(loader(8))
        assert way.said == []

    def test_each_fold_has_a_loader_that_is_trained_on(self) -> None:
        """It is prepared in the same place of a like call."""
        made = Delivery(world_size=2, loader=1).accelerator()()
        folds = [made.prepare(loader(6), loader(8), loader(4)) for _ in range(2)]
        assert [[batch for batch, _ in fold] for fold in folds] == [[6, 4, 4]] * 2
        assert made.prepare(loader(8)) == [(8, 0)]

    def test_another_loader_that_is_trained_on_is_refused(self, golden: Golden) -> None:
        made = Delivery(world_size=2).accelerator()()
        first, second = (made.prepare_data_loader(loader(8), shift) for shift in (1, 2))
        made.gradient_state = SimpleNamespace(active_dataloader=first)
        assert made.backward(0.5) == 0.5
        made.gradient_state = SimpleNamespace(active_dataloader=second)
        with golden.raises(RefusedError):
            made.backward(0.5)

    def test_of_an_older_release_shares_no_batch(self) -> None:
        made = Delivery(world_size=2).accelerator()()
        del made.split_batches
        assert made.prepare_data_loader(loader(8))[0] == 4

    @pytest.mark.parametrize(
        ("force", "own", "steps", "reason"),
        [
            ({"world_size": 3}, 8, 1, "a global batch of 8 cannot be divided over 3 ranks"),
            ({"samples_per_rank": 6}, 8, 4, "6 samples of a rank cannot be cut into .* 4"),
            ({"samples_per_rank": 4}, None, 1, "cannot be seen, nor divided"),
        ],
    )
    def test_is_refused_what_its_loop_cannot_take(
        self, force: Any, own: int | None, steps: int, reason: str
    ) -> None:
        made = Delivery(**{"world_size": 2, **force}).accelerator()()
        made.gradient_accumulation_steps = steps
        with pytest.raises(RefusedError, match=reason):
            made.prepare_data_loader(loader(own))

    def test_of_a_trainer_is_the_trainers(self) -> None:
        way = Delivery(world_size=2, arguments={"bf16": True, "optim": "adamw_torch_fused"})
        way.trainer()(way.arguments()())
        made = way.accelerator()(mixed_precision="no")
        assert made.prepare_data_loader(loader(8))[0] == 8
        assert made.prepare_optimizer(AdamW(None)) == [{"fused": None}]
        assert "mixed_precision" not in way.changes

    @pytest.mark.parametrize(("samples", "batch"), [(2, 4), (4, 8)])
    def test_a_batch_that_ranks_share_is_that_of_all_of_them(
        self, samples: int, batch: int
    ) -> None:
        way = Delivery(world_size=2, samples_per_rank=samples)
        made = way.accelerator()(split_batches=True)
        made.prepare_data_loader(trained_on := loader(8))
        assert (trained_on.batch_sampler.batch_size, trained_on.batch_size) == (batch, batch)
        assert bool(way.said) is (batch != 8)

    @every_row(
        ("kind", "before", "after", "told"),
        [
            (None, True, {"fused": True}, False),
            ("adamw_torch", True, {"fused": False, "foreach": False}, True),
            ("adamw_torch", None, {"fused": False, "foreach": False}, False),
            ("adamw_torch_fused", True, {"fused": True, "foreach": False}, False),
            ("adamw_torch_fused", None, {"fused": True, "foreach": False}, True),
        ],
    )
    def test_adamw_steps_as_the_plan_says(
        self, kind: str | None, before: bool | None, after: dict[str, bool], told: bool
    ) -> None:
        way = Delivery(world_size=1, arguments={} if kind is None else {"optim": kind})
        assert way.accelerator()().prepare_optimizer(AdamW(before)) == [after]
        assert way.changes == ({"fused": f"AdamW fused={after['fused']}"} if told else {})


def test_one_rank_takes_a_batch_that_cannot_be_seen_as_it_is() -> None:
    made = Delivery(world_size=1).accelerator()()
    assert made.prepare_data_loader(loader(None)) == (None, 0)


DROPS = SimpleNamespace(config=SimpleNamespace(encoder_layerdrop=0.05))
DROPS_NONE = SimpleNamespace(config=SimpleNamespace(encoder_layerdrop=0.0), layer_dropout=0.1)


@pytest.mark.parametrize(
    ("parts", "force", "given", "looks"),
    [
        ([DROPS_NONE], {}, {}, None),
        ([DROPS_NONE], {"find_unused": True}, {}, True),
        ([DROPS_NONE, SimpleNamespace(layerdrop=0.1)], {}, {}, True),
        ([DROPS], {}, {"find_unused_parameters": False}, True),
        ([DROPS], {}, {"static_graph": True}, None),
        ([DROPS], {"find_unused": True, "world_size": 1, "typed_ranks": 2}, {}, None),
    ],
)
def test_several_ranks_look_for_what_a_step_leaves_out(
    parts: list[Any], force: dict[str, Any], given: dict[str, Any], looks: bool | None
) -> None:
    """Also where the first step has left out nothing, but another one may (LayerDrop)."""
    told: list[Any] = []

    class FakeDDP:
        def __init__(self, module: Any, **kwargs: Any) -> None:
            told.append(kwargs.get("find_unused_parameters"))

        def forward(self) -> None: ...

    carried = Delivery(**{"world_size": 2, **force})
    name = "torch.nn.parallel.distributed"
    cls = carried.patched(name, DistributedDataParallel=FakeDDP).DistributedDataParallel
    cls(SimpleNamespace(modules=lambda: parts), **given)
    assert told == [looks]


class LengthGroupedSampler:
    """As Trainer's: it sorts the samples of so many steps of its rank."""

    batch_size = 8


@pytest.mark.parametrize(("typed", "world", "batch"), [(1, 2, 16), (4, 2, 4), (2, 1, 4), (2, 2, 8)])
def test_samples_are_grouped_by_length_as_on_the_ranks_that_were_typed(
    typed: int, world: int, batch: int
) -> None:
    class FakeTrainer:
        def train(self) -> None: ...

        def _get_train_sampler(self, data: object = None) -> object:
            return data or LengthGroupedSampler()

    carried = Delivery(world_size=world, typed_ranks=typed)
    trainer = carried.patched("transformers.trainer", Trainer=FakeTrainer).Trainer()
    sampler = trainer._get_train_sampler()
    assert sampler.batch_size == batch
    assert trainer._get_train_sampler("another") == "another"


def test_a_watcher_is_asked_before_all_others_and_passes_over_what_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [object(), *sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", list(others))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    patched: list[ModuleType] = []
    set_hooks([("colorsys", "", patched.append)])
    assert sys.meta_path[1:] == others
    assert patched == [importlib.import_module("colorsys")]


def test_a_divided_batch_is_a_number_in_a_checkpoint_and_divided_in_a_copy() -> None:
    """``training_args.bin`` holds it, and is saved and read where apply_plan.py is not __main__."""
    batch = Divided(4)
    batch.typed = 1
    assert type(pickle.loads(pickle.dumps(batch))) is int
    assert copy.deepcopy({"batch": batch})["batch"].typed == 1


@every_row(
    ("force", "hooks"),
    [
        ({}, 0),
        ({"torch": {"dropout": "bytes"}}, 2),
        ({"world_size": 1}, 10),
        ({"world_size": 1, "torch": {"dropout": "bytes"}}, 12),
        ({"world_size": 2}, 22),
        ({"world_size": 2, "batch_per_rank": 4}, 12),
        ({"world_size": 2, "typed_ranks": 2}, 10),
        ({"world_size": 2, "typed_ranks": 2, "find_unused": True}, 11),
        ({"world_size": 2, "by_flags": True}, 15),
    ],
)
def test_no_more_is_hooked_than_the_plan_needs(force: dict[str, Any], hooks: int) -> None:
    assert len(hooks_of(Delivery(**force).parts)) == hooks
