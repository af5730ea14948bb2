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
from cputune.inside.cutting import part_of
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


class Queued(Net):
    """Compared with what earlier batches gave: its state changes with each."""

    def loss(self, batch: Any) -> Any:
        seen = self.layers(batch["x"])
        against = self.queue.sum() if len(self.queue) else seen.sum() * 0
        self.queue = torch.cat([self.queue, seen.detach()[:, 0]])
        return super().loss(batch) + against * seen.mean()


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


def test_one_sample_has_no_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(Net(), monkeypatch, count=1)["ranks"]["why"] == ""


def test_other_threads_and_bf16_are_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    told = answers(Net(), monkeypatch, asks="repeats,threads,precision")
    assert told["threads"]["apart"] < 1e-5
    assert 1e-6 < told["precision"]["apart"] < 0.1
    assert torch.get_num_threads() == threads


def test_a_part_is_cut_out_of_whatever_holds_a_batch() -> None:
    batch = {"x": torch.arange(6), "n": torch.tensor(3), "of": [torch.arange(6)], "say": "so"}
    part = part_of(batch, 6, 2, 2)
    assert part["x"].tolist() == part["of"][0].tolist() == [2, 3]
    assert (int(part["n"]), part["say"]) == (3, "so")
    assert part_of((torch.arange(6), list("abcdef")), 6, 4, 2)[1] == ["e", "f"]


def test_the_norm_is_that_of_all_gradients_together() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (4,))
    assert norm([torch.tensor([4.0]), None, sparse]) == 5.0
    assert norm([torch.tensor([float("nan")])]) != 0.0
