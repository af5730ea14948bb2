"""The confirmation: today's launch and the best plans, measured once more side by side.

A plan that is compared here is a contender; each contender but today's launch is a rival. The
processes of all contenders are alive at the same time. In a round each contender has one turn: it
takes some steps while the others stand still. What the machine does meanwhile hits all contenders
alike, so what differs between two of them within a round is due to the plans. The order of a round
is drawn by lot and reversed in the next round, so that a drift over two rounds cancels. The order
in which the processes are started is reversed from block to block, for the same reason.

A block is a number of rounds with the same processes. The first block finds the best rival, the
leader. It uses the processes of the trials where these are still alive. Each later block starts new
processes, as an emitted launch does, and compares the leader alone with the baseline. The second
block also runs the plans between the two, which shows what each change is worth. Where memory does
not hold two plans, or the runner runs one plan at a time, a block is one round of processes that
run one after the other.

There is one rule for stopping. After each round the interval of the gain is looked at; it is wide
enough to be looked at that often (``gains``). The confirmation ends when the interval gives an
answer: the leader is faster by more than ``DELTA``, or practically as fast as the baseline. It ends
without an answer when the time or the blocks are spent. Where the user gave a time, all of it may
be used; otherwise the confirmation ends soon once an answer is unlikely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, ConfirmRun, Trial
from cputune.steps import (
    Contended,
    HostLost,
    LivingRunner,
    ProfilingLiving,
    PunctualRunner,
    Runner,
)
from cputune.tuner.blocks import (
    Started,
    TooShort,
    all_started,
    take_turns,
)
from cputune.tuner.changes import Change, changes, worths
from cputune.tuner.events import ConfirmStarted, Said
from cputune.tuner.gains import (
    DELTA,
    SLOWER,
    Contender,
    Gain,
    doubt_each,
    fastest_of,
    gain_of,
    level_rounds,
    throughput_of,
)
from cputune.tuner.living import most_living
from cputune.tuner.measuring import Findings, Measuring, first_line
from cputune.tuner.profiling import profile_of_living
from cputune.tuner.race import LEAST_KEPT, Verdict
from cputune.tuner.space import SearchSpace

LEAST_ROUNDS, LEAST_LATER = 6, 3
"""The fewest rounds of the first block, and of each later one. Rounds in which other processes
delayed a step do not count."""

MOST_LATER = 5
"""The most rounds of each later block. Beyond them, new processes tell more than further rounds."""

LEAST_BLOCKS, MOST_BLOCKS = 2, 24
MOST_ALONE = 5
"""The most blocks where processes run one after the other. Each such block starts all of them."""

MOST_STEPS_ALONE = 12
"""The most steps of one run in such a block, warm-up included."""

MOST_SECONDS, PROMISING_SECONDS = 50.0, 110.0
"""The most seconds of the confirmation where the user gave no time; when they are spent, the answer
is that the gain is not known. The second number holds where a gain is in sight. ``LEAST_BLOCKS``
are run in any case."""

UNTIL_PROFILE = 0.95
"""The share of a given time after which the confirmation ends. The rest is for the profile, which
shows where the time of the best plan goes."""

OLD_STEPS = 32
"""The fewest steps that the processes of one block take, where there is time: fewer would not show
a warm-up of many steps."""

TELL_APART_SECONDS, LEAST_SECONDS = 20.0, 9.0
"""The seconds of steps in the first block where several rivals are left; and the fewest for each
plan, without which a warm-up of many steps would not show."""

CLEARLY = 0.1
"""The doubt of the interval that shows a rival to be slower than the leader. Such a rival takes no
further turns."""


Way = Callable[[Plan], Sequence[Change]]
"""The changes that lead from the baseline to a plan; none where they cannot live at once."""


class Confirmation:
    """Compares the contenders, and knows which rival leads."""

    def __init__(
        self, measuring: Measuring, baseline: Contender, rivals: Sequence[Contender]
    ) -> None:
        self._measuring = measuring
        self.baseline = baseline
        self.rivals = list(rivals)
        self._between: tuple[Contender, ...] = ()
        self._begun = measuring.timer.used_seconds

    @property
    def _noise(self) -> float:
        return self._measuring.race.noise.deviation

    def side_by_side(
        self,
        runner: LivingRunner,
        way: Way = lambda plan: (),
        fresh: LivingRunner | None = None,
    ) -> None:
        """Measure rounds until the gain of the leader is sure or the time is up.

        Afterwards the findings hold what each change on the way to the leader is worth, and where
        the time of the best plan goes. ``fresh`` is the runner that starts the processes of the
        later blocks, where that is another one. Raises TooShort where a script trains to its end
        before its first turn is over.
        """
        for one in (runner, fresh or runner):
            if isinstance(one, PunctualRunner):
                one.keep_to(partial(self._measuring.timer.left, 1.0))
        self.tell_apart(runner)
        self.confirm_leader(runner, fresh or runner, way)

    def one_after_another(self, runner: Runner) -> None:
        """Do the same where no two plans can live at once: each round starts new processes."""
        everybody = (self.baseline, *self.rivals)
        for block in range(MOST_ALONE):
            racing = [one for one in everybody if one.out is None]
            first = block % len(racing) if racing else 0
            logs = {}
            for contender in racing[first:] + racing[:first]:
                if self.is_over:
                    break
                logs[contender.plan] = self._measuring.confirm_run(
                    runner, block, contender, self._verdict
                )
            for contender in everybody:
                contender.add(block, logs.get(contender.plan))
            level_rounds(everybody)
            self._let_the_slower_sit_out()
            leads = self._leader()
            answered = leads is not None and leads[1].answer != "undecided"
            if self.is_over or (answered and block + 1 >= LEAST_BLOCKS):
                return

    def _verdict(self, logs: Sequence[float]) -> Verdict:
        """Whether a plan that runs alone has taken enough steps after its warm-up."""
        race = self._measuring.race
        now = race.estimate(logs)
        done = now.level and min(len(now.kept), len(logs) - race.warmup) >= LEAST_KEPT
        return "enough" if done or len(logs) >= MOST_STEPS_ALONE else "more"

    def tell_apart(self, runner: LivingRunner) -> None:
        """Run the first block: the baseline and all rivals."""
        if not self.is_over:
            self._block(runner, 0, (self.baseline, *self.rivals))

    def confirm_leader(self, runner: LivingRunner, fresh: LivingRunner, way: Way) -> None:
        """Run the later blocks: baseline and leader; in the first also the plans between them."""
        leads = self._leader()
        if self.is_over or leads is None:
            return
        leader, gain = leads
        found = way(leader.plan) if gain.mean > max(DELTA, gain.half_width / 3) else ()
        self._between = tuple(Contender(role="candidate", plan=on.plan) for on in found[:-1])
        for one in self._between:
            for _ in self.baseline.logs:
                one.add(0)  # they had no part in the first block
        for block in range(1, MOST_BLOCKS):
            if self.is_over or self._is_answered(leader, block):
                break
            between = self._between if block == 1 else ()
            whose = fresh if block % 2 else runner
            self._block(whose, block, (self.baseline, leader, *between), leader)
            if leader.out is None:  # the choice is made; what follows is no new one
                for rival in self.rivals:
                    if rival is not leader and rival.out is None:
                        rival.out = SLOWER
        findings, whole = self._measuring.findings, self._gain(leader)
        if whole is not None and whole.settles:
            findings.notes.append(
                f"{leader.plan.describe()} still got faster or slower when it was last measured: "
                "in a long run its speed may be another."
            )
        if not found or leader.out is not None or whole is None:
            return
        each = worths(found, (self.baseline, *self._between, leader), self._noise)
        product = math.fsum(math.log(one.speedup.ratio) for one in each)
        if whole.low <= product <= whole.high:
            findings.worth = each
            return
        together = whole.speedup
        findings.notes.append(
            f"What each change is worth is not separable: their product is {math.exp(product):.2f},"
            f" and together they are worth {together.ratio:.2f} ({together.low:.2f} to "
            f"{together.high:.2f})."
        )

    def _is_answered(self, leader: Contender, blocks: int) -> bool:
        """Whether measuring can end: the answer is there, cannot be had, or takes too long."""
        gain = None if leader.out is not None else self._gain(leader)
        if gain is None:
            return True
        if blocks < LEAST_BLOCKS or gain.answer == "faster":
            return blocks >= LEAST_BLOCKS
        spent = self._measuring.timer.used_seconds - self._begun
        if gain.answer == "undecided" and self._measuring.timer.given:
            return self._measuring.timer.up(UNTIL_PROFILE)
        no_from_young = gain.answer == "same" and max(leader.ages) < OLD_STEPS
        promising = gain.settles or no_from_young or gain.mean > gain.half_width / 2
        return spent > (PROMISING_SECONDS if promising else MOST_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether nobody is left to compare, or the time is up."""
        racing = [rival for rival in self.rivals if rival.out is None]
        return not racing or self.baseline.out is not None or self._measuring.timer.up(1.0)

    def _block(
        self,
        runner: LivingRunner,
        block: int,
        racing: Sequence[Contender],
        leader: Contender | None = None,
    ) -> None:
        """Start new processes, let them warm up, and measure rounds until that is enough.

        In the first block the leader is not known yet. A block with plans between baseline and
        leader takes as many rounds as the first one, since it has to tell what each change is
        worth.
        """
        alone = len(racing) == 2

        def is_enough(quiet: int, seconds: float) -> bool:
            if self.is_over:
                return True
            if leader is None:
                left = sum(rival.out is None for rival in self.rivals)
                known = left < 2 and seconds > LEAST_SECONDS * len(racing)
                return quiet >= LEAST_ROUNDS and (known or seconds > TELL_APART_SECONDS)
            least, most = (LEAST_LATER, MOST_LATER) if alone else (LEAST_ROUNDS, LEAST_ROUNDS)
            if quiet >= least and self._is_answered(leader, block + 1):
                return True
            gain = self._gain(leader)
            settles = gain is not None and gain.settles
            old = block == 1 or max(leader.ages) >= OLD_STEPS
            return quiet >= most and old and not settles

        last_first = block % 2 == 1
        with all_started(self._measuring, runner, racing, last_first=last_first) as started:
            take_turns(
                self._measuring,
                started,
                (self.baseline, *self.rivals, *self._between),
                block,
                is_enough,
                self._let_the_slower_sit_out,
            )
            if leader is not None and self._is_answered(leader, block + 1):
                self._look_where_time_goes(started, leader)
        for one in started:
            if not any(one.contender is between for between in self._between):
                self._write_down(block, one)

    def _look_where_time_goes(self, started: Sequence[Started], leader: Contender) -> None:
        """Profile the plan that will be recommended, in the processes that were measured last."""
        gain = None if leader.out is not None else self._gain(leader)
        best = leader if gain is not None and gain.low > 0 else self.baseline
        living = next((one.living for one in started if one.contender is best and one.is_in), None)
        if isinstance(living, ProfilingLiving) and not self._measuring.timer.up(1.0):
            self._measuring.on_event(Said(text="looking where the time of the best plan goes"))
            self._measuring.findings.profile = profile_of_living(living, best.plan)

    def _leader(self) -> tuple[Contender, Gain] | None:
        """The rival that is fastest so far; None where none was measured beside the baseline."""
        return fastest_of(self.baseline, self.rivals, self._noise)

    def _gain(self, rival: Contender) -> Gain | None:
        return gain_of(self.baseline, rival, self._noise, doubt=doubt_each(self.rivals))

    def _let_the_slower_sit_out(self) -> None:
        leads = self._leader()
        if leads is None:
            return
        for rival in self.rivals:
            if rival.out is not None:
                continue
            behind = gain_of(rival, leads[0], self._noise, doubt=CLEARLY)
            if behind is not None and behind.low > 0:
                rival.out = SLOWER

    def _write_down(self, block: int, one: Started) -> None:
        """Write down what this block has shown of a contender's speed."""
        findings, contender, reason = self._measuring.findings, one.contender, one.run.why
        findings.turns += one.turns
        findings.delayed_turns += one.delayed
        rounds = zip(contender.logs, contender.blocks, strict=True)
        logs = [log for log, at in rounds if at == block and log is not None]
        rate = throughput_of(logs or one.counted, self._noise) if one.counted else None
        if rate is None and reason is None:
            reason = "not measured: the comparison ended before"
            if one.delayed:
                reason = "contended: other processes delayed its steps"
        findings.confirm_runs.append(
            ConfirmRun(
                round=block,
                plan=contender.plan,
                role=contender.role,
                samples_per_second=rate,
                reason=reason,
                turns=len(one.counted),
                taken=tuple(one.taken),
            )
        )
        self._measuring.on_event(findings.confirm_runs[-1])


LEAST_ALIVE = 2
LEAST_LEVEL = 2
"""The fewest steps after the warm-up for a trial that was cut short to be measured again."""
MOST_RIVALS = 4
"""How many rivals the first block compares. With three, the worst twentieth of the choices reached
0.90 of the optimum on a machine that wanders by 10 %; now they reach 0.95."""
DEAR_START_SECONDS = 30.0
"""Where a start takes longer than this, no plan is started to learn what each change is worth: that
would cost more than all turns of a block."""
NEAR = 0.1
"""How far (log) a plan may lie behind the best trial and still be the fastest: the machine may have
wandered by as much between their trials."""

Belief = Mapping[Plan, tuple[float, float]]
"""For each plan, mean and standard deviation of the log of its time per sample."""


def confirm_best(
    measuring: Measuring,
    space: SearchSpace,
    belief: Belief,
    runner: Runner,
    fresh_runner: Callable[[], AbstractContextManager[Runner]],
) -> None:
    """Measure today's launch and the best plans side by side; the findings hold the rounds.

    ``runner`` is the runner of the trials, whose best processes are still alive. ``fresh_runner``
    opens a runner that starts new processes. Nothing is measured where there are no two plans to
    compare.
    """
    findings = measuring.findings
    ran = [t.plan for t in findings.trials if may_be_the_best(t) and not t.plan.as_found]
    base = _today(findings)
    if base is None and ran:  # the first plan that ran stands in for a launch that does not
        base = ran[0]
        findings.notes += [
            f"The launch of today does not run ({first.kind}: {first_line(first.reason)}); "
            f"the speed-up is over {base.describe()} instead."
            for first in findings.trials
            if first.plan.as_found
        ]
    ranked = sorted((plan for plan in ran if plan != base), key=lambda plan: belief[plan][0])
    if base is None or not ranked:
        return
    dear = measuring.start_seconds >= DEAR_START_SECONDS
    if dear:
        findings.notes.append(
            f"A start takes {measuring.start_seconds:.0f} s, so no plan was started to tell "
            "what each change is worth."
        )
    alive = most_living(measuring.facts, findings.trials)
    in_rounds = ranked[: 1 if dear else 2]  # each round starts all of them anew
    with fresh_runner() as fresh:
        together = alive >= LEAST_ALIVE and isinstance(fresh, LivingRunner)
        chosen = _promising(ranked, belief)[: alive - 1] if together else in_rounds
        measuring.on_event(ConfirmStarted(plans=(base, *chosen)))
        measuring.living.only((base, *chosen) if together else ())
        compared = _compared(measuring, base, chosen)
        try:
            if together and isinstance(runner, LivingRunner) and isinstance(fresh, LivingRunner):
                way = partial(on_the_way, space, base, 0 if dear else alive)
                compared.side_by_side(runner, way, fresh)
        except TooShort:  # to warm up and take turns, but its runs can be measured whole
            together = False
            compared = _compared(measuring, base, in_rounds)
        if not together:
            measuring.living.close()
            compared.one_after_another(fresh)
    findings.baseline, findings.rivals = compared.baseline, compared.rivals


def _compared(measuring: Measuring, base: Plan, plans: Sequence[Plan]) -> Confirmation:
    rivals = [Contender(role="candidate", plan=plan) for plan in plans]
    return Confirmation(measuring, Contender(role="baseline", plan=base), rivals)


def may_be_the_best(trial: Trial) -> bool:
    """Whether a trial has shown enough of its plan for the plan to be measured again.

    It ran to its end; or it was cut short by the time, had not lost, and its last steps were level.
    """
    level = trial.steps - trial.delayed_steps - trial.warmup_steps
    return trial.state == COMPLETED or (trial.cut_short and level >= LEAST_LEVEL)


def on_the_way(space: SearchSpace, today: Plan, alive: int, best: Plan) -> tuple[Change, ...]:
    """The changes from today's launch to this plan, where all plans on the way can live at once."""
    way = changes(space, today, best)
    return way if len(way) < alive else ()


def _promising(ranked: Sequence[Plan], belief: Belief) -> list[Plan]:
    """The plans that may be the fastest, of those that ran; the best first."""
    best, _ = belief[ranked[0]]
    return [
        plan
        for plan in ranked[:MOST_RIVALS]
        if belief[plan][0] - best < max(NEAR, 2 * belief[plan][1])
    ]


def _today(findings: Findings) -> Plan | None:
    """Today's launch, unless its trial has failed."""
    tried = [trial for trial in findings.trials if trial.plan.as_found]
    chance = (Contended.kind, HostLost.kind)  # it may run well another time
    if any(trial.state == FAILED and trial.kind not in chance for trial in tried):
        return None
    return next((trial.plan for trial in tried), None)


PROFILE_STEPS = 6
"""About how many steps the profile of the best plan takes."""
