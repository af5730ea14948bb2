"""What a rank shows of itself: variables, optimizer, the workers of oneCCL."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from cputune.inside import SHOW_VARIABLE, state
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
