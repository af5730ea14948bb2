"""What a model is asked of its own batches, what a batch holds, and draws that samples share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cputune.inside import ASK_VARIABLE
from cputune.inside.applying.ranks import seed_as_several
from cputune.inside.applying.unchanged import as_before
from cputune.inside.asked_points import EARLY, FEWER, POINTS
from cputune.inside.contents import contents_of, end_of_epoch
from cputune.inside.cutting import UncutError, part_of
from cputune.inside.draws import Draws
from cputune.inside.equivalence_check import Asker
from cputune.inside.messages import ModelAnswer
from cputune.plans.equivalence import ModelAnswers, model_answers_of

torch: Any = None
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Import torch where these tests run, not where they are collected."""
    globals()["torch"] = pytest.importorskip("torch")


Loss = Callable[..., Any]


def asked(
    loss_of: Loss,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    beside: object = None,
    size: int | None = None,
    count: int = 8,
    batch: object = None,
    exchanges: bool = False,
) -> ModelAnswers:
    """What a model answers of a batch of so many rows, at each point.

    ``exchanges``: its loss is given what ranks exchange values with.
    """
    monkeypatch.setenv(ASK_VARIABLE, "repeats,samples,ranks")
    monkeypatch.setattr("cputune.inside.asked_points.time.perf_counter", lambda: 0.0)
    told: list[ModelAnswer] = []
    asker = Asker(told.append)
    if batch is None:
        batch = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    for steps in POINTS:
        assert asker.due(steps)
        for part, _ in asker.batches(batch, [model], beside=beside, size=size):
            loss = loss_of(model, part, *([asker.turns.gathered] if exchanges else []))
            loss.backward()
            asker.turns.trained(loss.detach())
    assert not asker.due(1000)
    assert told[-1]["question"] == ""
    return model_answers_of(told, dtype="float32")


def mean(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


def noisy(model: Any, x: Any) -> Any:
    return ((model(x + torch.randn_like(x)) - torch.rand(len(x), 1)) ** 2).mean()


def contrast(model: Any, x: Any) -> Any:
    one, two = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
    return torch.nn.functional.cross_entropy(one @ two.T, torch.arange(len(x)))


def whole(model: Any, x: Any) -> Any:
    return (model(x) ** 2).sum()


def preferred(model: Any, x: Any) -> Any:
    """The loss of trl's DPOTrainer and RewardTrainer: chosen answers before rejected ones."""
    chosen, rejected = model(x).sum(1).chunk(2)
    return -torch.nn.functional.logsigmoid(chosen - rejected).mean()


def chosen_of_two(model: Any, x: Any) -> Any:
    """Of two choices that follow one another, the first is right."""
    choices = model(x).sum(1).view(-1, 2)
    return torch.nn.functional.cross_entropy(choices, torch.zeros(len(choices), dtype=torch.long))


def two_views(model: Any, x: Any) -> Any:
    """A contrast within the first rows of all samples, and one within their second rows."""
    one, two = model(x).chunk(2)
    return contrast(model, x[: len(one)]) + (two @ two.T).softmax(1).diag().mean()


@pytest.mark.parametrize(
    ("loss_of", "may"), [(preferred, True), (chosen_of_two, True), (two_views, False)]
)
def test_of_two_samples_their_two_rows_stay_together_too(
    loss_of: Loss, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_answers = asked(loss_of, torch.nn.Linear(6, 3), monkeypatch, size=2, count=4)
    assert (model_answers.refuses("ranks") is None) == may


@pytest.mark.parametrize(("loss_of", "may"), [(mean, 1), (noisy, 1), (contrast, 0), (whole, 0)])
def test_ranks_are_allowed_if_the_loss_of_a_batch_is_that_of_its_parts(
    loss_of: Loss, may: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_answers = asked(loss_of, torch.nn.Linear(6, 3), monkeypatch)
    assert (model_answers.refuses("ranks") is None) == bool(may)
    assert model_answers.refuses("repeats") is None


@pytest.mark.parametrize(
    ("reduction", "exchanges", "may"),
    [("", True, True), ("sum", True, True), ("none", True, False), ("", False, False)],
)
def test_ranks_may_be_if_they_exchange_what_their_losses_are_divided_by(
    reduction: str, exchanges: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over_items(model: Any, x: Any, gathered: Any = None) -> Any:
        items = (x > 0).sum()
        if gathered is not None:
            items = gathered(items, reduction=reduction).sum()
        return (model(x) ** 2).sum() / items

    model_answers = asked(over_items, torch.nn.Linear(6, 3), monkeypatch, exchanges=exchanges)
    assert (model_answers.refuses("ranks") is None) == may


def test_parts_are_padded_as_rank_0_pads_them_and_alone_if_they_are_accumulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask = torch.ones(8, 16, dtype=torch.int64)
    mask[4:, 8:] = 0
    batch = {"input_ids": torch.arange(128).view(8, 16) % 7, "attention_mask": mask}

    def counts_padding(model: Any, x: Any) -> Any:
        return model(x["input_ids"]).mean()

    answers = asked(counts_padding, torch.nn.Embedding(7, 3), monkeypatch, batch=batch)
    assert answers.refuses("ranks") is None
    assert "its parts, padded alone" in str(answers.refuses("accumulation"))


def test_statistics_of_a_batch_and_a_state_of_its_own_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3))
    answers = asked(lambda model, x: (model(x) - x[:, :3]).abs().mean(), norm, monkeypatch)
    assert "not that of its parts" in str(answers.refuses("ranks"))
    seen: list[int] = []

    def counting(model: Any, x: Any) -> Any:
        seen.append(1)
        return mean(model, x) * len(seen)

    answers = asked(counting, torch.nn.Linear(6, 3), monkeypatch)
    again = "the same batch gives another loss when it is computed again"
    assert again in str(answers.refuses("padding"))


class Curriculum:
    """A penalty on the batch's own deviation, from a step on."""

    def __init__(self, steps: Iterator[int], late: int) -> None:
        self.steps, self.late, self.step, self.turns = steps, late, 0, 0

    def __call__(self, model: Any, x: Any) -> Any:
        if len(x) == 8 and self.turns % 2 == 0:  # the first turn of a point
            self.step = next(self.steps)
        self.turns += len(x) == 8
        return mean(model, x) + (self.step >= self.late) * model(x).std(0).mean()


class Stateful:
    """A loss that keeps something of each batch; ``kind`` says what, and whether it counts."""

    def __init__(self, kind: str) -> None:
        self.kind, self.kept, self.count = kind, torch.ones(3) / 2, 1

    def __call__(self, model: Any, x: Any) -> Any:
        found = model(x)
        loss = ((found - self.kept) ** 2).mean()
        if self.kind == "mean":
            self.kept = 0.999 * self.kept + 0.001 * found.detach().mean(0)
        elif self.kind == "shown":
            self.shown = found.detach().mean(0)
        elif self.kind == "steps":
            self.count, loss = self.count + 1, loss * self.count
        else:
            self.count, loss = self.count + len(x), loss * self.count
        return loss


@pytest.mark.parametrize(
    ("kind", "may"), [("mean", False), ("samples", False), ("steps", True), ("shown", True)]
)
def test_what_a_batch_leaves_for_the_next_one_is_asked_for(
    kind: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(sys.modules["__main__"]), "loss_under_test", loss := Stateful(kind))
    model_answers = asked(loss, torch.nn.Linear(6, 3), monkeypatch, beside=loss)
    assert model_answers.refuses("repeats") is None
    why = model_answers.refuses("ranks")
    assert (why is None) == may, why
    assert may or "changes the next loss" in str(why)
    assert (model_answers.refuses("accumulation") is None) == (kind == "shown")
    assert (loss.count, loss.kept.tolist()) == (1, [0.5, 0.5, 0.5]), "as before"


def test_a_gate_at_zero_hides_nothing_after_the_weights_were_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gated(torch.nn.Linear):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.gate = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x: Any) -> Any:
            h = super().forward(x)
            return h + 50 * self.gate**2 * (h - h.mean(0))

    why = asked(mean, Gated(), monkeypatch).refuses("ranks")
    assert str(why).endswith("seen after 1 updates")


def test_what_begins_late_is_asked_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for late, seen in ((9, "after 11 updates"), (30, "after 53 updates"), (1000, "None")):
        steps = iter(POINTS)
        model_answers = asked(Curriculum(steps, late), torch.nn.Linear(6, 3), monkeypatch)
        assert str(model_answers.refuses("ranks")).endswith(seen)


def test_steps_that_a_script_does_in_turn_fall_on_different_points() -> None:
    for period in (2, 3, 4):
        assert {point % period for point in EARLY} == set(range(period))


def test_a_slow_model_is_asked_at_fewer_points_and_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(f"cputune.inside.asked_points.time.{name}", lambda: clock[0])
    monkeypatch.setenv(ASK_VARIABLE, "repeats,samples")
    for seconds, points in ((0.001, POINTS), (0.2, EARLY), (3.0, FEWER)):
        clock[0] = 0.0
        told: list[Any] = []
        asker, model = Asker(told.append), torch.nn.Linear(6, 3)
        asked_at = []
        for steps in range(300):
            if asker.due(steps):
                asked_at.append(steps)
                for part, _ in asker.batches(torch.ones(8, 6), [model]):
                    clock[0] += seconds / 2
                    mean(model, part).backward()
                    asker.turns.trained(mean(model, part).detach())
            clock[0] += seconds
        assert tuple(asked_at) == points
        assert told[-1]["question"] == ""
        assert told[-1]["updates"] >= points[-1], "however long a step takes"


def test_questions_leave_weights_gradients_buffers_and_draws_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3))
    model[0].weight.grad = torch.ones(3, 6)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    asked(noisy, model, monkeypatch)
    assert all(bool((value == kept[name]).all()) for name, value in model.state_dict().items())
    assert bool((model[0].weight.grad == 1).all())
    assert model[0].bias.grad is None
    assert bool((torch.get_rng_state() == state).all())
    assert "normal_" not in vars(torch.Tensor)


def test_samples_draw_alike_however_many_there_are() -> None:
    def drawn(count: int) -> list[Any]:
        with Draws().alike(count):
            return [
                torch.randn(count, 3),
                torch.rand(count),
                torch.randint(0, 1000, (count,)),
                torch.randint(9, (count, 2)),
                torch.empty(2 * count, 2).exponential_(),
                torch.bernoulli(torch.full((count, 4), 0.3)),
                torch.normal(0.0, 1.0, (count, 2)),
            ]

    for eight, four in zip(drawn(8), drawn(4), strict=True):
        assert bool((eight[: len(four)] == four).all())
    assert len({float(one) for one in torch.rand(8)}) == 8, "off again"


def test_what_torch_compiles_draws_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw of ours writes into a tensor, which torch.compile cannot differentiate."""
    with Draws().alike(4):
        assert len({*torch.rand(4).tolist()}) == 1
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with Draws().alike(4):
        assert len({*torch.rand(4).tolist()}) == 4


def test_a_batch_is_cut_into_samples_in_its_own_kind_of_container() -> None:
    batch = {"x": torch.arange(8), "pair": (torch.ones(8, 2), ["a"] * 8), "one": torch.ones(1, 3)}
    part = part_of(batch, 8, 4, 4)
    assert part["x"].tolist() == [4, 5, 6, 7]
    assert (part["pair"][0].shape, len(part["pair"][1]), part["one"].shape) == ((4, 2), 4, (1, 3))
    with pytest.raises(UncutError, match="beside 8 samples"):
        part_of({"x": torch.arange(8), "nodes": torch.ones(13, 2)}, 8, 0, 4)
    pairs = {"ids": torch.arange(8), "weight": torch.arange(4), "words": [*"abcdefgh"]}
    part = part_of(pairs, 4, 1, 2, rows=2)
    assert (part["ids"].tolist(), part["weight"].tolist()) == ([1, 2, 5, 6], [1, 2])
    assert part["words"] == ["b", "c", "f", "g"]
    part = part_of(pairs, 4, 1, 2, rows=2, in_turn=True)
    assert (part["ids"].tolist(), part["weight"].tolist()) == ([2, 3, 4, 5], [1, 2])


def test_what_a_batch_holds_is_reported_whatever_its_order_and_padding() -> None:
    ids = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([1, 0])}
    turned = {name: value.flip(0) for name, value in batch.items()}
    longer = {
        name: torch.nn.functional.pad(value, (0, 3)) if value.ndim > 1 else value
        for name, value in batch.items()
    }
    assert contents_of(batch) == contents_of(turned) == contents_of(longer)
    parts = [contents_of(part_of(batch, 2, at, 1)) for at in (0, 1)]
    assert sum(one or 0 for one in parts) % (1 << 64) == contents_of(batch)
    other = {**batch, "labels": torch.tensor([0, 1])}
    assert contents_of(other) != contents_of(batch), "a label belongs to its sample"
    assert contents_of([{"prompt": "a"}, {"prompt": "b"}]) != contents_of([{"prompt": "a"}])


def test_the_last_step_of_an_epoch_is_seen_without_a_draw() -> None:
    data = torch.utils.data
    batches = data.BatchSampler(data.RandomSampler(range(44)), 8, False)
    state = torch.get_rng_state()
    assert end_of_epoch(batches, 1) == [40, 41, 42, 43]
    assert len(end_of_epoch(batches, 4) or ()) == 12, "two batches are left of six"
    assert bool((torch.get_rng_state() == state).all())
    assert end_of_epoch(None, 1) is None
    shards = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    halves = data.BatchSampler(data.RandomSampler(range(44)), 4, False)
    ends = [end_of_epoch(shards(halves, 2, rank), 1) for rank in (0, 1)]
    assert [len(end or ()) for end in ends] == [4, 4], "accelerate fills it up"


def test_without_a_mask_what_is_repeated_at_the_end_is_padding() -> None:
    def told(*rows: Any) -> int | None:
        return contents_of({"x": torch.tensor(rows)})

    assert told([5, 3, 0, 0], [7, 0, 0, 0]) == told([5, 3, 0], [7, 0, 0])
    assert told([5, 3, 0]) != told([5, 4, 0])
    assert told([1], [1]) != told([2], [2]), "one number is none too many"
    pairs = [[5.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
    assert told(pairs) == told(pairs[:2])
    assert told(pairs) != told([[5.0, 3.0], [0.0, 1.0], [0.0, 0.0]])


class OfTheScript:
    """As if the script had it: its attributes are put back."""

    def __init__(self) -> None:
        self.count, self.queue = 0, torch.zeros(2)


OfTheScript.__module__ = "__main__"


def test_what_the_script_has_made_is_put_back_and_no_tensor_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cputune.inside.applying.unchanged.MOST_BYTES", 100)
    made, long = OfTheScript(), torch.zeros(30)
    held: list[Any] = [made, long]
    with as_before(held):
        made.count, made.queue[0], long[0] = 1, 1, 1
        held.append(3)
    assert (made.count, made.queue.tolist(), len(held)) == (0, [0, 0], 2)
    assert long[0] == 1, "120 bytes are data"


def test_one_rank_for_several_shuffles_by_one_seed() -> None:
    """As accelerate does with several; torch alone draws a seed as each pass begins."""
    sampler = torch.utils.data.RandomSampler(range(50))
    before = torch.get_rng_state()
    seed_as_several(sampler)
    orders, drawn = [], []
    for _ in range(2):
        orders.append([*sampler])
        drawn.append(int(not torch.equal(before, torch.get_rng_state())))
        before = torch.get_rng_state()
    assert drawn == [1, 0]
    assert orders[0] != orders[1]
