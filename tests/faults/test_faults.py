"""A few of the tries of ``make faults``: nothing is lost, nothing is left."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from faults.machine import clock_jumps
from faults.outcome import Outcome
from faults.parents import LIGHT, SIGNALS, Chain
from faults.storage import cut_off, damaged, full_for_the_result, removed
from faults.struck import strike

pytestmark = [pytest.mark.slow]


@pytest.mark.matrix
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_parent_ended_at_any_moment_is_gone_on_with(
    number: signal.Signals, tmp_path: Path
) -> None:
    chain = Chain(tmp_path, LIGHT, number, Random(number), longest_seconds=6.0)
    assert [outcome.wrong for outcome in itertools.islice(chain.tries(), 3)] == [""] * 3


@pytest.mark.matrix
def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    chain = Chain(tmp_path, LIGHT, signal.SIGINT, Random(2), longest_seconds=6.0, again=True)
    assert [outcome.wrong for outcome in itertools.islice(chain.tries(), 3)] == [""] * 3


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["segfault", "daemons"])
def test_a_rank_that_goes_wrong_fails_its_trial_alone(fault: str, tmp_path: Path) -> None:
    assert strike(fault, tmp_path / "study").wrong == ""


@pytest.mark.matrix
@pytest.mark.parametrize("storage", [full_for_the_result, removed, cut_off, damaged])
def test_storage_that_fails_loses_nothing(
    storage: Callable[[Path, Random], Outcome], tmp_path: Path
) -> None:
    assert storage(tmp_path / "study", Random(1)).wrong == ""


@pytest.mark.matrix
def test_a_clock_that_jumps(tmp_path: Path) -> None:
    assert clock_jumps(tmp_path / "study", Random(1)).wrong == ""
