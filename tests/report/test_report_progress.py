"""A study while it runs, as its events tell it."""

from __future__ import annotations

from itertools import islice

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import BY_NAME, SMALL, VARIED, FakeRunner, truthful

import cputune
from cputune import ComparisonSoFar, Event, Message, StepTaken, Trial, TrialEnded, TrialStarted
from cputune.records.result import Throughput
from cputune.records.shared_texts import duration, exactly
from cputune.report.live_view import MOST_LINES, Standing, live_lines


@pytest.fixture(scope="module")
def events() -> list[Event]:
    """Those of a study of seven trials."""
    told: list[Event] = []
    cputune.tune(
        SMALL.workload,
        facts=SMALL.facts,
        runner=FakeRunner(truthful()),
        on_event=told.append,
        knobs=VARIED,
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


def lines(standing: Standing, now: float = 0.0, columns: int = 200) -> list[str]:
    return [line.plain for line in live_lines(standing, now, columns)]


def test_it_says_what_goes_on_how_many_are_done_and_the_best_so_far(
    events: list[Event], golden: Golden
) -> None:
    standing, now = standing_after(events, 0)
    doing, detail, tail = lines(standing, now)
    golden(doing)
    assert detail.startswith("  step 1, ")
    assert tail == f"{now:.0f} s"
    standing, now = standing_after(events, 4)
    standing.most_seconds = 300.0
    doing, _, tail, *plans = lines(standing, now)
    assert doing.startswith("trial 4  ")
    assert len(plans) == len(standing.measured)
    left = f"at most {duration(300 - now)} more"
    assert tail == f"4 of 7 trials, {duration(now)}, {left}, best {standing.best:.3g} samples/s"
    for event in events:
        standing.take(event)
    assert lines(standing)[0].startswith("measuring 3 plans again")


@pytest.mark.parametrize("columns", [140, 40, 1])
def test_no_line_is_wider_than_the_terminal(events: list[Event], columns: int) -> None:
    standing, now = standing_after(events, 3)
    shown = lines(standing, now, columns)
    assert all(len(line) <= max(1, columns - 1) for line in shown)
    assert len(shown) <= MOST_LINES


def test_each_plan_has_a_bar_as_long_as_it_is_fast() -> None:
    standing = Standing(started=0.0)
    big = BY_NAME["two-sockets"]
    plans = list(islice(cputune.search_space(big.facts, big.workload).plans(), 10))
    for number, plan in enumerate(plans):
        rate = Throughput(centre=10.0 + number, low=9.0 + number, high=11.0 + number)
        trial = Trial(number=number, plan=plan, state="completed", samples_per_second=rate)
        standing.take(TrialEnded(trial=trial))
    shown = lines(standing, columns=80)[2:]
    assert len(shown) == MOST_LINES - 2
    assert [float(line.split("█")[0].split()[-1]) for line in shown] == sorted(
        (10.0 + number for number in range(10)), reverse=True
    )
    bars = [line.count("█") for line in shown]
    assert bars == sorted(bars, reverse=True)
    assert bars[0] / bars[-1] == pytest.approx(18 / 9, rel=0.05)
    assert all("▒" in line for line in shown)


def test_the_comparison_and_what_disturbs_it_are_shown(golden: Golden) -> None:
    standing = Standing(started=0.0)
    plan = next(cputune.search_space(SMALL.facts, SMALL.workload).plans())
    standing.take(ComparisonSoFar(plan=plan, ratio=1.5, low=1.2, high=1.875, pairs=6))
    standing.take(StepTaken(number=None, index=0, seconds=0.5, delayed=True))
    *_, compared, _, disturbed = lines(standing)
    golden(compared)
    golden(disturbed)


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


def test_delays_who_is_waited_for_and_what_the_runner_says_are_shown() -> None:
    standing = Standing(started=0.0)
    plan = next(cputune.search_space(SMALL.facts, SMALL.workload).plans())
    standing.take(TrialStarted(number=2, plan=plan, origin="sampler"))
    for event, said in (
        (Message(text="importing torch"), "importing torch"),
        (StepTaken(number=2, index=2, seconds=0.4871, delayed=True), "0.487 s, delayed by others"),
        (Message(text="busy: make\x1b[2J 98 %", warns=True), "busy: make\\x1b"),
    ):
        standing.take(event)
        assert said in lines(standing)[1]


@every_row(
    ("seconds", "text"), [(59.4, "59 s"), (89.4, "89 s"), (300, "5 min"), (7500, "2 h 5 min")]
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@every_row(
    ("seconds", "text"),
    [(45, "45 s"), (150, "2 min 30 s"), (360, "6 min"), (5400, "1 h 30 min"), (0, "0 s")],
)
def test_a_limit_is_not_rounded(seconds: float, text: str) -> None:
    assert exactly(seconds) == text


def test_what_follows_a_trial_is_not_called_that_trial(events: list[Event]) -> None:
    standing = Standing(started=0.0)
    for event in events:
        standing.take(event)
        if isinstance(event, TrialEnded):
            break
    standing.take(Message(text="checking the model"))
    standing.take(Message(text="training starts"))
    assert (standing.doing, standing.detail) == ("checking the model", "training starts")
