"""The processes of a plan that is compared: they take turns, and are stopped in between.

``benchmarks/turns.py`` and ``aa.py --real`` measure the numbers below on real processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean, median

from cputune.errors import CputuneError
from cputune.records.result import Turn
from cputune.records.steps import Crashed, Living, NoMeasurement, Step, TimeUp, TrialError
from cputune.tuner.contenders import Contender
from cputune.tuner.measuring import LivingTrial
from cputune.tuner.race import Race
from cputune.tuner.reading import Rules, Run, SizedStep, take, turn_of

# About how long the steps of a turn last that count: much less than the time in which the machine
# changes its speed, much more than the switch to the next plan.
TURN_SECONDS = 0.6

MOST_COUNTED = 8  # steps of a turn
# If a step is shorter than this and the first step after a pause does not count, a turn counts at
# least two steps.
#
# The machine is much the same half a second later and another one three seconds later, so rounds of
# one step give 1.7 times as much information in the same time as rounds of three.
TWICE_SECONDS = 1.0

# If the mean step of the contenders of a block takes at least this long, the first step of a turn
# counts for each of them; below, for none.
#
# After a pause caches are cold, and ranks that wake up wait for each other. In three tunes on two
# AMX cores the first step of a turn was 5.5, 8.9 and 6.4 % slower than the later ones, and several
# ranks need 5 to 15 % more. If it counts for one plan alone, that is an error of the factor:
# factors of 1.86, 1.96 and 2.27 became 1.80, 1.89 and 2.13, the ratios of the trials to 1, 1 and 3
# %.
#
# To skip it costs a step of each turn: half of the time of a turn that counts one step. If it
# counts for all, the costs cancel in the ratio as far as they are alike; what they differ by (some
# percent) remains.
LONG_STEP_SECONDS = 3.0

# The most warm-up steps of new processes, and of processes that were stopped since they were warm.
MOST_WARMUP = 12
AWAKE_STEPS = 2

# After this time new processes are warm enough: what makes first steps slow are imports, caches
# and memory that is touched for the first time, and of a long step that is a small share. A ratio
# that still changes is noticed (``Gain.settles``).
WARMUP_SECONDS = 8.0


class TooShort(Exception):  # noqa: N818
    """A script ends before its warm-up and one turn are over."""


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Processes that could not be started: their first turn raises the reason."""

    failure: TrialError

    def turn(self, steps: int) -> Sequence[Step]:
        """Raise the error of the start."""
        raise self.failure

    def close(self) -> None:
        """Nothing runs."""


class Started:
    """The processes of a contender in one block, and what was measured of them.

    ``counted`` is each turn that counts, as its median log of seconds per sample. ``taken`` are the
    steps of each turn, of which the first ``skipped`` do not count: as many for all contenders of a
    block (``agree_on_skipped``). ``place`` is that of its processes in the order of starts
    (``Contender.places``).
    """

    def __init__(
        self,
        contender: Contender,
        begin: Callable[[], Living],
        rules: Rules,
        kept: LivingTrial | None = None,
        step_seconds: float = TWICE_SECONDS,
    ) -> None:
        """``begin`` starts its processes, also again if a script has ended.

        ``kept`` are the processes of its trial, which are warm already. ``step_seconds`` are those
        of a step as far as is known.
        """
        self.contender, self.rules, self.run = contender, rules, Run()
        self.turns = self.delayed = 0
        self.counted: list[float] = []
        self.taken: list[Turn] = []
        self._begin = begin
        self._is_warm = self.was_kept = kept is not None
        self._steps_before = self._turns_of_this_life = self._warmup = 0
        self.step_seconds = step_seconds
        self.skipped = 1
        self.place: float | None = None
        if kept is None:
            self.living = self._start()
        else:
            self.living, read = kept.living, kept.run
            self._turns_of_this_life, self._steps_before = 1, read.steps
            self.run = Run(losses=list(read.losses), sizes=list(read.sizes))

    def _start(self) -> Living:
        """Its processes; if they cannot be started, an object whose first turn raises the error."""
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
        """Take the first steps, until they are level or took long enough. Raises TooShort."""
        usual = race.warmup + 2
        if self._is_warm:
            fewest = awake_steps(self.step_seconds)
        else:
            fewest = warmup_steps(usual, self.step_seconds)
        self._read(fewest)
        is_long = fewest < usual and not self._is_warm
        while not is_long and self.is_in and self.run.steps < MOST_WARMUP:
            took_long = self.run.step_seconds >= WARMUP_SECONDS or not self.run.steps
            if took_long or (self.run.logs and race.estimate(self.run.logs).level):
                break
            self._read(2)
        self._warmup = max(1, self.run.steps)

    def turn(self, place: int) -> float | None:
        """Take one turn, at this place in the block; returns its log seconds per sample.

        None if other processes delayed it, it failed, or the script came to its end. Raises
        TooShort.
        """
        begun, skipped = len(self.run.trace), self.skipped
        counted = steps_that_count(self.step_seconds, skipped=skipped)
        taken = self._read(skipped + counted)[skipped:]
        trace = self.run.trace[begun:]
        self.taken.append(turn_of(place, trace))
        if not self.is_in:
            return None
        if taken:
            self._turns_of_this_life += 1
        self.turns += 1
        late = [delayed for _, delayed in trace[skipped : skipped + len(taken)]].count(True)
        if 2 * late >= counted:
            self.delayed += 1
        steps = []
        for step in taken:
            if step is not None:
                steps.append(step)
        if 2 * len(steps) <= counted:
            return None
        self.contender.steps[len(self.contender.logs)] = steps
        self.counted.append(median([log for log, _ in steps]))
        return self.counted[-1]

    def _read(self, steps: int) -> list[SizedStep | None]:
        """Read a number of steps; None for one that does not count."""
        taken: list[SizedStep | None] = []
        if steps < 1:
            return taken
        try:
            for step in self.living.turn(steps):
                before = len(self.run.counted)
                take(self.run, step, self.rules)
                counts = len(self.run.counted) > before
                if counts:
                    self.step_seconds = step.seconds
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
        self.contender.out = self.run.reason
        with suppress(Exception):
            self.living.close()

    def _begin_again(self, end: NoMeasurement) -> None:
        if not self._turns_of_this_life:
            raise TooShort(str(end)) from end
        self.living.close()
        self.living = self._start()
        # ``run`` goes on: without its steps so far, ``age`` is that of the new processes.
        self._turns_of_this_life, self._steps_before = 0, -self.run.steps
        self.run.sizes.clear()
        self._read(self._warmup)


def warmup_steps(usual: int, step_seconds: float) -> int:
    """How many first steps of new processes do not count; ``usual`` if they are short."""
    if step_seconds * usual <= WARMUP_SECONDS:
        return usual
    return max(1, int(WARMUP_SECONDS / step_seconds))


def awake_steps(step_seconds: float) -> int:
    """How many steps of processes do not count that were warm before they were stopped."""
    if step_seconds >= LONG_STEP_SECONDS:
        return 0
    return AWAKE_STEPS


def order_of_starts(contenders: Sequence[Contender], block: int) -> list[Contender]:
    """The order in which the contenders of a block are started.

    Two alternate. Of more the order is drawn, and reversed in the next block. If the number of
    blocks is odd, ``gains.ORDER`` allows for what is left.
    """
    ordered = list(contenders)
    if len(ordered) > 2:
        ordered = random.Random(block // 2).sample(ordered, len(ordered))
    if block % 2:
        ordered.reverse()
    return ordered


def note_places(started: Sequence[Started]) -> None:
    """Record the place of each in this order of starts.

    Of the processes of trials the baseline's are the oldest; of some old and some new ones the
    effect is not known.
    """
    kept = [entry.was_kept for entry in started]
    ordered = list(started)
    if all(kept):
        ordered.sort(key=lambda entry: entry.contender.role != "baseline")
    if len(started) < 2 or (any(kept) and not all(kept)):
        return
    for at, entry in enumerate(ordered):
        entry.place = at / (len(ordered) - 1) - 0.5


def agree_on_skipped(started: Sequence[Started]) -> None:
    """Decide for a block whether the first step of a turn counts: for all contenders, or for none.

    They are warm: the mean of their steps decides (``LONG_STEP_SECONDS``).
    """
    skipped = steps_skipped([entry.step_seconds for entry in started if entry.is_in])
    for entry in started:
        entry.skipped = skipped


def steps_skipped(step_seconds: Sequence[float]) -> int:
    """How many first steps of a turn do not count, from the seconds of a step of each plan."""
    return int(not step_seconds or fmean(step_seconds) < LONG_STEP_SECONDS)


def steps_that_count(step_seconds: float, *, skipped: int) -> int:
    """How many steps of a turn count, of which ``skipped`` before them do not."""
    least = 1
    if skipped and step_seconds < TWICE_SECONDS:
        least = 2
    if step_seconds * MOST_COUNTED <= TURN_SECONDS:
        return MOST_COUNTED
    return min(max(least, round(TURN_SECONDS / step_seconds)), MOST_COUNTED)


def round_seconds(steps: Sequence[float]) -> float:
    """About how many seconds a round takes of plans with steps of ``steps`` seconds."""
    skipped = steps_skipped(steps)
    return sum(step * (skipped + steps_that_count(step, skipped=skipped)) for step in steps)


def seconds_of(started: Sequence[Started]) -> float:
    """The seconds of all steps of these contenders so far."""
    return sum(entry.run.step_seconds for entry in started)
