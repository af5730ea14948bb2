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

There is one rule for stopping. After each block from the second on the interval of the gain is
looked at. The confirmation ends when the leader is faster by more than ``DELTA``, or practically as
fast as the baseline. It ends without an answer when the time or the blocks are spent. Where the
user gave a time, all of it may be used; otherwise it ends soon once an answer is unlikely.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

from cputune.errors import CputuneError
from cputune.plan import Plan
from cputune.result import COMPLETED, FAILED, LEAST_BLOCKS, ConfirmRun, Trial, Turn
from cputune.steps import (
    Contended,
    Crashed,
    HostLost,
    Living,
    LivingRunner,
    NoMeasurement,
    ProfilingLiving,
    Runner,
    Step,
    TimeUp,
    TrialError,
)
from cputune.tuner.changes import Change, changes, worths
from cputune.tuner.events import ComparisonSoFar, ConfirmStarted, Said
from cputune.tuner.gains import (
    DELTA,
    SLOWER,
    Contender,
    Gain,
    blocks_of,
    doubt_each,
    fastest_of,
    gain_of,
    level_rounds,
    throughput_of,
)
from cputune.tuner.measuring import Findings, LivingTrial, Measuring, first_line, most_living
from cputune.tuner.profile import profile_of_living
from cputune.tuner.race import LEAST_KEPT, Race, Verdict
from cputune.tuner.reading import Rules, Run, SizedStep, take, turn_of
from cputune.tuner.space import SearchSpace

TURN_SECONDS = 0.6
"""About how long the steps of a turn last that count: much less than it takes the machine to change
its speed, much more than it takes to stop one plan and let the next go on."""

MOST_COUNTED = 8
TWICE_SECONDS = 1.0
"""A turn counts at least two steps where a step is shorter than this and the first step after a
pause does not count.

Where the first step counts too, one is enough. The machine is much the same half a second later and
another one three seconds later, so rounds of one step tell 1.7 times as much in the same time as
rounds of three.
"""

LONG_STEP_SECONDS = 3.0
LONE_STEP_SECONDS = 0.4
"""Where a step takes longer than this, the first one after a pause counts too; the second number is
for a plan of one rank. Ranks that wake up wait for each other: their first step takes 5 to 15 %
longer. A lone rank has cold caches: a first step of 0.7 s took 0.8 % longer (+-0.7 %, 258 turns of
18 processes), one of 0.47 s 1.2 % (+-0.9 %, 80 turns). That is at most some six milliseconds, which
its rivals need too."""

MOST_WARMUP = 12
AWAKE_STEPS = 2
"""The most warm-up steps of new processes; and those of processes that were warm and have stood
still since: one that is slow after the pause, and another one."""


MOST_ROUNDS, GIVEN_UP = 50, 12
"""The most rounds of a block; and after how many it ends if others delayed nearly all of them."""

LEAST_ROUNDS, LATER_ROUNDS, OLD_STEPS = 6, 4, 30
"""The rounds of the first block, at least, and of each later one. The first goes on until its
processes have taken ``OLD_STEPS``, for a long warm-up shows there. ``benchmarks/aa.py`` shows that
new processes tell more than further rounds."""

MOST_BLOCKS, MOST_ALONE = 24, 5
"""The most blocks; and the most where processes run one after the other, all anew in each."""

MOST_STEPS_ALONE = 12
"""The most steps of one run in such a block, warm-up included."""

MOST_SECONDS, PROMISING_SECONDS = 60.0, 110.0
"""The most seconds of the confirmation where the user gave no time: then the gain is not known.
The second number holds where a gain is in sight. ``LEAST_BLOCKS`` are run in any case."""

UNTIL_PROFILE = 0.95
"""The share of a given time after which the confirmation ends. The rest is for the profile, which
shows where the time of the best plan goes."""

TELL_APART_SECONDS = 20.0
"""The seconds of steps in the first block where several rivals are left."""

CLEARLY = 0.1
"""The doubt of the interval that shows a rival to be slower than the leader. Such a rival takes no
further turns."""


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

PROFILE_STEPS = 6
"""About how many steps the profile of the best plan takes."""

Belief = Mapping[Plan, tuple[float, float]]
"""For each plan, mean and standard deviation of the log of its time per sample."""

Way = Callable[[Plan], Sequence[Change]]
"""The changes that lead from the baseline to a plan; none where they cannot live at once."""


class TooShort(Exception):  # noqa: N818
    """A script trains to its end before its warm-up and one turn are over."""


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Processes that could not be started: their first turn raises why."""

    failure: TrialError

    def turn(self, steps: int) -> Sequence[Step]:
        """Raise what was wrong."""
        raise self.failure

    def close(self) -> None:
        """Nothing runs."""


class Started:
    """The processes of a contender in one block, and what was read of them.

    ``turns`` counts the turns, ``delayed`` those that other processes delayed. ``counted`` holds
    each remaining turn as its median log of seconds per sample. ``taken`` are the steps of each
    turn.
    """

    def __init__(
        self,
        contender: Contender,
        begin: Callable[[], Living],
        rules: Rules,
        kept: LivingTrial | None = None,
    ) -> None:
        """``begin`` starts its processes, again too where a script has trained to its end.

        ``kept`` are the processes of its trial, which are warm already.
        """
        self.contender, self.rules, self.run = contender, rules, Run()
        self.turns = self.delayed = 0
        self.counted: list[float] = []
        self.taken: list[Turn] = []
        self._begin = begin
        self._is_warm = self.was_kept = kept is not None
        self._steps_before = self._turns_of_this_life = self._warmup = 0
        self._step_seconds = TWICE_SECONDS
        if kept is None:
            self.living = self._start()
        else:
            self.living, read = kept.living, kept.run
            self._turns_of_this_life, self._steps_before = 1, read.steps
            self.run = Run(losses=list(read.losses), sizes=list(read.sizes))

    def _start(self) -> Living:
        """Its processes; where they cannot be started, such as tell that in their first turn."""
        try:
            return self._begin()
        except TrialError as failure:
            return Unstarted(failure)

    @property
    def age(self) -> int:
        """How many steps its processes have taken."""
        return self._steps_before + self.run.steps

    def close(self) -> None:
        """End its processes."""
        self.living.close()

    @property
    def is_in(self) -> bool:
        """Whether the contender is still being compared."""
        return self.contender.out is None

    def warm_up(self, race: Race) -> None:
        """Take the first steps, until they are level. Raises TooShort."""
        usual = race.warmup + 2
        self._read(AWAKE_STEPS if self._is_warm else usual)
        while self.is_in and self.run.steps < MOST_WARMUP:
            if self.run.logs and race.estimate(self.run.logs).level:
                break
            self._read(2)
        self._warmup = max(usual, self.run.steps)

    def turn(self, place: int) -> float | None:
        """Take one turn, the one at this place of all in the block; its log seconds per sample.

        None where other processes delayed the turn, it failed, or the script came to its end.
        Raises TooShort.
        """
        lone, begun = self.contender.plan.world_size == 1, len(self.run.trace)
        skipped, counted = steps_of_turn(self._step_seconds, lone=lone)
        taken = self._read(skipped + counted)[skipped:]
        trace = self.run.trace[begun:]
        self.taken.append(turn_of(place, trace))
        if not self.is_in:
            return None
        self._turns_of_this_life += bool(taken)
        self.turns += 1
        late = sum(delayed for _, delayed in trace[skipped : skipped + len(taken)])
        self.delayed += 2 * late >= counted
        steps = [step for step in taken if step is not None]
        if 2 * len(steps) <= counted:
            return None
        self.contender.steps[len(self.contender.logs)] = steps
        self.counted.append(median([log for log, _ in steps]))
        return self.counted[-1]

    def _read(self, steps: int) -> list[SizedStep | None]:
        """Read so many steps; None for one that does not count. The contender is out on failure."""
        taken: list[SizedStep | None] = []
        try:
            for step in self.living.turn(steps):
                before = len(self.run.counted)
                take(self.run, step, self.rules)
                counts = len(self.run.counted) > before
                if counts:
                    self._step_seconds = step.seconds
                taken.append(self.run.counted[-1] if counts else None)
        except NoMeasurement as end:
            self._begin_again(end)
        except TrialError as failure:
            self._fall(failure)
        except (KeyboardInterrupt, CputuneError, TimeUp):
            raise
        except Exception as error:
            self._fall(Crashed(f"{type(error).__name__}: {error}"))
        self.contender.sizes = max(self.contender.sizes, list(self.run.sizes), key=len)
        return taken

    def _fall(self, failure: TrialError) -> None:
        self.run.failure = failure
        self.contender.out = self.run.why
        with suppress(Exception):
            self.living.close()

    def _begin_again(self, end: NoMeasurement) -> None:
        if not self._turns_of_this_life:
            raise TooShort(str(end)) from end
        self.living.close()
        self.living = self._start()
        self._turns_of_this_life, self._steps_before = 0, -self.run.steps
        self.run.sizes.clear()
        self._read(self._warmup)


def steps_of_turn(step_seconds: float, *, lone: bool) -> tuple[int, int]:
    """How many steps of a turn do not count, and how many do, where a step takes so long.

    ``lone`` is a plan of one rank.
    """
    skipped = int(step_seconds < (LONE_STEP_SECONDS if lone else LONG_STEP_SECONDS))
    least = 2 if skipped and step_seconds < TWICE_SECONDS else 1
    return skipped, min(max(least, round(TURN_SECONDS / step_seconds)), MOST_COUNTED)


def seconds_of(started: Sequence[Started]) -> float:
    """The seconds that all steps of these contenders have taken so far."""
    return sum(one.run.step_seconds for one in started)


class Confirmation:
    """Compares the baseline with its rivals, and knows which of these leads."""

    def __init__(self, measuring: Measuring, baseline: Plan, rivals: Sequence[Plan]) -> None:
        self._measuring = measuring
        self.baseline = Contender(role="baseline", plan=baseline)
        self.rivals = [Contender(role="candidate", plan=plan) for plan in rivals]
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

        The first block has the baseline and all rivals, the later ones the baseline and the leader;
        the second one also has the plans between them. Afterwards the findings hold what each
        change on the way to the leader is worth, and where the time of the best plan goes.
        ``fresh`` is the runner that starts the processes of the later blocks, where that is another
        one. Raises TooShort where a script trains to its end before its first turn is over.
        """
        fresh = fresh or runner
        for one in (runner, fresh):
            self._measuring.hold_to_time(one, 1.0, together=1 + len(self.rivals))
        if not self.is_over:
            self._block(runner, 0, (self.baseline, *self.rivals))
        found: Sequence[Change] = ()
        leader: Contender | None = None
        for block in range(1, MOST_BLOCKS):
            leads = self._leader()
            if self.is_over or leads is None:
                break
            if leader is None or leader.out is not None:  # a leader that fell: the next one
                leader, gain = leads
                if block == 1 and gain.mean > max(DELTA, gain.half_width / 3):
                    found = way(leader.plan)
                    self._join(found)
            racing = (self.baseline, leader, *(self._between if block == 1 else ()))
            self._block(fresh if block % 2 else runner, block, racing, leader)
            if leader.out is None and self._is_answered(leader):
                break
        if leader is not None:
            self._say_what_it_is_worth(leader, found)

    def _join(self, way: Sequence[Change]) -> None:
        """Let the plans between the baseline and the leader take part in the second block."""
        self._between = tuple(Contender(role="candidate", plan=on.plan) for on in way[:-1])
        for between in self._between:
            for _ in self.baseline.logs:
                between.add(0)  # they had no part in the first block

    def _say_what_it_is_worth(self, leader: Contender, way: Sequence[Change]) -> None:
        findings, whole = self._measuring.findings, self._gain(leader)
        if whole is not None and whole.settles:
            findings.notes.append(
                f"{leader.plan.describe()} still got faster or slower when it was last measured: "
                "in a long run its speed may be another."
            )
        if not way or leader.out is not None or whole is None:
            return
        each = worths(way, (self.baseline, *self._between, leader), self._noise)
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

    def _is_answered(self, leader: Contender) -> bool:
        """Whether measuring can end: the answer is there, cannot be had, or takes too long."""
        gain = self._gain(leader)
        if gain is None or leader.out is not None:
            return True
        if len(blocks_of(leader)) < LEAST_BLOCKS:
            return False
        if gain.answer != "undecided" and not gain.settles:
            return True
        if self._measuring.timer.given:
            return self._measuring.timer.up(UNTIL_PROFILE)
        spent = self._measuring.timer.used_seconds - self._begun
        promising = gain.settles or gain.mean > gain.half_width / 2
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
        """Start new processes, or use what is alive, and let them take turns; then end them.

        In the first block the leader is not known yet. In every second one the last contender is
        started first: of two processes of one plan the one that was started first was faster by
        0.7 % (+-0.6 %, 14 confirmations of ``benchmarks/aa.py --real``). Where the time is up the
        block ends early; turns that were taken count.
        """
        measuring, way = self._measuring, -1 if block % 2 else 1
        started: list[Started] = []
        with ExitStack() as held, suppress(TimeUp):
            for contender in racing[::way]:
                begin, rules = (
                    partial(runner.living, contender.plan),
                    measuring.rules(contender.plan),
                )
                kept = measuring.living.take(contender.plan)
                started.append(Started(contender, begin, rules, kept))
                held.enter_context(closing(started[-1]))
            self._rounds(started[::way], block, leader)
            if leader is not None and self._is_answered(leader):
                self._look_where_time_goes(started, leader)
        between = [one.plan for one in self._between]
        for one in started[::way]:
            if one.contender.plan not in between:
                self._write_down(block, one)

    def _rounds(self, started: Sequence[Started], block: int, leader: Contender | None) -> None:
        """Measure rounds until that is enough: order drawn by lot, reversed in every second round.

        Whoever has no processes here gets an entry for each round, too. Raises TooShort.
        """
        measuring, everybody = self._measuring, (self.baseline, *self.rivals, *self._between)
        for one in started:
            one.warm_up(measuring.race)
        begun = seconds_of(started)
        measuring.timer.step_seconds += begun
        order, turned, places, quiet, since = random.Random(block), [*started], count(), 0, 0
        for done in range(MOST_ROUNDS):
            given_up = done - since >= GIVEN_UP and 3 * quiet < done - since
            if given_up and not measuring.findings.shared:
                return
            if given_up:  # on a machine that is known to be busy, delayed turns count
                measuring.findings.never_quiet = True
                for one in started:
                    one.rules = measuring.rules(one.contender.plan)
                since = done
            before = seconds_of(started)
            if self._is_enough(leader, started, quiet, before - begun):
                return
            turned = turned[::-1] if done % 2 else order.sample(started, len(started))
            logs = {
                id(one.contender): (one.turn(next(places)), one.age) for one in turned if one.is_in
            }
            measuring.timer.step_seconds += seconds_of(started) - before
            quiet += logs.get(id(self.baseline), (None,))[0] is not None
            for contender in everybody:
                contender.add(block, *logs.get(id(contender), ()))
            level_rounds(everybody)
            self._tell_how_it_stands()
            if done % 2:
                self._let_the_slower_sit_out()

    def _is_enough(
        self, leader: Contender | None, started: Sequence[Started], quiet: int, seconds: float
    ) -> bool:
        """Whether a block can end, after so many quiet rounds and seconds of their steps.

        The first block, without a leader, tells the rivals apart and shows a long warm-up. A block
        with plans between baseline and leader takes as many rounds, to tell what each change is
        worth. A leader that still settles is measured on.
        """
        if self.is_over:
            return True
        if leader is None:
            left = sum(rival.out is None for rival in self.rivals)
            old = min(one.age for one in started if one.is_in) >= OLD_STEPS
            return quiet >= LEAST_ROUNDS and ((left < 2 and old) or seconds > TELL_APART_SECONDS)
        gain = self._gain(leader)
        settles = gain is not None and gain.settles
        return quiet >= (LATER_ROUNDS if len(started) == 2 else LEAST_ROUNDS) and not settles

    def _tell_how_it_stands(self) -> None:
        """Tell whoever watches how many times as fast the leader is so far."""
        leads = self._leader()
        if leads is not None:
            leader, gain = leads
            seen = gain.speedup
            told = ComparisonSoFar(
                plan=leader.plan,
                ratio=seen.ratio,
                low=seen.low,
                high=seen.high,
                pairs=seen.pairs,
            )
            self._measuring.on_event(told)

    def _look_where_time_goes(self, started: Sequence[Started], leader: Contender) -> None:
        """Profile today's launch and the leader, in the processes that were measured last."""
        findings = self._measuring.findings
        for one in started:
            if one.contender not in (self.baseline, leader) or not one.is_in:
                continue
            if isinstance(one.living, ProfilingLiving) and not self._measuring.timer.up(1.0):
                plan = one.contender.plan
                said = f"looking where the time of {plan.short()} goes"
                self._measuring.on_event(Said(text=said))
                findings.profiles[plan] = profile_of_living(one.living, plan)

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
                kept=one.was_kept,
            )
        )
        self._measuring.on_event(findings.confirm_runs[-1])


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
        compared = Confirmation(measuring, base, chosen)
        try:
            if together and isinstance(runner, LivingRunner) and isinstance(fresh, LivingRunner):
                way = partial(on_the_way, space, base, 0 if dear else alive)
                compared.side_by_side(runner, way, fresh)
        except TooShort:  # to warm up and take turns, but its runs can be measured whole
            together, compared = False, Confirmation(measuring, base, in_rounds)
        if not together:
            measuring.living.close()
            compared.one_after_another(fresh)
    findings.baseline, findings.rivals = compared.baseline, compared.rivals


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
