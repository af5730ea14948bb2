"""How long it takes after the search: the confirmation, what each change is worth, the profile.

Foretold from what the trials have shown; a study that is given less time ends sooner.

How many plans can live at once: their memory is all that a stopped process costs.

The last word where plans cannot live side by side: rounds of fresh processes.

Their memory does not suffice for two, or the runner runs one plan at a time. Rounds are
interleaved, so that whatever changes on the machine in the meantime hits all of them alike;
the speed-up is a mean of differences within rounds.

The last word: today's launch and the best plans, alive side by side, a few steps each in turn.

Every contender has processes that stand still while the others have their turns. What the
machine does in the meantime hits all alike, so the difference within a round is the plans'.
The order of a round is drawn, and turned for the next one: what drifts in two rounds cancels.
So is the order in which they are started, from sitting to sitting.

Blocks of rounds, each with new processes. In the first the rivals are told apart; in the others
the leader alone is set against the baseline, at first with the plans between the two, which show
what each change is worth. After each round of them it is asked whether there is an answer: faster
by more than ``DELTA``, or practically not; where the time is up before, there is none.

Who is measured again at the end of a study, and against what.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from cputune.facts import HostFacts
from cputune.memory import SPARE, room_bytes
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, ConfirmRun, Trial
from cputune.steps import Contended, HostLost, LivingRunner, PunctualRunner, Runner
from cputune.tuner.blocks import Seat, TooShort, seated, steps_of_turn, take_turns
from cputune.tuner.changes import Change, changes, worths
from cputune.tuner.events import ConfirmStarted
from cputune.tuner.gains import (
    DELTA,
    SLOWER,
    Contender,
    Gain,
    doubt_each,
    gain_of,
    throughput_of,
)
from cputune.tuner.measuring import Findings, Measuring
from cputune.tuner.race import Race, Verdict
from cputune.tuner.reading import Run
from cputune.tuner.space import SearchSpace


def room_for(facts: HostFacts, trials: Sequence[Trial]) -> int:
    """How many plans of a study can live side by side, by what the ranks of its trials held.

    Each is given what the largest of them needed. Where no rank has said what it held, the
    runner has no processes, and there is room for all.
    """
    held = max((held_bytes(trial) for trial in trials if trial.state != FAILED), default=0)
    free = [size for size in (facts.memory.available_bytes, room_bytes(facts)) if size]
    if not held or not free:
        return len(trials)
    return int(SPARE * min(free) // held)


def held_bytes(trial: Trial) -> int:
    """The most memory that the ranks of a trial held on a node, libraries counted for each."""
    return sum(int(rank.get("peak_bytes") or 0) for rank in trial.observed) // trial.plan.nodes


MOST_ROUNDS = 5

NARROW_AFRESH = 0.08
"""Half-width of the speed-up's interval (log) at which it is narrow enough; 0.4 of the
gain will do too."""

NO_GAIN = 0.02
"""A gain (log) that is not worth another round to tell it from none."""


def settled(gain: Gain) -> bool:
    """Whether more rounds of fresh processes would not change what is said."""
    if gain.high < NO_GAIN:
        return True
    return gain.low > 0 and gain.high - gain.mean <= max(NARROW_AFRESH, 0.4 * gain.mean)


def confirm(
    baseline: Contender,
    rivals: Sequence[Contender],
    race: Race,
    run: Callable[[int, Contender, Callable[[Sequence[float]], Verdict]], Run],
    *,
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Fill the contenders' rounds, the order turned in every round.

    Ends when the gain of the leader is settled. A rival that fails, or that has clearly
    lost against the other, sits out the remaining rounds.
    """
    for number in range(MOST_ROUNDS):
        racing = [one for one in (baseline, *rivals) if one.out is None]
        if len(racing) < 2 or baseline.out is not None:
            return
        turn = number % len(racing)
        wanted = 2 if _clear(baseline, racing) else 3 + number
        for contender in racing[turn:] + racing[:turn]:
            if out_of_time():
                return
            _one_run(number, contender, race, run, wanted)
        _drop_the_slower(rivals)
        leader = min((r for r in rivals if r.out is None), key=Contender.merged, default=None)
        gain = None if leader is None else gain_of(baseline, leader, race.noise.deviation)
        if (gain is not None and settled(gain)) or out_of_time():
            return


def _clear(baseline: Contender, racing: Sequence[Contender]) -> bool:
    """Whether the gain is so large that two steps a run tell it well enough.

    Where it is small, later rounds take more steps: a run costs seconds to start.
    """
    return baseline.merged() - min(one.merged() for one in racing) > 0.4


def _one_run(
    number: int,
    contender: Contender,
    race: Race,
    run: Callable[[int, Contender, Callable[[Sequence[float]], Verdict]], Run],
    wanted: int,
) -> None:
    def verdict(logs: Sequence[float]) -> Verdict:
        now = race.estimate(logs)
        done = now.level and len(now.kept) >= wanted and len(logs) >= race.warmup + wanted
        return "enough" if done or len(logs) >= 12 else "more"

    finished = run(number, contender, verdict)
    if finished.failure is not None or not finished.logs:
        contender.logs.append(None)
        if finished.failure is None:
            contender.out = "no measurement"
        elif finished.failure.kind != "contended":
            contender.out = f"{finished.failure.kind}: {finished.failure}"
        return
    contender.logs.append(race.estimate(finished.logs).center)


def _drop_the_slower(rivals: Sequence[Contender]) -> None:
    """Of two rivals, let the one sit out that is more than two deviations behind."""
    racing = [rival for rival in rivals if rival.out is None and rival.measured]
    if len(racing) != 2:
        return
    fast, slow = sorted(racing, key=Contender.merged)
    if slow.merged() - fast.merged() > 2 * math.hypot(fast.deviation, slow.deviation):
        slow.out = SLOWER


LEAST_ROUNDS, LEAST_LATER = 6, 3
"""Of the first block, and of each other, delayed ones not counted."""

MOST_LATER = 5
"""Of each other block: then new processes say more than more rounds of these."""

LEAST_BLOCKS, MOST_BLOCKS = 2, 8
MOST_SECONDS = 60.0
"""Of the confirmation: then the answer is that it is not known. It has its least blocks."""

TELL_APART_SECONDS, LEAST_SECONDS = 20.0, 6.0
"""Of steps in the first block, where several rivals are left; and of each plan at least, for a
warm-up of many steps to be seen."""

CLEARLY = 0.1
"""Doubt at which a rival is slower than the leader, and sits out."""


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
        self._begun = measuring.timer.used_seconds

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
        found = way(leader.plan) if gain.mean > max(DELTA, gain.half_width / 2) else ()
        self._between = tuple(
            Contender(role="candidate", plan=change.plan, believed=leader.believed)
            for change in found[:-1]
        )
        for contender in self._between:  # they had no part in the first sitting
            contender.logs += [None] * len(self._baseline.logs)
            contender.sittings += self._baseline.sittings
        for block in range(1, MOST_BLOCKS):
            if self.is_over or self._is_answered(leader, block):
                break
            between = self._between if block == 1 else ()
            self._sit(block, (self._baseline, leader, *between), leader)
            if leader.out is None:  # the choice is made; what follows is no new one
                for rival in self._rivals:
                    if rival is not leader and rival.out is None:
                        rival.out = SLOWER
        whole = self._gain(leader)
        if found and leader.out is None and whole is not None:
            row = (self._baseline, *self._between, leader)
            each = worths(found, row, self._noise)
            product = math.fsum(math.log(one.speedup.ratio) for one in each)
            findings = self._measuring.findings
            if whole.low <= product <= whole.high:
                findings.worth = each
            else:
                findings.notes.append(
                    "What each change is worth is not separable: their product is "
                    f"{math.exp(product):.2f}, and together they are worth "
                    f"{math.exp(whole.mean):.2f} ({math.exp(whole.low):.2f} to "
                    f"{math.exp(whole.high):.2f})."
                )

    def _is_answered(self, leader: Contender, blocks: int) -> bool:
        """Whether no more is asked: there is an answer, none can be had, or it takes too long."""
        gain = None if leader.out is not None else self._gain(leader)
        if gain is None:
            return True
        spent = self._measuring.timer.used_seconds - self._begun
        return blocks >= LEAST_BLOCKS and (gain.answer != "undecided" or spent > MOST_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether there is nobody left to compare, or no time."""
        racing = [rival for rival in self._rivals if rival.out is None]
        return not racing or self._baseline.out is not None or self._measuring.timer.up(1.0)

    def _sit(
        self, sitting: int, racing: Sequence[Contender], leader: Contender | None = None
    ) -> None:
        """New processes, their warm-up, and rounds until that is enough.

        Of the first, who leads is not known yet. One with plans on the way takes as many rounds,
        for what each change is worth.
        """
        alone = len(racing) == 2

        def is_enough(quiet: int, seconds: float) -> bool:
            if self.is_over:
                return True
            if leader is None:
                left = sum(rival.out is None for rival in self._rivals)
                known = left < 2 and seconds > LEAST_SECONDS * len(racing)
                return quiet >= LEAST_ROUNDS and (known or seconds > TELL_APART_SECONDS)
            least, most = (LEAST_LATER, MOST_LATER) if alone else (LEAST_ROUNDS, LEAST_ROUNDS)
            return quiet >= most or (quiet >= least and self._is_answered(leader, sitting + 1))

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
            reason = (
                "contended: other processes delayed its steps"
                if seat.delayed
                else "no turn: it was over before"
            )
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


LEAST_ALIVE = 2
LEAST_LEVEL = 2
"""Steps past the warm-up that a trial has made at least whose speed is worth a closer look."""
MOST_RIVALS = 4
"""With three, the worst twentieth under a wander of 10 % was at 0.90 of the optimum, now 0.95."""
NEAR = 0.1
"""So far behind the best (log) a plan may still turn out to be the fastest: the machine may
have wandered by as much between their trials."""

Belief = Mapping[Plan, tuple[float, float]]
"""Mean and standard deviation of the log time per sample of each plan."""


def confirm_best(
    measuring: Measuring,
    space: SearchSpace,
    belief: Belief,
    fresh_runner: Callable[[], AbstractContextManager[Runner]],
) -> None:
    """Measure today's launch and the two best plans side by side; the findings hold the rounds.

    Nothing is measured where there are no two plans to compare.
    """
    findings = measuring.findings
    ran = [t.plan for t in findings.trials if may_be_the_best(t) and not t.plan.as_found]
    base = _today(findings)
    if base is None and ran:
        # Today's launch does not run: the first that did stands in for it.
        base = findings.stand_in = ran[0]
    ranked = sorted((plan for plan in ran if plan != base), key=lambda plan: belief[plan][0])
    if base is None or not ranked:
        return
    baseline = Contender(role="baseline", plan=base, believed=belief[base])
    with fresh_runner() as runner:
        room = room_for(measuring.facts, findings.trials)
        if isinstance(runner, LivingRunner) and room >= LEAST_ALIVE:
            rivals = _contenders(_promising(ranked, belief)[: room - 1], belief)
            measuring.on_event(ConfirmStarted(plans=(base, *(rival.plan for rival in rivals))))
            way = partial(on_the_way, space, base, room)
            try:
                side_by_side(measuring, runner, baseline, rivals, way)
            except TooShort:  # but long enough to be measured from its first step on
                baseline = Contender(role="baseline", plan=base, believed=belief[base])
                rivals = _contenders(ranked[:2], belief)
                _in_rounds(measuring, runner, baseline, rivals)
        else:
            rivals = _contenders(ranked[:2], belief)
            measuring.on_event(ConfirmStarted(plans=(base, *(rival.plan for rival in rivals))))
            _in_rounds(measuring, runner, baseline, rivals)
        spare = [plan for plan in ranked if plan not in {rival.plan for rival in rivals}]
        while spare and all(rival.out is not None and not rival.measured for rival in rivals):
            # All fell over in a fresh process: the next best has its turn.
            findings.fallen.extend(rivals)
            rivals = _contenders([spare.pop(0)], belief)
            baseline.logs.clear()
            baseline.sittings.clear()
            _in_rounds(measuring, runner, baseline, rivals)
    findings.baseline = baseline
    findings.rivals = rivals


def may_be_the_best(trial: Trial) -> bool:
    """Whether a trial has shown enough of its plan for it to be measured again.

    It ran to its end; or it did not lose, but the time was up after some level steps.
    """
    level = trial.steps - trial.delayed_steps - trial.warmup_steps
    return trial.state == COMPLETED or (trial.cut_short and level >= LEAST_LEVEL)


def on_the_way(space: SearchSpace, today: Plan, room: int, best: Plan) -> tuple[Change, ...]:
    """The changes from today's launch to this plan, where all on the way can live at once."""
    way = changes(space, today, best)
    return way if len(way) < room else ()


def _contenders(plans: Sequence[Plan], belief: Belief) -> list[Contender]:
    return [Contender(role="candidate", plan=p, believed=belief[p]) for p in plans]


def _promising(ranked: Sequence[Plan], belief: Belief) -> list[Plan]:
    """Of the plans that ran, the best first, those that may be the fastest."""
    best, _ = belief[ranked[0]]
    return [
        plan
        for plan in ranked[:MOST_RIVALS]
        if belief[plan][0] - best < max(NEAR, 2 * belief[plan][1])
    ]


def _in_rounds(
    measuring: Measuring, runner: Runner, baseline: Contender, rivals: Sequence[Contender]
) -> None:
    out_of_time = partial(measuring.timer.up, 1.0)
    run = partial(measuring.confirm_run, runner)
    confirm(baseline, rivals, measuring.race, run, out_of_time=out_of_time)


def _today(findings: Findings) -> Plan | None:
    """Today's launch, unless it was tried and does not run."""
    tried = [trial for trial in findings.trials if trial.plan.as_found]
    chance = (Contended.kind, HostLost.kind)  # it may run well another time
    if any(trial.state == FAILED and trial.kind not in chance for trial in tried):
        return None
    return next((trial.plan for trial in tried), None)


WARMUP_STEPS = 4
"""Of a contender, before its first turn, about."""

PROFILE_STEPS = 10
"""Of the run that is profiled, those that settle among them, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds that a plan takes here from its start to its first step, and for a step."""

    start_seconds: float
    step_seconds: float


def starts_at_the_end(*, rivals: int, changes: int) -> int:
    """How many plans are started after the search at least: two blocks, and the profile."""
    return 1 + (2 + rivals + max(1, changes) if rivals else 0)


def end_seconds(pace: Pace, *, rivals: int, changes: int) -> float:
    """What comes after the search takes at most, about.

    ``rivals`` are measured beside today's launch, and then the plans of so many ``changes``
    that lead to the best of them.
    """
    profile = pace.start_seconds + PROFILE_STEPS * pace.step_seconds
    if not rivals:
        return profile
    begun = pace.start_seconds + WARMUP_STEPS * pace.step_seconds
    round_ = sum(steps_of_turn(pace.step_seconds, lone=False)) * pace.step_seconds
    first = (1 + rivals) * (begun + LEAST_ROUNDS * round_)
    second = (1 + max(1, changes)) * (begun + LEAST_ROUNDS * round_)
    return profile + max(MOST_SECONDS, first + second)
