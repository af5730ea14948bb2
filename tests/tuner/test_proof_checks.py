"""Which values ``prove`` starts together: those that promise the same, each once."""

from __future__ import annotations

import pytest
from machines import TODAY, machine

import cputune
from cputune import Workload
from cputune.tuner.knob_proofs import BOUND, TOGETHER, checks_of

FACTS = machine(cores_per_socket=4, packages=TODAY)
JOB = Workload.from_recipe("bert-mini")


def test_each_value_is_in_one_start_and_those_of_one_promise_share_it() -> None:
    space = cputune.search_space(FACTS, JOB)
    checks = list(checks_of(space))
    names = [
        BOUND if knob is None else f"{knob.name}={value}"
        for check in checks
        for knob, value in check.differences
    ]
    assert len(names) == len(set(names))
    assert BOUND in names
    assert len(checks) < len(names)
    for check in checks:
        assert check.plan in space.values
        if len(check.differences) > 1:
            assert all(knob is None or knob.keeps in TOGETHER for knob, _ in check.differences)
            assert len(check.alone) == len(check.differences)


@pytest.mark.parametrize("ranks", [1, 2])
def test_plans_of_one_number_of_ranks_are_checked_at_it(ranks: int) -> None:
    checks = list(checks_of(cputune.search_space(FACTS, JOB, fix={"ranks": ranks})))
    assert checks
    assert all(check.plan.world_size == ranks for check in checks)


def test_each_other_number_of_ranks_is_a_start_of_its_own() -> None:
    checks = list(checks_of(cputune.search_space(FACTS, JOB)))
    counts = [
        check.plan.world_size
        for check in checks
        if [knob.name for knob, _ in check.differences if knob is not None] == ["ranks"]
    ]
    assert sorted(counts) == sorted({check.plan.world_size for check in checks} - {1})
