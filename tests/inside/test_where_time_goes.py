"""Where the time of a step goes: each operation counts once, by what called it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from cputune.inside import machine_limits, where_time_goes
from cputune.inside.messages import Profiled
from cputune.inside.where_time_goes import StepProfiler, kind_of, shares

SETTLED = 5


@dataclass
class Range:
    start: float
    end: float


@dataclass
class FakeEvent:
    """One operation of torch's profiler, from ``start`` for ``own`` microseconds of its own."""

    name: str
    start: float = 0.0
    own: float = 0.0
    cpu_parent: FakeEvent | None = None
    flops: float = 0.0

    @property
    def self_cpu_time_total(self) -> float:
        return self.own

    @property
    def time_range(self) -> Range:
        return Range(self.start, self.start + self.own)


def test_an_operation_is_of_the_kind_of_what_called_it() -> None:
    attention = FakeEvent("aten::scaled_dot_product_attention")
    masks = FakeEvent("aten::bernoulli_", cpu_parent=attention)
    assert kind_of(FakeEvent("aten::mul_", cpu_parent=masks)) == "dropout masks"
    assert kind_of(FakeEvent("aten::mm", cpu_parent=attention)) == "attention"
    assert kind_of(FakeEvent("aten::mm")) == "matrix products"
    step = FakeEvent("Optimizer.step#AdamW.step")
    assert kind_of(FakeEvent("aten::copy_", cpu_parent=step)) == "optimizer"
    loader = FakeEvent("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert kind_of(FakeEvent("aten::stack", cpu_parent=loader)) == "waiting for data"
    zeros = FakeEvent("aten::zeros", cpu_parent=FakeEvent("aten::embedding_dense_backward"))
    assert kind_of(FakeEvent("aten::fill_", cpu_parent=zeros)) == "embeddings"
    assert kind_of(FakeEvent("aten::gelu_backward")) == "activations"
    assert kind_of(FakeEvent("aten::view")) is None
    assert kind_of(FakeEvent("torch_ipex::ipex_linear")) == "matrix products"
    assert kind_of(FakeEvent("torch_ipex::add_layernorm")) is None


def test_shares_add_up_to_the_whole_time_the_largest_first_and_the_rest_last() -> None:
    found = shares(
        [
            FakeEvent("aten::bernoulli_", 0.0, 200_000),
            FakeEvent("aten::addmm", 200_000, 500_000),
            FakeEvent("aten::view", 700_000, 100_000),
        ],
        1.0,
    )
    expected = {"matrix products": 0.5, "dropout masks": 0.2, "the rest": 0.3}
    assert found == pytest.approx(expected)
    assert list(found)[-1] == "the rest"


def test_of_an_all_reduce_only_what_nothing_computes_beside_counts() -> None:
    found = shares(
        [FakeEvent("aten::mm", 0.0, 400_000), FakeEvent("gloo:all_reduce", 300_000, 300_000)], 1.0
    )
    assert found["all-reduce"] == pytest.approx(0.2)


class FakeProfile:
    """What torch's profiler tells of the steps, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *events: FakeEvent, seconds: float) -> None:
        self.now, self.seconds, self.events = 0.0, seconds, lambda: events
        self.profiler, self.ProfilerActivity = self, SimpleNamespace(CPU="cpu")
        monkeypatch.setattr(where_time_goes.time, "perf_counter", lambda: self.now)

    def profile(self, **how: object) -> FakeProfile:
        return self

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def seen(self, look: StepProfiler, dtype: str | None = None) -> tuple[int, Profiled]:
        """What is told, and after which step; each takes so many seconds."""
        for step in range(1, 20):
            self.now += self.seconds
            if (told := look.after(step, self, dtype)) is not None:
                return step, told
        raise AssertionError("nothing was told")


def test_if_steps_are_long_fewer_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeProfile(monkeypatch, seconds=40.0)
    step, seen = torch.seen(StepProfiler(4, settled=SETTLED))
    assert (step, seen["steps"]) == (2, 1)


@pytest.mark.parametrize(
    ("bursts", "share", "limit"),
    [
        ((430.0, 215.0), 0.5, 430.0),  # the machine was slow after the steps
        ((215.0, 430.0), 0.5, 430.0),
        ((215.0, 215.0), 0.5, 396.0),  # 198 over the whole step, in half of its time
        ((215.0, 215.0), 0.0, 215.0),
    ],
)
def test_the_limit_is_the_most_that_was_reached(
    bursts: tuple[float, float], share: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(bursts)
    monkeypatch.setattr(machine_limits, "gflops", lambda torch, dtype: next(left))
    product = FakeEvent("aten::mm", own=share * 1e6, flops=198e9)
    torch = FakeProfile(monkeypatch, product, seconds=1.0)
    _, seen = torch.seen(StepProfiler(1, settled=SETTLED), "bfloat16")
    assert seen["gflops"] == pytest.approx(198.0)
    assert seen["limit_gflops"] == pytest.approx(limit)


def test_of_products_without_a_count_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "gflops", lambda torch, dtype: 430.0)
    product = FakeEvent("torch_ipex::ipex_linear", own=5e5)
    torch = FakeProfile(monkeypatch, product, seconds=1.0)
    _, seen = torch.seen(StepProfiler(1, settled=SETTLED), "bfloat16")
    assert (seen["gflops"], seen["limit_gflops"]) == (None, 430.0)


@pytest.mark.torch
def test_steps_are_profiled_once_they_have_settled_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(machine_limits, "SIZE", 64)
    monkeypatch.setattr(machine_limits, "SECONDS", 0.0)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp")  # the profiler sets it
    look, weights = StepProfiler(2, settled=SETTLED), torch.randn(64, 64)
    told = []
    for step in range(1, SETTLED + 4):
        weights = torch.nn.functional.dropout(weights @ weights, 0.5).clamp(-1, 1)
        told.append(look.after(step, torch, "float32"))
    (seen,) = [one for one in told if one is not None]
    assert told.index(seen) == SETTLED + 1
    assert seen["steps"] == 2
    assert {"matrix products", "dropout masks", "the rest"} <= set(seen["shares"])
    assert sum(seen["shares"].values()) == pytest.approx(1.0, abs=0.01)
    assert seen["gflops"] * seen["seconds"] * 1e9 == pytest.approx(2 * 2 * 64**3)
    assert seen["limit_gflops"] > 0


def test_time_after_all_that_is_computed_overlaps_nothing() -> None:
    assert [*where_time_goes._overlaps([(5, 6), (8, 9)], [(0, 1), (2, 7)])] == [1]
