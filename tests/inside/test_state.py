"""What a rank shows of itself: variables, optimizer, the workers of oneCCL."""

from __future__ import annotations

import contextlib
import io
import os
from types import SimpleNamespace
from typing import Any

import pytest

from cputune.inside import SHOW_VARIABLE, machine_limits, state
from cputune.inside.machine_limits import SIZE, SMALL, TRIES
from cputune.inside.meter import length_in
from cputune.inside.state import ccl_workers


def test_variables_that_are_asked_for_are_shown_and_no_others(monkeypatch):
    monkeypatch.setenv(SHOW_VARIABLE, "ACCELERATE_MIXED_PRECISION,NOT_SET")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("A_PASSWORD", "x")
    shown = state.read()["environment"]
    assert shown["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not {"A_PASSWORD", "NOT_SET"} & set(shown)


class Tokens:
    shape = (4, 32)


def test_the_length_of_a_sample_is_that_of_its_tokens():
    assert length_in({"labels": (), "input_ids": Tokens()}) == 32
    assert length_in({"pixel_values": Tokens()}) is None
    assert length_in([1, 2]) is None


class AdamW:
    """As torch's: what it was told stands in its parameter groups."""

    def __init__(self, **options: Any) -> None:
        self.param_groups = [{"lr": 1e-3, **options}, {"lr": 1e-3, **options}]


@pytest.mark.parametrize(
    ("options", "fused", "foreach"),
    [({}, False, False), ({"fused": True}, True, False), ({"foreach": True}, False, True)],
)
def test_an_optimizer_is_known_by_its_class_and_its_parameter_groups(
    options: dict[str, Any], fused: bool, foreach: bool
) -> None:
    expected = {"class": "AdamW", "fused": fused, "foreach": foreach}
    wrapped = SimpleNamespace(optimizer=AdamW(**options))
    assert state.optimizer(wrapped) == expected, "accelerate wraps it"
    assert state.optimizer(object()) == {"class": "object", "fused": False, "foreach": False}


OWN = os.getpid()


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A process as the kernel shows it: names and CPUs of its threads, the main one first."""

    def make(*threads):
        places = {OWN + number: cpus for number, (_, cpus) in enumerate(threads)}
        monkeypatch.setattr(os, "sched_getaffinity", places.__getitem__)
        for number, (name, _) in enumerate(threads):
            (tmp_path / str(OWN + number)).mkdir()
            (tmp_path / str(OWN + number) / "comm").write_text(f"{name}\n")
        return str(tmp_path)

    return make


MAIN, POOL, AUTOGRAD = ("python", {1, 2}), ("python", {1, 2}), ("pt_autograd_0", {0})


@pytest.mark.parametrize(
    ("threads", "variables", "found", "why"),
    [
        ((MAIN, POOL, ("python", {3}), ("python", {0}), AUTOGRAD), {}, [0, 3], ""),
        ((MAIN, POOL, AUTOGRAD), {}, [], ""),  # it has switched its workers off
        ((("python", {1}), ("python", {1})), {}, None, "one CPU"),
        ((("python", {1}), ("python", {0})), {}, [0], ""),  # a worker elsewhere is known
        ((MAIN, ("python", {1})), {"OMP_PROC_BIND": "close"}, None, "OMP_PROC_BIND"),
    ],
)
def test_a_worker_of_oneccl_is_bound_to_one_cpu_and_has_no_name(
    process, threads, variables, found, why
):
    seen, reason = ccl_workers(variables, process(*threads))
    assert seen == found
    assert why in reason if why else reason == ""


def test_what_an_optimizer_trains_is_known_by_its_shapes_in_any_order() -> None:
    def trained(*shapes: tuple[int, ...]) -> str | None:
        parameters = [SimpleNamespace(shape=shape) for shape in shapes]
        return state.model(SimpleNamespace(param_groups=[{"params": parameters}]))

    one, other = trained((2, 3), (6,)), trained((6,), (2, 3))
    assert one.startswith("12 numbers in 2 tensors, shapes ")
    assert one == other
    assert one != trained((3, 2), (6,))
    assert trained() is None


def test_a_library_in_a_folder_with_a_blank_is_one_path(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "7f00-7f01 r-xp 00000000 08:01 42                 /opt/my lib/libtcmalloc.so.4\n"
        "7f01-7f02 r--p 00000000 08:01 42                 /opt/my lib/libtcmalloc.so.4\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
    )
    monkeypatch.setattr(state, "open", lambda *_, **__: io.StringIO(lines), raising=False)
    assert state.mapped_libraries() == ["/opt/my lib/libtcmalloc.so.4"]


class Layer:
    """A module of a model: with a weight of so many dimensions, or without one."""

    def __init__(self, dimensions: int | None) -> None:
        if dimensions is not None:
            self.weight = SimpleNamespace(ndim=dimensions, is_floating_point=lambda: True)
        self.called: Any = None

    def register_forward_hook(self, called: Any) -> Any:
        self.called = called
        return SimpleNamespace(remove=lambda: None)


def test_the_dtype_is_that_of_the_first_layer_that_multiplies_matrices() -> None:
    probe, layer = state.DtypeProbe(), Layer(2)
    assert probe.attach(SimpleNamespace(modules=lambda: iter([Layer(1), layer])))
    layer.called(layer, (), SimpleNamespace(dtype="torch.bfloat16"))
    assert probe.detach() == "bfloat16"


@pytest.mark.parametrize(("small_seconds", "rows"), [(0.01, SIZE), (0.02, SMALL)])
def test_a_product_that_would_take_long_is_read_of_a_smaller_one(
    small_seconds: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.01 s of 512 rows are 0.64 s of 2048, and 0.02 s 1.28 s."""

    class Matrix:
        def __init__(self, rows: int) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return self.rows

        def __getitem__(self, where: tuple[slice, slice]) -> Matrix:
            return Matrix(where[0].stop)

        def to(self, dtype: object) -> Matrix:
            return self

        def contiguous(self) -> Matrix:
            return self

    torch = SimpleNamespace(
        randn=lambda size, _: Matrix(size),
        float32="float32",
        no_grad=contextlib.nullcontext,
        mm=lambda one, other: None,
    )
    monkeypatch.setattr(machine_limits, "_once", lambda work: small_seconds)
    monkeypatch.setattr(machine_limits, "_best", lambda work: 0.5)
    assert machine_limits.gflops(torch, "float32") == pytest.approx(2 * rows**3 / 0.5 / 1e9)


@pytest.mark.parametrize(("seconds", "times"), [(0.1, 8), (1.0, TRIES)])
def test_a_product_is_timed_several_times_and_for_long_enough(
    seconds: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter([seconds + 0.01] * (times - 1) + [seconds] + [0.0] * 9)
    monkeypatch.setattr(machine_limits, "_once", lambda work: next(told))
    assert machine_limits._best(lambda: None) == seconds
    assert len([*told]) == 9
