"""The last word: today's launch and the best plans, alive side by side, a few steps each in turn.

Every contender has processes that stand still while the others have their turns. What the
machine does in the meantime hits all alike, so the difference within a round is the plans'.
The order of a round is drawn, and turned for the next one: what drifts in two rounds cancels.

Two sittings, each with new processes: in the first the rivals are told apart, in the second
the leader alone is set against the baseline. So what one process of a plan differs by from
the next is seen, and is in the interval.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial

from cputune.result import ConfirmRun
from cputune.steps import LivingRunner, PunctualRunner, TimeUp
from cputune.tuner.confirm import SLOWER, Contender, doubt_each, gain_of, throughput_of
from cputune.tuner.measuring import Measuring
from cputune.tuner.paired import Gain
from cputune.tuner.seat import Seat, seconds_of

SITTINGS = 2
LEAST_ROUNDS = 6
"""Of a sitting, delayed ones not counted; fewer have no interval by ranks."""

MOST_ROUNDS = 30
"""Of a sitting, the delayed ones too."""

MOST_SECONDS = (30.0, 45.0)
"""Of steps in each sitting, where it has its least rounds."""

GIVEN_UP = 6
"""After so many rounds a sitting ends in which hardly one was quiet."""

NARROW = 0.025
"""Half-width of the speed-up's interval (log) at which it is narrow enough; a tenth of
the gain will do too."""

CLEARLY = 0.01
"""Doubt at which a rival is slower than the leader, and sits out."""


def side_by_side(
    measuring: Measuring, runner: LivingRunner, baseline: Contender, rivals: Sequence[Contender]
) -> None:
    """Fill the contenders' rounds, until the leader's gain is sure or the time is up."""
    if isinstance(runner, PunctualRunner):
        runner.keep_to(partial(measuring.timer.left, 1.0))
    match = _Match(measuring, baseline, rivals)
    for sitting in range(SITTINGS):
        if match.is_over:
            return
        match.sit(sitting, runner)


class _Match:
    """The contenders, and who of them leads."""

    def __init__(
        self, measuring: Measuring, baseline: Contender, rivals: Sequence[Contender]
    ) -> None:
        self._measuring = measuring
        self._baseline = baseline
        self._rivals = tuple(rivals)

    @property
    def is_over(self) -> bool:
        """Whether there is nobody left to compare, or no time."""
        racing = [rival for rival in self._rivals if rival.out is None]
        return not racing or self._baseline.out is not None or self._measuring.timer.up(1.0)

    def sit(self, sitting: int, runner: LivingRunner) -> None:
        """One sitting: new processes, their warm-up, and rounds until that is enough."""
        rivals = [rival for rival in self._rivals if rival.out is None]
        if sitting:
            rivals = [self._leader() or rivals[0]]
        seats: list[Seat] = []
        with ExitStack() as held, suppress(TimeUp):
            for contender in (self._baseline, *rivals):
                living = held.enter_context(closing(runner.living(contender.plan)))
                rules = self._measuring.rules(contender.plan)
                seats.append(Seat(contender=contender, living=living, rules=rules))
            for seat in seats:
                seat.warm_up(self._measuring.race)
            self._measuring.timer.step_seconds += seconds_of(seats)
            self._take_turns(sitting, seats)
        for seat in seats:
            self._book(sitting, seat)

    def _take_turns(self, sitting: int, seats: Sequence[Seat]) -> None:
        order, begun = random.Random(sitting), seconds_of(seats)
        turned = list(seats)
        for done in range(MOST_ROUNDS):
            if self.is_over or self._is_enough(sitting, done, seconds_of(seats) - begun):
                return
            turned = turned[::-1] if done % 2 else order.sample(seats, len(seats))
            self._round(sitting, [seat for seat in turned if seat.is_in])
            if done % 2:
                self._let_the_slower_sit_out()

    def _round(self, sitting: int, seats: Sequence[Seat]) -> None:
        before = seconds_of(seats)
        taken = {id(seat.contender): seat.turn() for seat in seats}
        self._measuring.timer.step_seconds += seconds_of(seats) - before
        for contender in (self._baseline, *self._rivals):
            contender.logs.append(taken.get(id(contender)))
            contender.sittings.append(sitting)

    def _is_enough(self, sitting: int, done: int, seconds: float) -> bool:
        leader = self._leader()
        gain = None if leader is None else self._gain(leader)
        quiet = sum(
            log is not None
            for log, number in zip(self._baseline.logs, self._baseline.sittings, strict=True)
            if number == sitting
        )
        if done >= GIVEN_UP and 3 * quiet < done:
            return True
        if gain is None or quiet < LEAST_ROUNDS:
            return False
        wanted = max(NARROW * (SITTINGS - sitting) ** 0.5, 0.1 * abs(gain.mean))
        return gain.half_width <= wanted or seconds > MOST_SECONDS[sitting]

    def _leader(self) -> Contender | None:
        """The rival that is fastest so far; None where none was measured beside the baseline."""
        gains = {
            index: gain.mean
            for index, rival in enumerate(self._rivals)
            if rival.out is None and (gain := self._gain(rival)) is not None
        }
        return self._rivals[max(gains, key=lambda index: gains[index])] if gains else None

    def _gain(self, rival: Contender) -> Gain | None:
        noise = self._measuring.race.noise.deviation
        return gain_of(self._baseline, rival, noise, doubt=doubt_each(self._rivals))

    def _let_the_slower_sit_out(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        for rival in self._rivals:
            if rival is leader or rival.out is not None:
                continue
            behind = gain_of(rival, leader, self._measuring.race.noise.deviation, doubt=CLEARLY)
            if behind is not None and behind.low > 0:
                rival.out = SLOWER

    def _book(self, sitting: int, seat: Seat) -> None:
        """Write down what this sitting has said of a contender's speed."""
        findings, contender = self._measuring.findings, seat.contender
        findings.turns += seat.turns
        findings.delayed_turns += seat.delayed
        rate = None
        if seat.counted:
            rate = throughput_of(seat.counted, self._measuring.race.noise.deviation)
        failure = seat.run.failure
        reason = None if failure is None else f"{failure.kind}: {failure}"
        if rate is None and reason is None:
            reason = "contended: other processes delayed its steps"
        findings.confirm_runs.append(
            ConfirmRun(
                round=sitting,
                plan=contender.plan,
                role=contender.role,
                samples_per_second=rate,
                reason=reason,
                turns=len(seat.counted),
            )
        )
        self._measuring.on_event(findings.confirm_runs[-1])
