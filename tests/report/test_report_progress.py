"""A study while it runs, as its events tell it."""

from __future__ import annotations

from itertools import islice

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import BY_NAME, SMALL, VARIED, FakeRunner, truthful, tune

import cputune
from cputune import ComparisonSoFar, Event, Message, StepTaken, TrialEnded
from cputune.records.shared_texts import duration
from cputune.report.live_view import MOST_LINES, Standing, live_lines


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Those of a study of seven trials."""
    told: list[Event] = []
    tune(FakeRunner(truthful()), on_event=told.append, knobs=VARIED)
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


def lines(standing: Standing, now: float = 0.0, columns: int = 200) -> list[str]:
    return [line.plain for line in live_lines(standing, now, columns)]


@pytest.mark.parametrize("columns", [140, 40, 1])
def test_no_line_is_wider_than_the_terminal(events: list[Event], columns: int) -> None:
    standing, now = standing_after(events, 3)
    shown = lines(standing, now, columns)
    assert all(len(line) <= max(1, columns - 1) for line in shown)
    assert len(shown) <= MOST_LINES


def test_the_interval_is_seen_to_narrow_and_to_leave_the_one(golden: Golden) -> None:
    plan = next(cputune.search_space(SMALL.facts, SMALL.workload).plans())
    rulers = []
    for low, high in ((0.9, 1.75), (1.2, 1.9), (0.0, float("inf"))):
        standing = Standing(started=0.0)
        standing.take(ComparisonSoFar(plan=plan, ratio=1.5, low=low, high=high, pairs=6))
        rulers.append(lines(standing, columns=60)[-1])
    wide, narrow, unknown = rulers
    assert wide.index("├") < wide.index("│") < wide.index("●") < wide.index("┤")
    assert narrow.index("│") < narrow.index("├") < narrow.index("●") < narrow.index("┤")
    assert narrow.endswith(" ×2")
    golden(unknown)
    assert "inf" not in unknown


def test_the_view_keeps_to_its_lines_while_plans_are_compared(events: list[Event]) -> None:
    standing, now = standing_after(events, 6)
    plan = next(iter(standing.measured))
    rate = standing.measured[plan]
    several = cputune.search_space(BY_NAME["two-sockets"].facts, SMALL.workload).plans()
    standing.measured |= dict.fromkeys(islice(several, 20), rate)
    standing.take(ComparisonSoFar(plan=plan, ratio=1.5, low=1.2, high=1.9, pairs=6))
    standing.take(StepTaken(number=None, index=0, seconds=0.5, delayed=True))
    shown = lines(standing, now, 80)
    assert len(shown) == MOST_LINES
    assert all(len(line) < 80 for line in shown)


@every_row(
    ("seconds", "text"), [(59.4, "59 s"), (89.4, "89 s"), (300, "5 min"), (7500, "2 h 5 min")]
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_follows_a_trial_is_not_called_that_trial(events: list[Event]) -> None:
    standing = Standing(started=0.0)
    for event in events:
        standing.take(event)
        if isinstance(event, TrialEnded):
            break
    standing.take(Message(text="checking the model"))
    standing.take(Message(text="training starts"))
    assert (standing.doing, standing.detail) == ("checking the model", "training starts")
