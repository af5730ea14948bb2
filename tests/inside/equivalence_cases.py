"""What a model says of its own batches, and that it is as before once it was asked.

These import torch: ``test_padding.py`` runs them in a process of their own.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from cputune.inside import ASK_VARIABLE
from cputune.inside.asked_points import OF_RECIPES
from cputune.inside.contents import contents_of
from cputune.inside.cutting import UncutError, part_of
from cputune.inside.equivalence_check import Asker
from cputune.inside.nearness import norm

F = torch.nn.functional


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 6), *layers, torch.nn.Linear(6, 2))
        self.queue = torch.zeros(0)

    def loss(self, batch: Any) -> Any:
        return F.cross_entropy(self.layers(batch["x"]), batch["y"])


class InBatch(Net):
    """Each sample is told from all others of its batch."""

    def loss(self, batch: Any) -> Any:
        seen = F.normalize(self.layers(batch["x"]), dim=1)
        return F.cross_entropy(seen @ seen.T, torch.arange(len(seen)))


class Noisy(Net):
    def loss(self, batch: Any) -> Any:
        x = batch["x"]
        drawn = torch.randn_like(x) + torch.rand(len(x), 4) + torch.randint(0, 3, (len(x), 1))
        return F.cross_entropy(self.layers(x + drawn.normal_()), batch["y"])


class Queued(Net):
    """Compared with what earlier batches gave: its state changes with each."""

    def loss(self, batch: Any) -> Any:
        seen = self.layers(batch["x"])
        against = self.queue.sum() if len(self.queue) else seen.sum() * 0
        self.queue = torch.cat([self.queue, seen.detach()[:, 0]])
        return super().loss(batch) + against * seen.mean()


class Unsteady(Net):
    def loss(self, batch: Any) -> Any:
        return super().loss(batch) * next(CHANCE)


CHANCE = iter(range(1, 1000))


def batch_of(count: int = 8) -> dict[str, Any]:
    torch.manual_seed(3)
    return {"x": torch.randn(count, 4), "y": torch.arange(count) % 2}


def answers(
    net: Any, monkeypatch: pytest.MonkeyPatch, *, asks: str = "repeats,ranks", count: int = 8
) -> dict[str, Any]:
    """What is told of each question before the first step."""
    monkeypatch.setenv(ASK_VARIABLE, asks)
    told: list[Any] = []
    asker = Asker(told.append)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    asker.saw(optimizer)
    assert asker.due(0)
    for batch, _ in asker.batches(batch_of(count), [net]):
        loss = net.loss(batch)
        loss.backward()
        optimizer.step()
        asker.turns.trained(loss)
    assert not asker.due(OF_RECIPES[1] - 1)
    assert asker.due(OF_RECIPES[1])
    assert not asker.turns.are_on
    return {one["question"]: one for one in told if "why" not in one or one["question"]}


@pytest.mark.parametrize(
    ("net", "apart"),
    [
        (Net(), 0),
        (Noisy(), 0),
        (Net(torch.nn.LayerNorm(6)), 0),
        (Net(torch.nn.BatchNorm1d(6)), 0.01),
        (InBatch(), 0.01),
    ],
    ids=["mean", "draws", "layer norm", "batch norm", "contrastive"],
)
def test_parts_make_the_loss_of_the_whole_if_no_sample_sees_another(
    net: Any, apart: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = answers(net, monkeypatch)
    assert told["repeats"]["apart"] < 1e-6
    if apart:
        assert told["ranks"]["apart"] > apart
    else:
        assert told["ranks"]["apart"] < 1e-5
        assert told["ranks"]["loss"][0] == pytest.approx(told["ranks"]["loss"][1], rel=1e-5)


def test_ranks_are_refused_if_a_batch_fills_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    told = answers(Queued(), monkeypatch)
    assert told["repeats"]["apart"] < 1e-6
    assert "a queue" in told["ranks"]["why"]


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Queued(torch.nn.BatchNorm1d(6))
    weights = [one.detach().clone() for one in net.parameters()]
    buffers = [one.clone() for one in net.buffers()]
    dice = torch.get_rng_state(), random.getstate()
    net.layers[0].weight.grad = kept = torch.ones(6, 4)
    draws = torch.Tensor.normal_
    answers(net, monkeypatch, asks="repeats,ranks,threads,precision")
    torch.manual_seed(3)
    batch_of()
    assert net.layers[0].weight.grad is kept
    assert net.layers[2].weight.grad is None
    assert all(map(torch.equal, weights, net.parameters()))
    assert all(map(torch.equal, buffers, net.buffers()))
    assert len(net.queue) == 0
    assert random.getstate() == dice[1]
    assert torch.Tensor.normal_ is draws


def test_a_launch_that_does_not_repeat_itself_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(Unsteady(), monkeypatch, asks="repeats")["repeats"]["apart"] > 0.1


def test_one_sample_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(Net(), monkeypatch, count=1)["ranks"]["why"] == ""


def test_other_threads_and_bf16_are_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    told = answers(Net(), monkeypatch, asks="repeats,threads,precision")
    assert told["threads"]["apart"] < 1e-5
    assert 1e-6 < told["precision"]["apart"] < 0.1
    assert torch.get_num_threads() == threads


def test_nothing_is_asked_if_no_knob_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASK_VARIABLE, "")
    assert not Asker(print).due(0)


class TestAPart:
    def test_is_cut_out_of_whatever_holds_a_batch(self) -> None:
        batch = {"x": torch.arange(6), "n": torch.tensor(3), "of": [torch.arange(6)], "say": "so"}
        part = part_of(batch, 6, 2, 2)
        assert part["x"].tolist() == part["of"][0].tolist() == [2, 3]
        assert (int(part["n"]), part["say"]) == (3, "so")
        assert part_of((torch.arange(6), list("abcdef")), 6, 4, 2)[1] == ["e", "f"]

    def test_of_what_has_other_rows_cannot_be_told(self) -> None:
        with pytest.raises(UncutError, match=r"\(5,\) beside 6 samples"):
            part_of({"x": torch.arange(6), "y": torch.arange(5)}, 6, 0, 3)


def test_the_norm_is_that_of_all_gradients_together() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (4,))
    assert norm([torch.tensor([4.0]), None, sparse]) == 5.0
    assert norm([torch.tensor([float("nan")])]) != 0.0


class TestContents:
    def test_are_those_of_the_samples_whatever_their_order_ranks_and_padding(self) -> None:
        batch = batch_of()
        whole = contents_of(batch)
        assert whole is not None
        parts = [part_of(batch, 8, at, 4) for at in (0, 4)]
        assert sum(contents_of(one) or 0 for one in parts) % (1 << 64) == whole
        turned = {name: value.flip(0) for name, value in batch.items()}
        assert contents_of(turned) == whole
        batch["y"][0] = 1
        assert contents_of(batch) != whole

    def test_leave_padding_out(self) -> None:
        ids = torch.tensor([[7, 8, 0, 0], [9, 0, 0, 0]])
        batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        longer = {name: F.pad(value, (0, 3)) for name, value in batch.items()}
        assert contents_of(longer) == contents_of(batch)
        batch["input_ids"][0, 1] = 5
        assert contents_of(longer) != contents_of(batch)

    def test_of_nothing_are_not_known(self) -> None:
        assert contents_of({}) is None
        assert contents_of([{"prompt": "w1"}]) == contents_of([{"prompt": "w1"}])
        assert contents_of([{"prompt": "w1"}]) != contents_of([{"prompt": "w2"}])
