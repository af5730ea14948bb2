"""The confirmation: the baseline and the best plans, measured once more side by side.

A plan that is compared is a contender; each contender but the baseline is a rival. All processes
are alive at the same time. In a round each contender takes some steps while the others are stopped,
so that the machine affects all alike. The order of a round is random and reversed in the next, so
that drift cancels; so is the order of starts from block to block (``turns.order_of_starts``).

A block is a number of rounds with the same processes. The first block finds the best rival, the
leader; it uses the processes of the trials if they are alive. Later blocks start new processes, as
an emitted launch does, and compare the leader with the baseline. The second one also runs the plans
between the two, which shows what each change is worth. If two plans do not fit into memory, or the
runner runs one plan at a time, a block is one round of processes that run one after the other.

From the second block on the interval of the gain decides when to stop: the leader is faster by more
than ``DELTA`` and it is known by how much (``NARROW``), the two are equivalent, or the leader is
slower. It ends undecided if time or blocks are spent, or the rest is not likely to decide. The
interval's error rate (``DOUBT``) allows for a look after every block. ``benchmarks/aa.py`` measures
the numbers below.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count

from cputune.plans.plan import Plan
from cputune.records.result import LEAST_BLOCKS, ConfirmRun
from cputune.records.steps import LivingRunner, ReportingLiving, Runner, TimeUp
from cputune.tuner.changes import Change, rungs_of, why_not_one_by_one, worths
from cputune.tuner.contenders import (
    SLOWER,
    Contender,
    blocks_of,
    doubt_each,
    fastest_of,
    gain_of,
    level_rounds,
)
from cputune.tuner.events import ComparisonSoFar, ConfirmStarted
from cputune.tuner.gains import MOST_BLOCKS, PROCESS, Gain, throughput
from cputune.tuner.measuring import Measuring
from cputune.tuner.profile import profile_plan
from cputune.tuner.race import LEAST_KEPT, Verdict
from cputune.tuner.turns import (
    Started,
    TooShort,
    agree_on_skipped,
    note_places,
    order_of_starts,
    seconds_of,
)

MOST_ROUNDS, GIVEN_UP = 50, 12
"""The most rounds of a block; a block ends after GIVEN_UP rounds if nearly all of them were
delayed."""

LEAST_ROUNDS, LATER_ROUNDS, OLD_STEPS = 6, 3, 30
"""The fewest rounds of the first block, and of each later one. The first continues until its
processes have taken ``OLD_STEPS``, which shows a long warm-up. New processes say more than further
rounds (``benchmarks/aa.py``).
"""

STEPS_ALONE = 12
"""The most steps of a plan that runs alone, warm-up included."""

MOST_ALONE = 5
"""The most blocks if processes run one after the other."""

LEAST_TURNS = 3
"""A further block is started if its plans have time for so few steps after their warm-up."""

NARROW, SHARE_OF_GAIN = 0.1, 0.36
"""How narrow (log) the interval of a gain has to be, or its half as a share of the gain."""

UNTIL_PROFILE = 0.95
"""Share of a given time after which the confirmation ends: the rest is for the profile."""

TELL_APART_SECONDS = 20.0
"""Seconds of steps in the first block if several rivals are left."""

CLEARLY = 0.1
"""Error rate of the interval by which a slower rival is dropped."""

ChangesTo = Callable[[Plan], Sequence[Change]]
"""The changes from the baseline to a plan; none if they cannot be alive at once."""


def compare_rivals(
    measuring: Measuring,
    baseline: Plan,
    rivals: Sequence[Plan],
    runner: Runner,
    fresh: Runner,
    alive: int,
    *,
    alone: Sequence[Plan] = (),
    changes_to: ChangesTo = lambda plan: (),
) -> None:
    """Measure plans side by side; the findings contain the rounds.

    ``alive`` is how many plans fit into memory. If that is one, if a runner keeps none alive, or if
    a script ends too soon to take turns, plans run one after the other.
    """
    begun = measuring.timer.used_seconds
    measuring.on_event(ConfirmStarted(plans=(baseline, *rivals)))
    compared = Confirmation(measuring, baseline, rivals)
    try:
        if alive > 1 and isinstance(runner, LivingRunner) and isinstance(fresh, LivingRunner):
            measuring.living.only((baseline, *rivals))
            compared.side_by_side(runner, changes_to, fresh)
        else:
            measuring.living.close()
            compared.one_after_another(fresh)
    except TooShort:  # to warm up and take turns, but its runs can be measured whole
        measuring.living.close()
        compared = Confirmation(measuring, baseline, alone or rivals)
        compared.one_after_another(fresh)
    measuring.findings.baseline, measuring.findings.rivals = compared.baseline, compared.rivals
    measuring.findings.confirm_seconds = measuring.timer.used_seconds - begun


class Confirmation:
    """Compares the baseline with its rivals, and knows the leader."""

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
        changes_to: ChangesTo = lambda plan: (),
        fresh: LivingRunner | None = None,
    ) -> None:
        """Measure rounds until the gain of the leader is decided or the time is up.

        Afterwards the findings contain what each change is worth, and where the time of the best
        plan goes. ``fresh`` is the runner for later blocks, if it is another one. Raises TooShort
        if a script ends before its first turn is over.
        """
        fresh = fresh or runner
        for each in (runner, fresh):
            self._measuring.hold_to_time(each, 1.0, together=1 + len(self.rivals))
        if not self.is_over:
            self._block(runner, 0, (self.baseline, *self.rivals))
        path: Sequence[Change] = ()
        leader: Contender | None = None
        for block in range(1, MOST_BLOCKS):
            leads = self._leader()
            if self.is_over or leads is None:
                break
            if leader is None or leader.out is not None:  # a leader that fell: the next one
                leader, gain = leads
                if block == 1 and gain.mean > 2 * PROCESS:
                    path = self._if_time(changes_to(leader.plan))
                    self._join(path)
            racing = [self.baseline, leader]
            if block == 1:
                racing += self._between
            self._block(fresh if block % 2 else runner, block, racing, leader)
            if leader.out is None and self._has_answer(leader):
                break
        if leader is not None:
            self._note_worths(leader, path)

    def _if_time(self, path: Sequence[Change]) -> Sequence[Change]:
        """The changes, unless measuring the plans between them takes the time of the leader."""
        measuring = self._measuring
        plans = 1 + len(path)
        needed = measuring.block_seconds(turns=2 + LEAST_ROUNDS, plans=plans)
        if plans == 2 or needed < measuring.timer.left(UNTIL_PROFILE):
            return path
        measuring.findings.notes.append(
            "What each change brings by itself was not measured: the time limit is too short."
        )
        return ()

    def _join(self, path: Sequence[Change]) -> None:
        """Add the plans between the baseline and the leader to the second block."""
        self._between = tuple(Contender(role="candidate", plan=on.plan) for on in path[:-1])
        for between in self._between:
            for _ in self.baseline.logs:
                between.add(0)  # they had no part in the first block

    def _note_worths(self, leader: Contender, path: Sequence[Change]) -> None:
        """Record what each change is worth, or why that is not known."""
        findings, total = self._measuring.findings, self._gain(leader)
        if total is not None and total.settles:
            findings.notes.append(
                f"{leader.plan.describe()} still got faster or slower when it was last measured: "
                "in a long run its speed may differ."
            )
        if not path or leader.out is not None or total is None:
            return
        contenders = (self.baseline, *self._between, leader)
        findings.rungs = rungs_of(path, contenders, self._noise, total)
        each = worths(path, contenders, self._noise, total)
        reason = why_not_one_by_one(each, total)
        if reason is None:
            findings.worth = each
        else:
            findings.notes.append(reason)

    def one_after_another(self, runner: Runner) -> None:
        """The same if no two plans can be alive at once: each round starts new processes."""
        everybody = (self.baseline, *self.rivals)
        for block in range(MOST_ALONE):
            racing = [contender for contender in everybody if contender.out is None]
            first = 0
            if racing:
                first = block % len(racing)
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
            self._drop_slower()
            leads = self._leader()
            decided = leads is not None and leads[1].is_decided
            if self.is_over or (decided and block + 1 >= LEAST_BLOCKS):
                return

    def _verdict(self, logs: Sequence[float]) -> Verdict:
        """Whether a plan that runs alone has taken enough steps after its warm-up."""
        race = self._measuring.race
        now = race.estimate(logs)
        done = now.level and min(len(now.kept), len(logs) - race.warmup) >= LEAST_KEPT
        if done or len(logs) >= STEPS_ALONE:
            return "enough"
        return "more"

    def _has_answer(self, leader: Contender) -> bool:
        """Whether to stop: decided, not decidable, or too slow."""
        gain = self._gain(leader)
        if gain is None or leader.out is not None:
            return True
        if len(blocks_of(leader)) < LEAST_BLOCKS:
            return False
        narrow = gain.half_width <= max(NARROW, SHARE_OF_GAIN * gain.mean)
        if gain.is_decided and narrow and not gain.settles:
            return True
        seconds_left = self._measuring.timer.left(UNTIL_PROFILE)
        if seconds_left < self._measuring.block_seconds(
            turns=LEAST_TURNS
        ):  # it would end before its turns
            return True
        blocks = len(blocks_of(leader))
        return not gain.can_be_decided(blocks, self._blocks_left(blocks))

    def _blocks_left(self, done: int) -> int:
        """How many more blocks fit into the time."""
        timer = self._measuring.timer
        block_seconds = (timer.used_seconds - self._begun) / done
        blocks_left = MOST_BLOCKS - done
        if block_seconds > 0:
            fitting = min(timer.left(UNTIL_PROFILE) / block_seconds, MOST_BLOCKS)
            blocks_left = min(blocks_left, int(fitting))
        return blocks_left

    @property
    def is_over(self) -> bool:
        """Whether no rival is left, or the time is up."""
        racing = []
        for rival in self.rivals:
            if rival.out is None:
                racing.append(rival)
        return not racing or self.baseline.out is not None or self._measuring.timer.up(1.0)

    def _block(
        self,
        runner: LivingRunner,
        block: int,
        racing: Sequence[Contender],
        leader: Contender | None = None,
    ) -> None:
        """Start new processes, or use those that are alive, let them take turns, then end them.

        The order of starts (``order_of_starts``) is a term of the gain.
        """
        measuring = self._measuring
        started: list[Started] = []
        with ExitStack() as held, suppress(TimeUp):
            for contender in order_of_starts(racing, block):
                begin = partial(runner.living, contender.plan)
                rules = measuring.rules(contender.plan)
                kept = measuring.living.take(contender.plan)
                started.append(Started(contender, begin, rules, kept))
                held.enter_context(closing(started[-1]))
            note_places(started)
            self._rounds(started, block, leader)
            if leader is not None and self._has_answer(leader):
                # Last: the profiler changes how malloc serves later steps.
                self._profile(started, leader)
        between = [contender.plan for contender in self._between]
        for entry in started:
            if isinstance(entry.living, ReportingLiving):
                measuring.findings.add_reports(entry.contender.plan, entry.living.reports())
            if entry.contender.plan not in between:
                self._record_run(block, entry)

    def _rounds(self, started: Sequence[Started], block: int, leader: Contender | None) -> None:
        """Measure rounds until there are enough. Raises TooShort."""
        measuring = self._measuring
        for entry in started:
            entry.warm_up(measuring.race)
        agree_on_skipped(started)
        begun = seconds_of(started)
        measuring.timer.step_seconds += begun
        order, places = random.Random(block), count()
        turned = list(started)
        quiet = since = 0
        for done in range(MOST_ROUNDS):
            given_up = done - since >= GIVEN_UP and 3 * quiet < done - since
            if given_up and not measuring.findings.shared:
                return
            if given_up:  # on a machine that is known to be busy, delayed turns count
                measuring.findings.never_quiet = True
                for entry in started:
                    entry.rules = measuring.rules(entry.contender.plan)
                since = done
            before = seconds_of(started)
            if self._is_enough(leader, started, quiet, before - begun):
                return
            # Each random order is also run in reverse: what drifts in a round then cancels.
            if done % 2:
                turned = turned[::-1]
            else:
                turned = order.sample(started, len(started))
            self._round(turned, block, places)
            measuring.timer.step_seconds += seconds_of(started) - before
            if self.baseline.logs[-1] is not None:
                quiet += 1
            if done % 2:
                self._report_standing()
                self._drop_slower()

    def _round(self, turned: Sequence[Started], block: int, places: Iterator[int]) -> None:
        """Let each take a turn, in this order; ``places`` numbers the turns of the block.

        Contenders without processes here get an empty entry.
        """
        measured: dict[int, tuple[float | None, float, float | None]] = {}
        for entry in turned:
            if entry.is_in:
                log = entry.turn(next(places))
                measured[id(entry.contender)] = (log, entry.age, entry.place)
        contenders = (self.baseline, *self.rivals, *self._between)
        for contender in contenders:
            log, age, place = measured.get(id(contender), (None, math.inf, None))
            contender.add(block, log, age, place)
        level_rounds(contenders)

    def _is_enough(
        self, leader: Contender | None, started: Sequence[Started], quiet: int, seconds: float
    ) -> bool:
        """Whether a block can end, from its quiet rounds and the seconds of their steps.

        The first block tells the rivals apart and shows a long warm-up; it ends when the given time
        just fits another one. A block with plans between baseline and leader takes as many rounds.
        A leader that still settles is measured on.
        """
        if self.is_over:
            return True
        if leader is None:
            timer = self._measuring.timer
            racing = [entry for entry in started if entry.is_in]
            round_seconds = sum(entry.step_seconds for entry in racing)
            needed = self._measuring.block_seconds() + round_seconds
            if timer.limited and quiet > 1 and timer.left(1.0) < needed:
                return True
            if quiet < LEAST_ROUNDS:
                return False
            rivals_left = sum(rival.out is None for rival in self.rivals)
            old = min(entry.age for entry in racing) >= OLD_STEPS
            return (rivals_left < 2 and old) or seconds > TELL_APART_SECONDS
        least = LEAST_ROUNDS
        if len(started) == 2:
            least = LATER_ROUNDS
        if quiet < least:
            return False
        gain = self._gain(leader)
        return gain is None or not gain.settles

    def _report_standing(self) -> None:
        """Report how many times as fast the leader is so far."""
        leads = self._leader()
        if leads is not None:
            leader, gain = leads
            speedup = gain.speedup
            standing = ComparisonSoFar(
                plan=leader.plan,
                ratio=speedup.ratio,
                low=speedup.low,
                high=speedup.high,
                pairs=speedup.pairs,
            )
            self._measuring.on_event(standing)

    def _profile(self, started: Sequence[Started], leader: Contender) -> None:
        """Profile the baseline and the leader, in the processes that were measured last."""
        for entry in started:
            if entry.contender in (self.baseline, leader) and entry.is_in:
                profile_plan(self._measuring, entry.contender.plan, entry.living)

    def _leader(self) -> tuple[Contender, Gain] | None:
        """The fastest rival so far; None if none was measured with the baseline."""
        return fastest_of(self.baseline, self.rivals, self._noise)

    def _gain(self, rival: Contender) -> Gain | None:
        return gain_of(self.baseline, rival, self._noise, doubt=doubt_each(self.rivals))

    def _drop_slower(self) -> None:
        """Measure rivals no longer that are clearly slower than the leader."""
        racing = [rival for rival in self.rivals if rival.out is None]
        leads = None
        if len(racing) > 1:
            leads = self._leader()
        if leads is None:
            return
        for rival in racing:
            behind = gain_of(rival, leads[0], self._noise, doubt=CLEARLY)
            if behind is not None and behind.low > 0:
                rival.out = SLOWER

    def _record_run(self, block: int, entry: Started) -> None:
        """Record what this block showed of a contender's speed."""
        findings, contender, reason = self._measuring.findings, entry.contender, entry.run.reason
        findings.turns += entry.turns
        findings.delayed_turns += entry.delayed
        rounds = zip(contender.logs, contender.blocks, strict=True)
        logs = []
        for log, at in rounds:
            if at == block and log is not None:
                logs.append(log)
        rate = None
        if entry.counted:
            rate = throughput(logs or entry.counted, self._noise)
        if rate is None and reason is None:
            reason = "not measured: the comparison ended before"
            if entry.delayed:
                reason = "contended: other processes delayed its steps"
        findings.confirm_runs.append(
            ConfirmRun(
                round=block,
                plan=contender.plan,
                role=contender.role,
                samples_per_second=rate,
                reason=reason,
                turns=len(entry.counted),
                taken=tuple(entry.taken),
                kept=entry.was_kept,
            )
        )
        self._measuring.on_event(findings.confirm_runs[-1])
