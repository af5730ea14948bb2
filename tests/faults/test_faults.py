"""A few of the tries of ``make faults``: nothing is lost, nothing is left."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from faults.machine import clock_jumps
from faults.outcome import HEAD, Outcome, row
from faults.parents import LIGHT, SIGNALS, Chain, reached_us
from faults.storage import damaged, full_for_the_result
from faults.struck import strike
from faults.watched import told

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


@pytest.mark.parametrize("fault", ["segfault", pytest.param("daemons", marks=pytest.mark.matrix)])
def test_a_rank_that_goes_wrong_fails_its_trial_alone(fault: str, tmp_path: Path) -> None:
    assert strike(fault, tmp_path / "study").wrong == ""


@pytest.mark.matrix
@pytest.mark.parametrize("storage", [full_for_the_result, damaged])
def test_storage_that_fails_loses_nothing(
    storage: Callable[[Path, Random], Outcome], tmp_path: Path
) -> None:
    assert storage(tmp_path / "study", Random(1)).wrong == ""


@pytest.mark.matrix
def test_a_clock_that_jumps(tmp_path: Path) -> None:
    assert clock_jumps(tmp_path / "study", Random(1)).wrong == ""


def test_the_table_counts() -> None:
    some = [Outcome(), Outcome(why="x", lost=2), Outcome(left=("y",)), Outcome(tried=False)]
    line = row("a fault", some)
    assert line.split()[-4:] == ["3", "2", "2", "1"]
    untried = row("another", [Outcome(tried=False)])
    assert untried.endswith("cannot be tried here")
    assert len(line) == len(HEAD) == len(untried)


def test_a_trial_that_is_run_again_has_not_ended() -> None:
    said = "trial 0: 8 samples/s  1 × 2 threads\ntrial 1: others delayed it, so it is run again\n"
    assert told(said) == {0}


@pytest.mark.parametrize(
    ("frame", "reached"),
    [
        ('/cputune/.venv/lib/python3.12/runpy.py", line 9, in _run_code', False),
        ('/cputune/cputune/__init__.py", line 15, in <module>', False),
        ('/cputune/start.py", line 8, in <module>', False),
        ('/cputune/__init__.py", line 9, in __getattr__', True),
        ('/cputune/start.py", line 24, in main', True),
        ('/cputune/cli/__init__.py", line 3, in <module>', True),
    ],
)
def test_an_interrupt_is_excused_until_a_function_of_ours_has_run(
    frame: str, reached: bool
) -> None:
    said = f'Traceback (most recent call last):\n  File "{frame}\nKeyboardInterrupt\n'
    assert reached_us(said) is reached
