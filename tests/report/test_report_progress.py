"""A study while it runs, as its events tell it."""

from __future__ import annotations

import pytest
from tuner.fakes import SMALL, FakeRunner, truthful

import cputune
from cputune.report.tuning import Standing, block, elapsed
from cputune.tuner.events import (
    Disturbed,
    Event,
    Said,
    StepTaken,
    TrialEnded,
    TrialRepeated,
    TrialStarted,
    Waiting,
)


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Those of a study of seven trials."""
    told: list[Event] = []
    cputune.tune(
        SMALL.workload, facts=SMALL.facts, runner=FakeRunner(truthful()), on_event=told.append
    )
    return told


def standing_after(events: list[Event], trials: int) -> tuple[Standing, float]:
    """The standing in the middle of the trial that follows so many; each event takes a second."""
    standing, now = Standing(started=0.0), 0.0
    for event in events:
        now += 1
        standing.take(event)
        if isinstance(event, StepTaken) and standing.done == trials:
            return standing, now
    raise AssertionError("there are fewer trials")


def lines(standing: Standing, now: float, columns: int = 80) -> list[str]:
    return [line.plain for line in block(standing, now, columns)]


def test_before_the_first_trial_has_ended_there_is_only_what_goes_on(events: list[Event]) -> None:
    standing, now = standing_after(events, 0)
    shown = lines(standing, now)
    assert shown[0].split(maxsplit=2)[:2] == ["trial", "0"]
    assert shown[0].endswith("1 × 2 threads, fp32, as found")
    assert shown[1].split()[:2] == ["step", "1,"]
    assert shown[2].split() == ["time", f"{now:.0f}s"]
    assert len(shown) == 3


def test_later_it_says_which_of_how_many_the_best_beside_today_and_what_is_left(
    events: list[Event],
) -> None:
    standing, now = standing_after(events, 4)
    shown = {line[:12].strip() or "step": line[12:] for line in lines(standing, now, 140)}
    assert shown["trial 4"].startswith("5 of 7  ")
    assert standing.best is not None
    assert standing.today is not None
    ratio = SMALL.seconds(standing.today.plan) / SMALL.seconds(standing.best.plan)
    assert f"samples/s, about {ratio:.1f} × today  " in shown["best"]
    assert shown["best"].endswith(standing.best.plan.describe())
    assert shown["time"] == f"{now:.0f}s"


def test_the_confirmation_says_so_and_has_no_trial(events: list[Event]) -> None:
    standing = Standing(started=0.0, most_seconds=300.0)
    for event in events:
        standing.take(event)
    shown = lines(standing, 10.0)
    assert shown[0].startswith("confirming")
    assert " of 7" not in shown[0]
    assert shown[-1].split(maxsplit=1) == ["time", "10s, 5m 00s at most"]


@pytest.mark.parametrize("columns", [140, 80, 40, 12, 1])
def test_no_line_is_wider_than_the_terminal(events: list[Event], columns: int) -> None:
    standing, now = standing_after(events, 3)
    standing.neighbours = tuple(f"a-process-with-a-long-name-{n} 90 %" for n in range(6))
    shown = lines(standing, now, columns)
    assert all(len(line) <= max(1, columns - 1) for line in shown)
    assert len(shown) == 5


def test_who_computes_here_is_named_as_it_was_seen() -> None:
    standing = Standing(started=0.0)
    standing.take(Disturbed(neighbours=("make\x1b[2J 98 %", "a", "b", "c"), waiting=True))
    shown = lines(standing, 0.0)
    assert shown[0].split(maxsplit=1) == ["waiting", "until nobody else computes here"]
    assert shown[-1].startswith("beside you  make")
    assert shown[-1].endswith("98 %, a, b, c")
    assert "\x1b" not in shown[-1]


def test_delays_and_what_the_runner_says_are_shown() -> None:
    standing = Standing(started=0.0)
    plan = SMALL.facts and next(cputune.search_space(SMALL.facts, SMALL.workload).plans())
    standing.take(TrialStarted(number=2, plan=plan, origin="sampler"))
    standing.take(Said(text="importing torch"))
    assert "importing torch" in lines(standing, 0.0)[1]
    standing.take(StepTaken(number=2, index=2, seconds=0.4871, delayed=True))
    assert "step 3, 0.487 s  delayed by others" in lines(standing, 0.0)[1]
    standing.take(TrialRepeated(number=2, attempt=1, reason="others delayed it"))
    assert "once more: others delayed it" in lines(standing, 0.0)[1]
    standing.take(Waiting(owner="process 7 of eva"))
    assert "for process 7 of eva" in lines(standing, 0.0)[0]


def test_a_log_has_the_same_at_the_end_of_a_trials_line(events: list[Event]) -> None:
    standing = Standing(started=0.0)
    tails = []
    for event in events:
        standing.take(event)
        if isinstance(event, TrialEnded):
            tails.append(standing.tail(75.0))
    assert tails[0] == "[1m 15s]", "how many there will be is not known yet"
    assert tails[1].startswith("[2 of 7, 1m 15s, best ")
    assert tails[-1].endswith(" × today]")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (3599, "59m 59s"), (7500, "2h 05m")],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text
