"""A contender's turns: how long they are, which of their steps count, and the rounds they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import pytest
from tuner.fakes import PLANS, FakeLife, FakeLivingRunner, measuring

from cputune.plan import Plan
from cputune.steps import Crashed, NoMeasurement, Step, TimeUp
from cputune.tuner.blocks import Started, TooShort, all_started, seconds_of, take_turns
from cputune.tuner.gains import Contender
from cputune.tuner.measuring import Measuring
from cputune.tuner.race import Race
from cputune.tuner.reading import Rules


def steps(*seconds: float, delayed: bool = False) -> list[Step]:
    return [Step(one, 1, delayed_seconds=one if delayed else 0.0) for one in seconds]


def dying(error: Exception, *seconds: float) -> Iterator[Step]:
    yield from steps(*seconds)
    raise error


LONE = next(plan for plan in PLANS if plan.world_size == 1)
TWO = next(plan for plan in PLANS if plan.world_size == 2)
RANKS = [replace(TWO, threads_per_process=threads) for threads in range(1, 5)]


def contender(number: int = 0, plan: Plan | None = None) -> Contender:
    role = "candidate" if number else "baseline"
    return Contender(role=role, plan=plan or RANKS[number])


@dataclass
class FakeLives:
    """A script that is begun again when it has come to its end."""

    waiting: list[FakeLife]
    begun: list[FakeLife] = field(default_factory=list)

    def __call__(self) -> FakeLife:
        self.begun.append(self.waiting.pop(0))
        return self.begun[-1]


def started(
    *lives: Iterable[Step], number: int = 0, rules: Rules | None = None, plan: Plan | None = None
) -> Started:
    """A contender of two ranks with these lives, one after the other."""
    begin = FakeLives([FakeLife(iter(life)) for life in lives])
    return Started(contender=contender(number, plan), begin=begin, rules=rules or Rules())


def begun(of: Started) -> list[FakeLife]:
    assert isinstance(of.begin, FakeLives)
    return of.begin.begun


def asked(of: Started) -> list[int]:
    return begun(of)[-1].asked


def warm(*lives: Iterable[Step]) -> Started:
    """A contender whose warm-up of three steps of half a second is over."""
    made = started(chain(steps(0.5, 0.5, 0.5), lives[0]), *lives[1:])
    made.warm_up(Race())
    assert asked(made) == [3]
    return made


class TestWarmUp:
    def test_ends_where_the_steps_are_level(self) -> None:
        one = started(steps(4.0, 2.0, 1.0, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5))
        one.warm_up(Race())
        assert asked(one) == [3, 2, 2]

    @pytest.mark.parametrize(("known", "read"), [(1, [3, 2, 2, 2, 2, 2]), (2, [4, 2, 2, 2, 2])])
    def test_has_twelve_steps_or_one_more_where_they_never_are(
        self, known: int, read: list[int]
    ) -> None:
        race = Race() if known == 1 else Race(excesses=[[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
        assert race.warmup == known
        one = started(Step(2.0**-n, 1) for n in range(99))
        one.warm_up(race)
        assert asked(one) == read

    def test_ends_with_a_failure(self) -> None:
        one = started(dying(Crashed("rank 0 died"), 1.0))
        one.warm_up(Race())
        assert (one.is_in, one.contender.out) == (False, "crashed: rank 0 died")
        assert asked(one) == [3]
        assert begun(one)[0].closed == 1

    def test_of_a_script_that_ends_in_it_is_no_warm_up(self) -> None:
        one = started(dying(NoMeasurement("train.py ended"), 1.0, 1.0))
        with pytest.raises(TooShort, match=r"train\.py ended"):
            one.warm_up(Race())


class TestTurn:
    @pytest.mark.parametrize(
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
    def test_takes_about_six_tenths_of_a_second(self, seconds: float, read: int) -> None:
        one = started(repeat(Step(seconds, 1)))
        one.warm_up(Race())
        assert one.turn() == pytest.approx(math.log(seconds))
        assert asked(one) == [3, read]

    @pytest.mark.parametrize(
        ("seconds", "read"),
        [(0.1, 1 + 6), (0.39, 1 + 2), (0.4, 1), (1.0, 1), (20.0, 1)],
    )
    def test_of_a_lone_rank_counts_with_its_first_step_soon(
        self, seconds: float, read: int
    ) -> None:
        one = started(repeat(Step(seconds, 1)), plan=LONE)
        one.warm_up(Race())
        one.turn()
        assert asked(one) == [3, read]

    def test_of_a_lone_rank_is_its_first_step(self) -> None:
        one = started(steps(0.6, 0.6, 0.6, 0.9, 0.7), plan=LONE)
        one.warm_up(Race())
        assert one.turn() == pytest.approx(math.log(0.9))

    def test_counts_without_its_first_step(self) -> None:
        one = warm(steps(9.0, 0.5, 0.7))
        assert one.turn() == pytest.approx((math.log(0.5) + math.log(0.7)) / 2)
        assert (one.turns, one.delayed, len(one.counted)) == (1, 0, 1)

    @pytest.mark.parametrize(
        ("late", "counts"),
        [([], True), ([0], True), ([3], True), ([0, 1], True), ([1, 2], False), ([1, 2, 3], False)],
    )
    def test_counts_where_most_of_its_steps_were_quiet(self, late: list[int], counts: bool) -> None:
        last = [Step(0.2, 1, delayed_seconds=0.1 * (n in late)) for n in range(4)]
        one = started(chain(steps(0.2, 0.2, 0.2), last))
        one.warm_up(Race())
        taken = one.turn()
        assert taken == (pytest.approx(math.log(0.2)) if counts else None)
        assert (one.turns, one.delayed, len(one.counted)) == (1, not counts, counts)

    def test_counts_delayed_steps_where_there_are_no_others(self) -> None:
        one = started(repeat(Step(0.5, 1, delayed_seconds=0.4)), rules=Rules(believe_delayed=True))
        one.warm_up(Race())
        assert one.turn() == pytest.approx(math.log(0.5))
        assert (one.turns, one.delayed) == (1, 1)

    def test_that_fails_is_its_last(self) -> None:
        one = warm(dying(Crashed("rank 0 died"), 0.5))
        assert one.turn() is None
        assert one.contender.out == "crashed: rank 0 died"
        assert isinstance(one.run.failure, Crashed)
        assert begun(one)[0].closed == 1

    def test_of_a_script_that_ends_is_taken_when_it_has_begun_again(self) -> None:
        end = NoMeasurement("train.py ended")
        one = warm(dying(end, 0.5, 0.5, 0.5), dying(end, *[0.4] * 6), dying(end, *[0.4] * 3))
        assert one.turn() is not None
        assert one.turn() is None
        assert begun(one)[0].closed == 1
        assert asked(one) == [3], "as much warm-up as the first time"
        assert one.turn() == pytest.approx(math.log(0.4))
        assert one.turn() is None
        assert (len(begun(one)), one.contender.out) == (3, None)
        with pytest.raises(TooShort):
            one.turn()


def in_turns(
    those: Sequence[Started], rounds: int = 99, among: Measuring | None = None
) -> list[tuple[int, float]]:
    """So many rounds; what ``is_enough`` was asked before each."""
    told: list[tuple[int, float]] = []

    def is_enough(quiet: int, seconds: float) -> bool:
        told.append((quiet, seconds))
        return len(told) > rounds

    take_turns(among or measuring(), those, [s.contender for s in those], 0, is_enough)
    return told


def quiet_in(*rounds: int) -> Iterator[Step]:
    """Steps of two seconds, a turn of which others delayed but for those of these rounds."""
    yield from steps(2.0, 2.0, 2.0)
    for number in range(99):
        yield from steps(2.0, 2.0, delayed=number not in rounds)


class TestRounds:
    @pytest.mark.parametrize(
        ("quiet", "taken"),
        [
            ((), 12),
            ((0, 1, 2), 12),
            ((11,), 12),
            (range(4), 13),
            ((0, 1, 2, 12), 12),
            ((*range(4), 12), 16),
            (range(99), 50),
        ],
    )
    def test_are_given_up_where_not_a_third_is_quiet(
        self, quiet: Sequence[int], taken: int
    ) -> None:
        one = started(quiet_in(*quiet))
        in_turns([one])
        assert len(one.contender.logs) == taken

    def test_are_enough_by_those_that_were_quiet_for_the_baseline(self) -> None:
        base, other = started(quiet_in(1, 2)), started(quiet_in(0, 1), number=1)
        told = in_turns([base, other], rounds=3)
        assert told == [(0, 0.0), (0, 8.0), (1, 16.0), (2, 24.0)]
        assert [value is None for value in other.contender.logs] == [False, False, True]

    def test_take_of_the_time_that_was_given(self) -> None:
        among, those = (
            measuring(),
            [started(quiet_in(0, 1, 2)), started(quiet_in(0, 1, 2), number=1)],
        )
        in_turns(those, rounds=3, among=among)
        assert among.timer.step_seconds == seconds_of(those) == 2 * (6.0 + 3 * 4.0)

    def test_leave_out_who_has_failed_or_was_not_started(self) -> None:
        one, spectator = started(quiet_in(0, 1, 2)), contender(1)
        failed = started(dying(Crashed("rank 0 died"), *[2.0] * 5), number=2)
        everybody = [one.contender, spectator, failed.contender]
        rounds: Callable[[int, float], bool] = lambda quiet, seconds: quiet == 3  # noqa: E731
        take_turns(measuring(), [one, failed], everybody, 7, rounds)
        assert [len(each.measured) for each in everybody] == [3, 0, 1]
        assert [each.blocks for each in everybody] == [[7] * 3] * 3
        assert [len(each.logs) for each in everybody] == [3] * 3

    def test_have_an_order_that_is_drawn_and_turned_in_the_next(self) -> None:
        order: list[int] = []

        def recorded(number: int) -> Iterator[Step]:
            for read in range(99):
                order.extend([number] * (read >= 3 and read % 2))
                yield Step(2.0, 1)

        in_turns([started(recorded(number), number=number) for number in range(4)], rounds=6)
        rounds = [order[at : at + 4] for at in range(0, 24, 4)]
        assert rounds[1::2] == [drawn[::-1] for drawn in rounds[::2]]
        assert len({tuple(drawn) for drawn in rounds}) == 6

    def test_are_written_down_in_the_order_that_they_were_taken(self) -> None:
        one, other = started(quiet_in(0, 1)), started(quiet_in(1), number=1)
        in_turns([one, other], rounds=2)
        assert sorted(turn.place for of in (one, other) for turn in of.taken) == [0, 1, 2, 3]
        assert [turn.step_seconds for turn in other.taken] == [(2.0, 2.0)] * 2
        assert [turn.delayed for turn in other.taken] == [(0, 1), ()]

    def test_are_looked_at_in_pairs(self) -> None:
        one = started(quiet_in(*range(9)))
        seen: list[int] = []
        take_turns(
            measuring(),
            [one],
            [one.contender],
            0,
            lambda quiet, seconds: quiet == 5,
            lambda: seen.append(len(one.contender.logs)),
        )
        assert seen == [2, 4]


def test_a_block_ends_with_its_block_and_when_the_time_is_up() -> None:
    runner = FakeLivingRunner(lambda number: iter(()))
    with all_started(measuring(), runner, [contender(plan=plan) for plan in PLANS[:2]]) as those:
        assert [one.contender.plan for one in those] == PLANS[:2]
        assert len(runner.alive) == 2
        raise TimeUp("while importing torch")
    assert not runner.alive


def test_who_is_started_first_can_be_turned() -> None:
    runner = FakeLivingRunner(lambda number: iter(()))
    both = [contender(plan=plan) for plan in PLANS[:2]]
    with all_started(measuring(), runner, both, last_first=True) as those:
        assert [one.contender for one in those] == both
    assert runner.begun == [1, 0]
