"""The last word: today's launch and the best plans, alive side by side, a few steps each in turn.

Every contender has processes that stand still while the others have their turns. What the
machine does in the meantime hits all alike, so the difference within a round is the plans'.
The order of a round is drawn, and turned for the next one: what drifts in two rounds cancels.
So is the order in which they are started, from sitting to sitting.

Sittings with new processes each: in the first the rivals are told apart, in the second the
leader alone is set against the baseline, with the plans between the two, which show what each
change is worth. So what one process of a plan differs by from the next is seen, and is in the
interval. Where that is still wide, more sittings of the two follow: more rounds of the same
processes would not narrow it.
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
MOST_SECONDS = (20.0, 20.0, 12.0, 12.0, 12.0)
"""Of steps in each sitting, where it has its least rounds. The first ``SITTINGS`` take place
whatever they show, the others where the interval is wide."""

NARROW = 0.03
"""Half-width of the speed-up's interval (log) at which it is narrow enough; a tenth of
the gain will do too."""

CLEARLY = 0.01
"""Doubt at which a rival is slower than the leader, and sits out."""


def says_enough(gain: Gain | None, sitting: int, quiet: int, seconds: float) -> bool:
    """Whether a sitting with so many quiet rounds, and seconds of steps, says enough of a gain."""
    if gain is None or quiet < LEAST_ROUNDS:
        return False
    narrow = is_narrow(gain, NARROW * max(1, SITTINGS - sitting) ** 0.5)
    return narrow or seconds > MOST_SECONDS[sitting]


def is_narrow(gain: Gain, wanted: float = NARROW) -> bool:
    """Whether an interval says what is to be known of a gain."""
    return gain.half_width <= max(wanted, 0.1 * abs(gain.mean))


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
        self._between: tuple[Contender, ...] = ()
        self._noise = measuring.race.noise.deviation

    def tell_apart(self) -> None:
        """The first sitting: the baseline and all rivals."""
        if not self.is_over:
            self._sit(0, (self._baseline, *self._rivals))

    def confirm_leader(self, way: Way) -> None:
        """The others: the baseline, the leader, and first the plans on the way between them."""
        leads = self._leader()
        if self.is_over or leads is None:
            return
        leader, gain = leads
        found = way(leader.plan) if gain.low > 0 else ()
        self._between = tuple(
            Contender(role="candidate", plan=change.plan, believed=leader.believed)
            for change in found[:-1]
        )
        for contender in self._between:  # they had no part in the first sitting
            contender.logs += [None] * len(self._baseline.logs)
            contender.sittings += self._baseline.sittings
        self._sit(1, (self._baseline, leader, *self._between), whole=bool(self._between))
        if leader.out is None:  # the choice is made; what follows is no new one
            for rival in self._rivals:
                if rival is not leader and rival.out is None:
                    rival.out = SLOWER
        for sitting in range(SITTINGS, len(MOST_SECONDS)):
            if not (self.is_over or self._is_sure(leader)):
                self._sit(sitting, (self._baseline, leader))
        row = (self._baseline, *self._between, leader)
        if found:
            self._measuring.findings.worth = worths(found, row, self._noise)

    def _is_sure(self, leader: Contender) -> bool:
        """Whether more processes would tell no more; without one quiet round they would not."""
        gain = None if leader.out is not None else self._gain(leader)
        return gain is None or is_narrow(gain)

    @property
    def is_over(self) -> bool:
        """Whether there is nobody left to compare, or no time."""
        racing = [rival for rival in self._rivals if rival.out is None]
        return not racing or self._baseline.out is not None or self._measuring.timer.up(1.0)

    def _sit(self, sitting: int, racing: Sequence[Contender], *, whole: bool = False) -> None:
        """New processes, their warm-up, and rounds until that is enough.

        A ``whole`` one takes its time also where the leader's gain is plain: what each change is
        worth is not yet.
        """

        def is_enough(quiet: int, seconds: float) -> bool:
            leads = self._leader()
            gain = None if leads is None else leads[1]
            early = whole and seconds <= MOST_SECONDS[sitting]
            return self.is_over or (not early and says_enough(gain, sitting, quiet, seconds))

        last_first = sitting % 2 == 1
        with seated(self._measuring, self._runner, racing, last_first=last_first) as seats:
            take_turns(
                self._measuring,
                seats,
                (self._baseline, *self._rivals, *self._between),
                sitting,
                is_enough,
                self._let_the_slower_sit_out,
            )
        on_the_way = set(map(id, self._between))
        for seat in seats:
            if id(seat.contender) not in on_the_way:
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
