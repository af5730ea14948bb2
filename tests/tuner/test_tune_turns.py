"""A contender's turns: how long they are, and which of their steps count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import repeat

import pytest
from golden_texts import Golden
from rows import every_row
from tuner.fakes import PLANS, FakeLife

from cputune import Plan, Step
from cputune.records.steps import Crashed, NoMeasurement
from cputune.tuner.contenders import Contender
from cputune.tuner.race import Race
from cputune.tuner.reading import Rules
from cputune.tuner.turns import TWICE_SECONDS, Started, TooShort, agree_on_skipped, note_places


def steps(*seconds: float) -> list[Step]:
    return [Step(one, 1) for one in seconds]


def dying(error: Exception, *seconds: float) -> Iterator[Step]:
    yield from steps(*seconds)
    raise error


LONE = next(plan for plan in PLANS if plan.world_size == 1)
TWO = next(plan for plan in PLANS if plan.world_size == 2)


def started(life: Iterable[Step], plan: Plan = TWO, step_seconds: float = TWICE_SECONDS) -> Started:
    """A contender whose processes make these steps."""
    lives = iter([FakeLife(iter(life))])
    contender = Contender(role="candidate", plan=plan)
    return Started(contender, lives.__next__, Rules(), step_seconds=step_seconds)


class TestWarmUp:
    def test_ends_if_the_steps_are_level(self) -> None:
        one = started(steps(2.0, 1.0, 0.5, 0.45, 0.25, 0.25, 0.25, 0.25, 0.25))
        one.warm_up(Race())
        assert one.living.asked == [3, 2, 2]

    def test_of_long_steps_is_short(self) -> None:
        one = started(repeat(Step(5.0, 1)), step_seconds=5.0)
        one.warm_up(Race())
        assert one.living.asked == [1]

    @pytest.mark.parametrize(("known", "read"), [(1, [3, 2, 2, 2, 2, 2]), (2, [4, 2, 2, 2, 2])])
    def test_has_twelve_steps_or_one_more_if_they_never_are(
        self, known: int, read: list[int]
    ) -> None:
        race = Race() if known == 1 else Race(excesses=[[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
        assert race.warmup == known
        one = started(Step(2.0**-n, 1) for n in range(99))
        one.warm_up(race)
        assert one.living.asked == read

    def test_ends_with_a_failure(self) -> None:
        one = started(dying(Crashed("rank 0 died"), 1.0))
        one.warm_up(Race())
        assert (one.is_in, one.contender.out) == (False, "crashed: rank 0 died")
        assert one.living.asked == [3]
        assert one.living.closed == 1

    def test_of_a_script_that_ends_in_it_is_no_warm_up(self, golden: Golden) -> None:
        one = started(dying(NoMeasurement("train.py ended"), 1.0, 1.0))
        with golden.raises(TooShort):
            one.warm_up(Race())


class TestTurn:
    @every_row(
        ("seconds", "read"),
        [
            (0.01, 1 + 8),  # no more than eight that count
            (0.1, 1 + 6),
            (0.2, 1 + 3),
            (0.5, 1 + 2),  # two at least
            (0.99, 1 + 2),
            (1.0, 1 + 1),
            (2.99, 1 + 1),
            (3.0, 1),  # the first counts too
            (20.0, 1),
        ],
    )
    @every_row("plan", [LONE, TWO])
    def test_takes_about_six_tenths_of_a_second(
        self, plan: Plan, seconds: float, read: int
    ) -> None:
        one = started(repeat(Step(seconds, 1)), plan=plan)
        one.warm_up(Race())
        agree_on_skipped([one])
        assert one.turn(0) == pytest.approx(math.log(seconds))
        assert one.living.asked == [3, read]

    @every_row(
        ("seconds", "read"),
        [
            ((0.5, 0.2), (1 + 2, 1 + 3)),
            ((5.0, 0.9), (1 + 1, 1 + 2)),  # 2.95 s in the mean
            ((5.0, 1.0), (1, 1)),
            ((9.0, 0.2), (1, 3)),
        ],
    )
    def test_of_all_contenders_skips_as_many_steps(
        self, seconds: tuple[float, float], read: tuple[int, int]
    ) -> None:
        both = [
            started(repeat(Step(one, 1)), plan=plan)
            for one, plan in zip(seconds, (LONE, TWO), strict=True)
        ]
        for one in both:
            one.warm_up(Race())
        agree_on_skipped(both)
        for one in both:
            one.turn(0)
        assert tuple(one.living.asked[-1] for one in both) == read
        assert len({one.skipped for one in both}) == 1

    def test_that_fails_is_its_last(self, golden: Golden) -> None:
        one = started(dying(Crashed("rank 0 died"), 0.5, 0.5, 0.5, 0.5))
        one.warm_up(Race())
        assert one.living.asked == [3]
        assert one.turn(0) is None
        golden(one.contender.out)
        assert isinstance(one.run.failure, Crashed)
        assert one.living.closed == 1


class TestOrderOfStarts:
    def test_of_the_trials_is_that_the_baseline_was_first(self) -> None:
        entries = [started(repeat(Step(0.5, 1))) for _ in range(2)]
        for entry in entries:
            entry.was_kept = True
        entries[1].contender.role = "baseline"
        note_places(entries)
        assert [entry.place for entry in entries] == [0.5, -0.5]

    def test_of_one_alone_says_nothing(self) -> None:
        alone = started(repeat(Step(0.5, 1)))
        note_places([alone])
        assert alone.place is None
