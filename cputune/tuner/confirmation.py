"""The confirmation: the baseline and the best plans, measured once more side by side.

A plan that is compared is a contender; each contender but the baseline is a rival. Processes of a
block are alive at the same time. In a round each contender takes some steps while the others are
stopped, so that the machine affects all alike. The order of a round is random and reversed in the
next, so that drift cancels; so is the order of starts (``turns.order_of_starts``).

A block is a number of rounds with the same processes. If several rivals may be the best, they run
in a first block, which chooses the leader and does not enter its factor: with more processes alive
all plans are slower, and not all alike. In the next blocks only the baseline and the leader are
alive. If nothing had to be chosen, the first of them uses the processes of the trials; all others
start new processes, as an emitted launch does. If two plans do not fit into memory, or the runner
runs one plan at a time, a block is one round of processes that run one after the other.

From the second block on the interval of the gain decides when to stop: the leader is faster by more
than ``DELTA`` and it is known by how much (``NARROW``), the two are equivalent, or the leader is
slower. It ends undecided if time or blocks are spent, or the rest is not likely to decide. The
interval's error rate (``DOUBT``) allows for a look after every block. ``benchmarks/aa.py`` measures
the numbers below.

If the leader is faster, a last block runs the plans between the two as well, if there is time. It
shows what each change is worth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

from cputune.plans.plan import Plan
from cputune.records.result import LEAST_BLOCKS, ConfirmRun, Role
from cputune.records.steps import LivingRunner, ReportingLiving, Runner, TimeUp
from cputune.tuner.changes import Change, rungs_of, why_not_one_by_one, worths
from cputune.tuner.contenders import (
    SLOWER,
    Contender,
    blocks_of,
    fastest_of,
    gain_of,
    level_rounds,
)
from cputune.tuner.events import ComparisonSoFar, ConfirmStarted
from cputune.tuner.gains import MOST_BLOCKS, PROCESS, Gain, throughput
from cputune.tuner.measuring import Measuring
from cputune.tuner.profile import profile_plan
from cputune.tuner.race import LEAST_KEPT, Verdict
from cputune.tuner.spending import (
    FEWEST_ROUNDS,
    LONG_ENOUGH_SECONDS,
    OLD_STEPS,
    ROUNDS_OF_CHANGES,
    TELL_APART_SECONDS,
    UNTIL_PROFILE,
    block_seconds,
    choosing_seconds,
    comparison_seconds,
    least_rounds,
)
from cputune.tuner.turns import (
    TWICE_SECONDS,
    WARMUP_SECONDS,
    Started,
    TooShort,
    agree_on_skipped,
    note_places,
    order_of_starts,
    round_seconds,
    seconds_of,
)

# The most rounds of a block; a block ends after GIVEN_UP rounds if nearly all of them were
# delayed.
MOST_ROUNDS, GIVEN_UP = 50, 12

# The most steps of a plan that runs alone, warm-up included.
STEPS_ALONE = 12

# The most blocks if processes run one after the other.
MOST_ALONE = 5

# Error rate of the interval by which a slower rival is dropped.
CLEARLY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of the comparison.

    Attributes:
        contenders: those whose rounds have the same numbers; those that do not race get empty ones.
        racing: those whose processes are alive, in the order of their starts.
        leader: the rival that is compared with the baseline; None if the block chooses.
        is_first: its processes are those of the trials, if they are alive.
        is_aside: it shows what changes are worth, and is not part of the comparison.
    """

    number: int
    contenders: Sequence[Contender]
    racing: Sequence[Contender]
    leader: Contender | None = None
    is_first: bool = False
    is_aside: bool = False


# The changes from the baseline to a plan; none if they cannot be alive at once.
ChangesTo = Callable[[Plan], Sequence[Change]]


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
        """``rivals``, the most promising first."""
        self._measuring = measuring
        self.baseline = Contender(role="baseline", plan=baseline)
        self.rivals = [Contender(role="candidate", plan=plan) for plan in rivals]
        self._begun = measuring.timer.used_seconds
        self._step_seconds: dict[tuple[Role, Plan], float] = {}
        self._is_time_up = False

    def _steps_of(self, *contenders: Contender) -> list[float]:
        """The seconds of a step of the baseline, and of these, as they were last."""
        return [self._known_seconds(contender) for contender in (self.baseline, *contenders)]

    def _known_seconds(self, contender: Contender) -> float:
        """The seconds of a step of a contender as they were last; 0 if none was measured."""
        of_trial = self._measuring.settled.get(contender.plan, 0.0)
        return self._step_seconds.get((contender.role, contender.plan), of_trial)

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
            self._measuring.hold_to_time(each, together=1 + len(self.rivals))
        numbers = count()
        if self._may_choose():
            self._choose(runner, next(numbers))
        leader: Contender | None = None
        for pair in range(MOST_BLOCKS):
            if leader is None or leader.out is not None:  # a leader that fell: the next one
                leader = next((rival for rival in self.rivals if rival.out is None), None)
            if self.is_over or leader is None:
                break
            self._pair(fresh if pair % 2 else runner, next(numbers), leader, is_first=pair == 0)
            if leader.out is None and self._has_answer(leader):
                break
        if leader is None:
            return
        self._note_settling(leader)
        self._measure_changes(fresh, leader, changes_to, next(numbers))
        while self._measuring.findings.search_cut and self._has_time_for_block(leader):
            self._pair(fresh, next(numbers), leader)

    def _pair(
        self, runner: LivingRunner, number: int, leader: Contender, *, is_first: bool = False
    ) -> None:
        """Measure a block of the baseline and the leader."""
        block = Block(
            number=number,
            contenders=(self.baseline, *self.rivals),
            racing=(self.baseline, leader),
            leader=leader,
            is_first=is_first,
        )
        self._block(runner, block)

    def _has_time_for_block(self, leader: Contender) -> bool:
        """Whether another block of the baseline and the leader would come to its turns."""
        if self.is_over or leader.out is not None:
            return False
        needed = block_seconds(self._measuring, self._steps_of(leader))
        return needed <= self._measuring.timer.left(UNTIL_PROFILE)

    def _choose(self, runner: LivingRunner, number: int) -> None:
        """Let the rivals take turns, and order them by their speed.

        Their rounds do not enter a factor: more plans are alive than when one of them trains. The
        leader has the luckiest processes, so the next block starts new ones. The baseline waits.
        """
        choosing = [Contender(role="candidate", plan=rival.plan) for rival in self.rivals]
        block = Block(number=number, contenders=choosing, racing=choosing, is_first=True)
        self._block(runner, block)
        self._measuring.living.close()
        behind = {}
        for rival, chosen in zip(self.rivals, choosing, strict=True):
            rival.out = chosen.out
            gain = gain_of(choosing[0], chosen, self._noise)
            behind[id(rival)] = 0.0 if gain is None else -gain.mean
        self.rivals.sort(key=lambda rival: (rival.out is not None, behind[id(rival)]))

    def _may_choose(self) -> bool:
        """Whether there are several rivals, and time to let them take turns."""
        if len(self.rivals) < 2 or self.is_over:
            return False
        measuring = self._measuring
        baseline, *steps = self._steps_of(*self.rivals)
        gain = 0.0
        if baseline > 0 and steps[0] > 0:
            gain = math.log(baseline / steps[0])
        choosing = choosing_seconds(steps)
        if not all(rival.plan in measuring.living for rival in self.rivals):
            choosing += measuring.block_start_seconds + WARMUP_SECONDS * len(steps)
        # The block after it has new processes.
        both = (baseline, steps[0])
        choosing += block_seconds(measuring, both) - round_seconds(both)
        left = measuring.timer.left(UNTIL_PROFILE) - comparison_seconds(measuring, gain, steps[0])
        return choosing <= left

    def _measure_changes(
        self, runner: LivingRunner, leader: Contender, changes_to: ChangesTo, number: int
    ) -> None:
        """Record what each change on the way to the leader is worth, or why that is not known.

        All plans on the way run in one block, after the answer.
        """
        measuring, total = self._measuring, self._gain(leader)
        if total is None or leader.out is not None or total.mean <= 2 * PROCESS:
            return
        path = changes_to(leader.plan)
        if not path or self.baseline.out is not None:
            return
        contenders = [Contender(role="baseline", plan=self.baseline.plan)]
        for change in path:
            contenders.append(Contender(role="candidate", plan=change.plan))
        if len(path) > 1:
            steps = self._steps_of(*[leader] * len(path))
            needed = block_seconds(measuring, steps, ROUNDS_OF_CHANGES)
            if measuring.timer.left(UNTIL_PROFILE) >= needed:
                self._block(
                    runner,
                    Block(number=number, contenders=contenders, racing=contenders, is_aside=True),
                )
            if not all(len(contender.measured) > 1 for contender in contenders):
                measuring.findings.notes.append(
                    "What each change brings by itself was not measured: the time limit is too "
                    "short."
                )
                return
        else:
            contenders = [self.baseline, leader]
        findings = measuring.findings
        findings.rungs = rungs_of(path, contenders, self._noise, total)
        each = worths(path, contenders, self._noise, total)
        reason = why_not_one_by_one(each, total)
        if reason is None:
            findings.worth = each
        else:
            findings.notes.append(reason)

    def _note_settling(self, leader: Contender) -> None:
        total = self._gain(leader)
        if total is not None and total.settles:
            self._measuring.findings.notes.append(
                f"{leader.plan.describe()} still got faster or slower when it was last measured: "
                "in a long run its speed may differ."
            )

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
            self._drop_slower(self.rivals)
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
        if leader.out is not None:
            return True
        blocks = len(blocks_of(leader) & blocks_of(self.baseline))
        if gain is None:  # a step was delayed, or each is
            return self._measuring.findings.disturbed
        if blocks < LEAST_BLOCKS:
            return False
        if gain.is_answer:
            return True
        if not self._has_time_for_block(leader):
            return True
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
        time_up = self._is_time_up or self._measuring.timer.up(1.0)
        return not racing or self.baseline.out is not None or time_up

    def _block(self, runner: LivingRunner, block: Block) -> None:
        """Start new processes, or use those that are alive, let them take turns, then end them.

        The order of starts (``order_of_starts``) is a term of the gain.
        """
        measuring = self._measuring
        started: list[Started] = []
        with ExitStack() as held, self._until_time_is_up():
            for contender in order_of_starts(block.racing, block.number):
                begin = partial(runner.living, contender.plan)
                rules = measuring.rules(contender.plan)
                kept = measuring.living.take(contender.plan)
                known = self._known_seconds(contender) or TWICE_SECONDS
                started.append(Started(contender, begin, rules, kept, known))
                held.enter_context(closing(started[-1]))
            note_places(started)
            self._rounds(started, block)
            if block.leader is not None and self._has_answer(block.leader):
                # Last: the profiler changes how malloc serves later steps.
                self._profile(started, block.leader)
        for entry in started:
            if entry.counted:
                self._step_seconds[entry.contender.role, entry.contender.plan] = entry.step_seconds
            if isinstance(entry.living, ReportingLiving):
                measuring.findings.add_reports(entry.contender.plan, entry.living.reports())
            if not block.is_aside:
                self._record_run(block.number, entry)

    @contextmanager
    def _until_time_is_up(self) -> Iterator[None]:
        """End a block at the time limit, and the comparison with it."""
        try:
            yield
        except TimeUp:
            self._is_time_up = True

    def _rounds(self, started: Sequence[Started], block: Block) -> None:
        """Measure rounds until there are enough. Raises TooShort."""
        measuring = self._measuring
        self._warm_up(started)
        warmed = seconds_of(started)
        order, places = random.Random(block.number), count()
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
            if self._is_enough(block, started, quiet, before - warmed):
                return
            # Each random order is also run in reverse: what drifts in a round then cancels.
            if done % 2:
                turned = turned[::-1]
            else:
                turned = order.sample(started, len(started))
            self._round(turned, block, places)
            measuring.timer.step_seconds += seconds_of(started) - before
            quiet += _was_quiet(started)
            if done % 2:
                self._look_at(block)

    def _warm_up(self, started: Sequence[Started]) -> None:
        """Take the first steps of all, and note how long their starts took."""
        measuring = self._measuring
        begun = measuring.timer.used_seconds
        for entry in started:
            entry.warm_up(measuring.race)
        warmed = seconds_of(started)
        if not any(entry.was_kept for entry in started):
            waited = measuring.timer.used_seconds - begun - warmed
            measuring.saw_block_start(max(0.0, waited))
        measuring.timer.step_seconds += warmed
        agree_on_skipped(started)

    def _round(self, turned: Sequence[Started], block: Block, places: Iterator[int]) -> None:
        """Let each take a turn, in this order; ``places`` numbers the turns of the block.

        Contenders without processes here get an empty entry.
        """
        measured: dict[int, tuple[float | None, float, float | None]] = {}
        for entry in turned:
            if entry.is_in:
                log = entry.turn(next(places))
                measured[id(entry.contender)] = (log, entry.age, entry.place)
        for contender in block.contenders:
            log, age, place = measured.get(id(contender), (None, math.inf, None))
            contender.add(block.number, log, age, place)
        level_rounds(block.contenders)

    def _is_enough(
        self, block: Block, started: Sequence[Started], quiet: int, seconds: float
    ) -> bool:
        """Whether a block can end, from its quiet rounds and the seconds of their steps.

        A block that chooses tells the rivals apart. The first one with the baseline shows a long
        warm-up. A leader that still settles is measured on.
        """
        racing = [entry for entry in started if entry.is_in]
        if len(racing) < 2 or self.is_over:
            return True
        one = round_seconds([entry.step_seconds for entry in racing])
        if block.leader is None and not block.is_aside and seconds > TELL_APART_SECONDS:
            return quiet >= FEWEST_ROUNDS
        least = ROUNDS_OF_CHANGES
        if not block.is_aside:
            least = least_rounds(one, first=block.is_first)
        late = seconds > 2 * max(least * one, LONG_ENOUGH_SECONDS)
        if quiet < least and not (late and quiet):  # delayed steps have taken the time
            return False
        if block.is_aside or late:
            return True
        if block.leader is None:
            return False
        if block.is_first:
            old = min(entry.age for entry in racing) >= OLD_STEPS
            return old or seconds > LONG_ENOUGH_SECONDS
        gain = self._gain(block.leader)
        return gain is None or not gain.settles

    def _look_at(self, block: Block) -> None:
        """Report how the leader stands, or drop rivals that are clearly slower."""
        if block.leader is not None:
            self._report_standing()
        elif not block.is_aside:
            self._drop_slower(block.contenders)

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
        return gain_of(self.baseline, rival, self._noise)

    def _drop_slower(self, rivals: Sequence[Contender]) -> None:
        """Measure rivals no longer that are clearly slower than the one that leads."""
        racing = [rival for rival in rivals if rival.out is None]
        ahead = self._ahead(racing)
        if ahead is None:
            return
        for rival in racing:
            behind = gain_of(rival, ahead, self._noise, doubt=CLEARLY)
            if behind is not None and behind.low > 0:
                rival.out = SLOWER

    def _ahead(self, rivals: Sequence[Contender]) -> Contender | None:
        """The fastest of these, by the rounds that they had together; None without any."""
        if len(rivals) < 2:
            return next(iter(rivals), None)
        first, *others = rivals
        fastest = fastest_of(first, others, self._noise)
        if fastest is None or fastest[1].mean <= 0:
            return first
        return fastest[0]

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


def _was_quiet(started: Sequence[Started]) -> bool:
    """Whether the last round has a number for each that is still compared."""
    return all(entry.contender.logs[-1] is not None for entry in started if entry.is_in)
