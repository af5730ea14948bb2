"""The last word: today's launch and the best plans, alive side by side, a few steps each in turn.

Every contender has processes that stand still while the others have their turns. What the
machine does in the meantime hits all alike, so the difference within a round is the plans'.
The order of a round is drawn, and turned for the next one: what drifts in two rounds cancels.

Two sittings, each with new processes: in the first the rivals are told apart, in the second
the leader alone is set against the baseline, with the plans between the two, which show what
each change is worth. So what one process of a plan differs by from
the next is seen, and is in the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cputune.plan import Plan
from cputune.result import ConfirmRun
from cputune.steps import LivingRunner, PunctualRunner
from cputune.tuner.confirm import SLOWER, Contender, doubt_each, gain_of, throughput_of
from cputune.tuner.measuring import Measuring
from cputune.tuner.paired import Gain
from cputune.tuner.seat import Seat
from cputune.tuner.turns import seated, take_turns
from cputune.tuner.worth import Change, worths

LEAST_ROUNDS = 6
"""Of a sitting, delayed ones not counted; fewer have no interval by ranks."""

SITTINGS = 2
MOST_SECONDS = (30.0, 45.0)
"""Of steps in each sitting, where it has its least rounds."""

NARROW = 0.025
"""Half-width of the speed-up's interval (log) at which it is narrow enough; a tenth of
the gain will do too."""

CLEARLY = 0.01
"""Doubt at which a rival is slower than the leader, and sits out."""


def says_enough(gain: Gain | None, sitting: int, quiet: int, seconds: float) -> bool:
    """Whether a sitting with so many quiet rounds, and seconds of steps, says enough of a gain."""
    if gain is None or quiet < LEAST_ROUNDS:
        return False
    wanted = max(NARROW * (SITTINGS - sitting) ** 0.5, 0.1 * abs(gain.mean))
    return gain.half_width <= wanted or seconds > MOST_SECONDS[sitting]


Way = Callable[[Plan], Sequence[Change]]
"""The changes that lead from the baseline to a plan; none where they cannot live at once."""


def side_by_side(
    measuring: Measuring,
    runner: LivingRunner,
    baseline: Contender,
    rivals: Sequence[Contender],
    way: Way = lambda plan: (),
) -> None:
    """Fill the contenders' rounds, until the leader's gain is sure or the time is up.

    The findings hold what each change on the way to the leader is worth. Raises TooShort
    where a script trains to its end before it has had a turn.
    """
    if isinstance(runner, PunctualRunner):
        runner.keep_to(partial(measuring.timer.left, 1.0))
    match = _Match(measuring, runner, baseline, rivals)
    match.tell_apart()
    match.confirm_leader(way)


class _Match:
    """The contenders, and who of them leads."""

    def __init__(
        self,
        measuring: Measuring,
        runner: LivingRunner,
        baseline: Contender,
        rivals: Sequence[Contender],
    ) -> None:
        self._measuring = measuring
        self._runner = runner
        self._baseline = baseline
        self._rivals = tuple(rivals)
        self._noise = measuring.race.noise.deviation

    def tell_apart(self) -> None:
        """The first sitting: the baseline and all rivals."""
        if not self.is_over:
            self._sit(0, (self._baseline, *self._rivals))

    def confirm_leader(self, way: Way) -> None:
        """The second: the baseline, the leader, and the plans on the way between them."""
        leads = self._leader()
        if self.is_over or leads is None:
            return
        leader, gain = leads
        found = way(leader.plan) if gain.low > 0 else ()
        between = [
            Contender(role="candidate", plan=change.plan, believed=leader.believed)
            for change in found[:-1]
        ]
        for contender in between:  # they had no part in the first sitting
            contender.logs += [None] * len(self._baseline.logs)
            contender.sittings += self._baseline.sittings
        self._sit(1, (self._baseline, leader), between)
        if leader.out is None:  # the choice is made; the second sitting is no new one
            for rival in self._rivals:
                if rival is not leader and rival.out is None:
                    rival.out = SLOWER
        row = (self._baseline, *between, leader)
        if found:
            self._measuring.findings.worth = worths(found, row, self._noise)

    @property
    def is_over(self) -> bool:
        """Whether there is nobody left to compare, or no time."""
        racing = [rival for rival in self._rivals if rival.out is None]
        return not racing or self._baseline.out is not None or self._measuring.timer.up(1.0)

    def _sit(
        self, sitting: int, racing: Sequence[Contender], between: Sequence[Contender] = ()
    ) -> None:
        """New processes, their warm-up, and rounds until that is enough."""

        def is_enough(quiet: int, seconds: float) -> bool:
            leads = self._leader()
            gain = None if leads is None else leads[1]
            return self.is_over or says_enough(gain, sitting, quiet, seconds)

        with seated(self._measuring, self._runner, (*racing, *between)) as seats:
            take_turns(
                self._measuring,
                seats,
                (self._baseline, *self._rivals, *between),
                sitting,
                is_enough,
                self._let_the_slower_sit_out,
            )
        for seat in seats[: len(racing)]:
            self._book(sitting, seat)

    def _leader(self) -> tuple[Contender, Gain] | None:
        """The rival that is fastest so far; None where none was measured beside the baseline."""
        gains = [
            (rival, gain)
            for rival in self._rivals
            if rival.out is None and (gain := self._gain(rival)) is not None
        ]
        return max(gains, key=lambda pair: pair[1].mean, default=None)

    def _gain(self, rival: Contender) -> Gain | None:
        noise = self._measuring.race.noise.deviation
        return gain_of(self._baseline, rival, noise, doubt=doubt_each(self._rivals))

    def _let_the_slower_sit_out(self) -> None:
        leads = self._leader()
        if leads is None:
            return
        noise = self._measuring.race.noise.deviation
        for rival in self._rivals:
            if rival.out is not None:
                continue
            behind = gain_of(rival, leads[0], noise, doubt=CLEARLY)
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
                taken=tuple(seat.taken),
            )
        )
        self._measuring.on_event(findings.confirm_runs[-1])
