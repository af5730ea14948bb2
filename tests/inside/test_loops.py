"""What is taken for a batch, a step and the end of a training, on stand-ins for the frameworks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from golden_texts import Golden
from rows import every_row

from cputune.inside.applying.hooking import nothing
from cputune.inside.by_hand import WeightsByHand, weight_of
from cputune.inside.loops import (
    ENDLESS,
    Loops,
    TypedArguments,
    _asked_steps,
    _let_schedule_end,
    _NoMetrics,
    _quiet,
)
from cputune.inside.messages import Speaker
from cputune.inside.meter import Meter, samples_in


class RefusedError(Exception):
    pass


class FakeTorch(SimpleNamespace):
    """Of torch what a loop is watched by: the hook on models that are called to train."""

    def __init__(self) -> None:
        super().__init__(hooks=0, is_grad_enabled=lambda: True)

    def register_module_forward_pre_hook(self, called: object) -> object:
        self.hooks += 1
        return SimpleNamespace(remove=lambda: setattr(self, "hooks", self.hooks - 1))


class Told(Loops):
    """Hooks in a process in which nothing is ended, and what they told."""

    def __init__(self) -> None:
        super().__init__(Meter(Speaker("")))
        self.steps: list[Any] = []
        self.resumed = 0
        self.meter.step = lambda **given: self.steps.append(given)  # type: ignore[method-assign]
        self.meter.refuse = self._refused  # type: ignore[method-assign]
        self.meter.resume = self._resume  # type: ignore[method-assign]
        self.meter.see_batch = samples_in  # type: ignore[method-assign]
        self.meter.first = SimpleNamespace(  # type: ignore[assignment]
            facts={}, batch=nothing, begin=nothing, trained=nothing, before_step=nothing
        )

    def _refused(self, reason: str, *, hopeless: bool = False) -> Any:
        raise RefusedError(reason, hopeless)

    def _resume(self, since: float) -> None:
        self.resumed += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.nn.modules.module", torch)
    return Told()


class Batch:
    def __init__(self, samples: int) -> None:
        self.shape = (samples, 3)

    def numel(self) -> int:
        return self.shape[0] * 3


class Loader:
    def __init__(self, *sizes: int, batch: int | None = None) -> None:
        self.sizes, self.dataset = sizes, range(sum(sizes))
        self.batch_sampler = SimpleNamespace(batch_size=batch)

    def __iter__(self) -> Iterator[object]:
        return iter([Batch(size) for size in self.sizes])


def over(told: Told, loader: Loader, framework: Any = "pytorch") -> Iterator[object]:
    return told.over(loader, framework, lambda: iter(loader))


class TestABatch:
    def test_of_what_is_trained_on_never_ends(self, told: Told) -> None:
        taken = 0
        for _ in over(told, Loader(4, 4, batch=4)):
            told.backward(0.5)
            taken += 1
            if taken == 7:
                break
        assert taken == 7
        assert told.meter.framework == "pytorch"

    def test_of_an_evaluation_within_a_step_takes_no_time_of_it(self, told: Told) -> None:
        trained = over(told, Loader(8, 8))
        next(trained)
        told.backward(0.5)
        assert len([*over(told, Loader(4))]) == 1
        assert told.resumed == 2, "after the backward pass, and for the evaluation"
        next(trained)
        told.backward(0.5)
        assert told.resumed == 3

    def test_is_counted_once_though_two_losses_come_of_it(self, told: Told) -> None:
        batches = over(told, Loader(6, 6, batch=6))
        next(batches)
        told.backward(0.5)
        told.backward(0.5)
        assert (told.meter.facts["batch"], told.meter.facts["accumulation"]) == (6, 1)
        assert told.meter.facts["dataset_samples"] == 12
        assert told.meter._samples == 6
        next(batches)
        told.backward(0.5)
        assert told.meter.facts["accumulation"] == 2
        assert told.meter._samples == 12

    def test_is_counted_though_several_are_fetched_before_the_first_is_trained_on(
        self, told: Told
    ) -> None:
        batches = over(told, Loader(6, 6, 6, 6, batch=6))
        for _ in range(2):
            for _ in (1, 2):
                next(batches)
            for _ in (1, 2):
                told.backward(0.5)
        assert told.meter.facts["accumulation"] == 4
        assert told.meter._samples == 24

    def test_beside_a_trainer_is_left_to_it(self, told: Told) -> None:
        told.meter.framework = "trainer"
        original: Callable[..., Any] = lambda loader: "its own"  # noqa: E731
        assert told._iterate("pytorch", original, Loader(4)) == "its own"

    def test_the_first_model_that_is_called_to_train_is_watched(self, told: Told) -> None:
        torch = sys.modules["torch"]
        watched: list[object] = []
        told.meter.watch = lambda model: watched.append(model) or True  # type: ignore[func-returns-value, method-assign]
        batches = over(told, Loader(4))
        next(batches)
        assert torch.hooks == 1  # type: ignore[attr-defined]
        told._called(SimpleNamespace(training=False))  # type: ignore[arg-type]
        assert watched == []
        told._called(model := SimpleNamespace(training=True))  # type: ignore[arg-type]
        assert watched == [model]
        assert torch.hooks == 0  # type: ignore[attr-defined]

    def test_of_an_evaluation_ends_with_its_data(self, told: Told) -> None:
        assert len([*over(told, Loader(4, 4))]) == 2
        assert told.resumed == 0


class TestAPreparedLoader:
    def seen(self, told: Told, **own: Any) -> Any:
        loader = Loader(8, 8, 8, batch=8)
        prepared = type("Prepared", (list,), {})(range(3))
        told.prepared = [(object(), object()), (prepared, loader)]
        told._loader = own.pop("loader", prepared)
        told.meter.facts.update(own.pop("facts", {}))
        usual = {"split_batches": False, "num_processes": 2, "gradient_accumulation_steps": 2}
        told._see_prepared(SimpleNamespace(**{**usual, **own}))  # type: ignore[arg-type]
        return told.meter

    def test_says_the_batch_and_the_steps_of_an_epoch(self, told: Told) -> None:
        meter = self.seen(told, facts={"epochs": 3})
        assert (meter.facts["batch"], meter.facts["dataset_samples"]) == (8, 24)
        assert meter.first.facts == {"loader": 1, "epoch_steps": 2, "steps": 6}

    def test_that_is_shared_has_a_batch_of_all_ranks(self, told: Told) -> None:
        meter = self.seen(told, split_batches=True)
        assert meter.facts["batch"] == 4
        assert meter.first.facts == {"loader": 1, "epoch_steps": 2}

    def test_that_is_not_prepared_says_nothing(self, told: Told) -> None:
        assert self.seen(told, loader=object()).facts == {}


class TestAStep:
    def test_is_one_of_the_optimizer_that_stepped_first(self, told: Told) -> None:
        first, second = object(), object()
        for optimizer in (first, second, first):
            told._stepped(optimizer)
        assert told.steps == [{"mean_loss": True, "optimizer": first}] * 2

    def test_of_a_trainer_is_reported_by_it(self, told: Told) -> None:
        told.meter.framework = "trainer"
        told._stepped(object())
        assert told.steps == []
        handler = SimpleNamespace(optimizer="its own")
        assert told._step_end(lambda *_: "done", handler) == "done"  # type: ignore[arg-type]
        assert told.steps == [{"mean_loss": False, "optimizer": "its own"}]

    @pytest.mark.parametrize(
        ("seen", "why"),
        [
            ([], "takes no batch from a torch.utils.data.DataLoader"),
            (["Accelerator"], "give the loader to accelerator.prepare"),
        ],
    )
    def test_without_a_batch_is_refused_before_it_is_taken(
        self, told: Told, seen: list[str], why: str
    ) -> None:
        told.meter.seen.update(seen)
        with pytest.raises(RefusedError, match=why) as refused:
            told._before_step(object(), (), {})
        assert refused.value.args[1] is True, "with any plan"

    def test_of_a_torch_loop_beside_an_accelerator_has_no_batch(self, told: Told) -> None:
        told.meter.framework = "pytorch"
        told.meter.seen.add("Accelerator")
        assert not told._sees_batches()
        told.meter.seen.clear()
        assert told._sees_batches()


class Weight:
    """A weight of numbers, as much of a tensor as is looked at."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def detach(self) -> Weight:
        return self

    def reshape(self, shape: int) -> Weight:
        assert shape == -1
        return self

    def __getitem__(self, part: slice) -> Weight:
        return Weight(*self.numbers[part])

    def clone(self) -> Weight:
        return Weight(*self.numbers)

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Weight)
        return SimpleNamespace(all=lambda: self.numbers == other.numbers)

    __hash__ = None  # type: ignore[assignment]


class Node(SimpleNamespace):
    __hash__ = object.__hash__


class TestWeights:
    def test_that_a_loop_changes_itself_end_it_at_its_second_loss(
        self, told: Told, golden: Golden
    ) -> None:
        weight = Weight(1.0, 2.0)
        loss = SimpleNamespace(grad_fn=Node(variable=weight, next_functions=()))
        told._require_optimizer(loss)
        told._require_optimizer(loss)
        weight.numbers[1] = 3.0
        with golden.raises(RefusedError):
            told._require_optimizer(loss)
        told.meter.framework = "trainer"
        told._require_optimizer(loss)
        told.meter.framework, told.meter.steps = "pytorch", 1
        told._require_optimizer(loss)

    def test_of_an_optimizer_are_not_looked_at(self) -> None:
        by_hand, weight = WeightsByHand(), Weight(1.0)
        made: list[object] = []
        by_hand.optimizer_made(lambda *given: made.append(given), "optimizer", 1)
        assert made == [("optimizer", 1)]
        loss = SimpleNamespace(grad_fn=Node(variable=weight, next_functions=()))
        assert not by_hand.changed(loss)
        weight.numbers[0] = 2.0
        assert not by_hand.changed(loss)

    def test_the_nearest_is_found(self) -> None:
        weight = Weight(1.0)
        leaf = Node(variable=weight, next_functions=())
        far = Node(next_functions=((Node(variable="further", next_functions=()), 0),))
        middle = Node(next_functions=((None, 0), (leaf, 0), (far, 0)))
        assert weight_of(SimpleNamespace(grad_fn=middle)) is weight
        assert weight_of(SimpleNamespace(grad_fn=None)) is None
        assert weight_of(0.5) is None
        middle.next_functions = ((middle, 0),)
        assert weight_of(SimpleNamespace(grad_fn=middle)) is None, "it ends in a circle, too"


def arguments(**own: Any) -> Any:
    usual = {"max_steps": 0, "train_batch_size": 4, "gradient_accumulation_steps": 2}
    usual |= {"world_size": 2, "lr_scheduler_type": "linear"}
    return SimpleNamespace(**{**usual, **own})


class TestTrainingArguments:
    @every_row(
        ("asked", "samples", "steps"),
        [
            (TypedArguments(steps=7, epochs=3), 160, 7),
            (TypedArguments(epochs=3), 160, 30),
            (TypedArguments(epochs=3), None, None),
        ],
    )
    def test_say_how_long_it_would_train(
        self, asked: TypedArguments, samples: int | None, steps: int | None
    ) -> None:
        data = None if samples is None else range(samples)
        args = arguments(_cputune_asked=asked)
        assert _asked_steps(SimpleNamespace(args=args, train_dataset=data)) == steps  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("scheduler", "then"),
        [
            ("reduce_lr_on_plateau", "constant"),
            (SimpleNamespace(value="greedy"), "constant"),
            ("linear", "linear"),
        ],
    )
    def test_train_without_end_and_evaluate_nothing(self, scheduler: Any, then: str) -> None:
        args = arguments(
            lr_scheduler_type=scheduler,
            do_eval=True,
            eval_strategy="steps",
            evaluation_strategy="steps",
            output_dir="mine",
            save_strategy="epoch",
        )
        _quiet(args, "elsewhere")
        assert (args.max_steps, args.do_eval, args.output_dir) == (ENDLESS, False, "elsewhere")
        assert (args.eval_strategy, args.evaluation_strategy) == ("no", None)
        assert args.save_strategy == "no"
        assert args.lr_scheduler_type == then
        assert not hasattr(args, "logging_dir"), "what this version does not have is not made"

    def test_are_asked_before_they_are_changed_and_once(self, told: Told) -> None:
        args = arguments(max_steps=5, num_train_epochs=2.0)
        vars(args)["__dataclass_fields__"] = {}
        made: list[object] = []
        for _ in range(2):
            told._post_init(made.append, args)
        assert args._cputune_asked == TypedArguments(steps=5, epochs=2.0, parsed=True)
        assert args.max_steps == ENDLESS
        assert len(made) == 2


def test_metrics_of_an_evaluation_that_was_not_made_are_zero() -> None:
    assert _NoMetrics()["eval_loss"] == 0.0


@every_row(("last", "steps"), [(7, 1), (8, 1), (9, 0), (10, 0)])
def test_a_schedule_of_one_cycle_stays_at_its_end(last: int, steps: int) -> None:
    stepped: list[object] = []
    schedule = SimpleNamespace(last_epoch=last, total_steps=10)
    _let_schedule_end(stepped.append, schedule)  # type: ignore[arg-type]
    assert len(stepped) == steps
