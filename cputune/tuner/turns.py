"""Contenders that live at once and have turns: their seats, and the rounds they take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import count

from cputune.steps import LivingRunner, TimeUp
from cputune.tuner.confirm import Contender
from cputune.tuner.measuring import Measuring
from cputune.tuner.reading import turn_of
from cputune.tuner.seat import Seat, seconds_of

MOST_ROUNDS = 50
"""The delayed ones too."""

GIVEN_UP = 12
"""After so many rounds it is over where hardly one was quiet."""


@contextmanager
def seated(
    measuring: Measuring,
    runner: LivingRunner,
    contenders: Sequence[Contender],
    *,
    last_first: bool = False,
) -> Iterator[list[Seat]]:
    """All of them started, one after the other; ended with the block.

    ``last_first`` begins at their end. Of two processes of one plan the one that was started first
    was faster by 0.7 % (+-0.6 %, 14 confirmations of ``benchmarks/aa.py --real``). Where the time
    is up the block is left, with the turns that were taken until then.
    """
    seats: list[Seat] = []
    with ExitStack() as held, suppress(TimeUp):
        for contender in contenders[::-1] if last_first else contenders:
            begin = partial(runner.living, contender.plan)
            rules = measuring.rules(contender.plan)
            seat = Seat(contender=contender, begin=begin, rules=rules)
            seats.append(held.enter_context(closing(seat)))
        yield seats[::-1] if last_first else seats


def take_turns(
    measuring: Measuring,
    seats: Sequence[Seat],
    everybody: Sequence[Contender],
    sitting: int,
    is_enough: Callable[[int, float], bool],
    after_two: Callable[[], None] = lambda: None,
) -> None:
    """Rounds, the order of each drawn, and turned in the next, until that is enough.

    ``everybody`` gets an entry for each round, also who has no seat. ``is_enough`` is asked
    before each round, with the quiet rounds and the seconds of steps so far. Raises TooShort.
    """
    for seat in seats:
        seat.warm_up(measuring.race)
    measuring.timer.step_seconds += seconds_of(seats)
    order, begun, quiet = random.Random(sitting), seconds_of(seats), 0
    turned, places = list(seats), count()
    for done in range(MOST_ROUNDS):
        given_up = done >= GIVEN_UP and 3 * quiet < done
        if given_up or is_enough(quiet, seconds_of(seats) - begun):
            return
        turned = turned[::-1] if done % 2 else order.sample(seats, len(seats))
        before = seconds_of(seats)
        taken = {id(seat.contender): _turn(seat, next(places)) for seat in turned if seat.is_in}
        measuring.timer.step_seconds += seconds_of(seats) - before
        quiet += taken.get(id(seats[0].contender)) is not None
        for contender in everybody:
            contender.logs.append(taken.get(id(contender)))
            contender.sittings.append(sitting)
        if done % 2:
            after_two()


def _turn(seat: Seat, place: int) -> float | None:
    """A turn of one seat, its steps written down."""
    begun = len(seat.run.trace)
    log = seat.turn()
    seat.taken.append(turn_of(place, seat.run.trace[begun:]))
    return log
