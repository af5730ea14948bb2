"""One block of the confirmation: plans that are alive at once, and take some steps in turn.

A turn is a few steps of one plan while the others stand still. A round is one turn of each plan.
``Started`` holds a contender's processes in a block.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median

from cputune.result import Turn
from cputune.steps import Living, LivingRunner, NoMeasurement, TimeUp, TrialError
from cputune.tuner.gains import Contender, level_rounds
from cputune.tuner.lengths import SizedStep
from cputune.tuner.living import LivingTrial
from cputune.tuner.measuring import Measuring
from cputune.tuner.race import Race
from cputune.tuner.reading import Rules, Run, take, turn_of

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


class TooShort(Exception):  # noqa: N818
    """A script trains to its end before its warm-up and one turn are over."""


@dataclass(slots=True, kw_only=True)
class Started:
    """The processes of a contender in one block, and what was read of them.

    ``begin`` starts its processes; a script that has trained to its end is started again. ``kept``
    are the processes of a trial, which are warm already. ``turns`` counts the turns, ``delayed``
    those that other processes delayed. ``counted`` holds each remaining turn as its median log of
    seconds per sample. ``taken`` are the steps of each turn.
    """

    contender: Contender
    begin: Callable[[], Living]
    rules: Rules
    kept: LivingTrial | None = None
    run: Run = field(default_factory=Run)
    turns: int = 0
    delayed: int = 0
    counted: list[float] = field(default_factory=list)
    taken: list[Turn] = field(default_factory=list)
    _living: Living = field(init=False)
    _warmup: int = field(init=False)
    _steps_before: int = 0
    _step_seconds: float = TWICE_SECONDS
    _turns_of_this_life: int = 0

    def __post_init__(self) -> None:
        if self.kept is None:
            self._living = self.begin()
            return
        self._living, read = self.kept.living, self.kept.run
        self._turns_of_this_life, self._steps_before = 1, read.steps
        self.run = Run(
            losses=list(read.losses),
            sizes=list(read.sizes),
        )

    @property
    def living(self) -> Living:
        """The contender's processes."""
        return self._living

    @property
    def age(self) -> int:
        """How many steps its processes have taken."""
        return self._steps_before + self.run.steps

    def close(self) -> None:
        """End its processes."""
        self._living.close()

    @property
    def is_in(self) -> bool:
        """Whether the contender is still being compared."""
        return self.contender.out is None

    def warm_up(self, race: Race) -> None:
        """Take the first steps, until they are level. Raises TooShort."""
        usual = race.warmup + 2
        self._read(AWAKE_STEPS if self.kept else usual)
        while self.is_in and self.run.steps < MOST_WARMUP:
            if self.run.logs and race.estimate(self.run.logs).level:
                break
            self._read(2)
        self._warmup = max(usual, self.run.steps)

    def turn(self) -> float | None:
        """Take one turn; returns its log seconds per sample.

        None where other processes delayed the turn, it failed, or the script came to its end.
        Raises TooShort.
        """
        lone = self.contender.plan.world_size == 1
        skipped, counted = steps_of_turn(self._step_seconds, lone=lone)
        taken = self._read(skipped + counted)[skipped:]
        if not self.is_in:
            return None
        self._turns_of_this_life += bool(taken)
        self.turns += 1
        self.delayed += 2 * sum(delayed for _, delayed in taken) >= counted
        steps = [step for step, _ in taken if step is not None]
        if 2 * len(steps) <= counted:
            return None
        self.contender.steps[len(self.contender.logs)] = steps
        self.counted.append(median([log for log, _ in steps]))
        return self.counted[-1]

    def _read(self, steps: int) -> list[tuple[SizedStep | None, bool]]:
        """Read so many steps: each, None where it does not count, and whether the turn was delayed.

        Where one fails, the contender is out.
        """
        taken: list[tuple[SizedStep | None, bool]] = []
        try:
            for step in self._living.turn(steps):
                counted, delayed = len(self.run.counted), self.run.delayed
                take(self.run, step, self.rules)
                counts = len(self.run.counted) > counted
                if counts:
                    self._step_seconds = step.seconds
                taken.append((self.run.counted[-1] if counts else None, self.run.delayed > delayed))
        except NoMeasurement as end:
            self._begin_again(end)
        except TrialError as failure:
            self.run.failure = failure
            self.contender.out = f"{failure.kind}: {failure}"
            self._living.close()
        self.contender.sizes = max(self.contender.sizes, list(self.run.sizes), key=len)
        return taken

    def _begin_again(self, end: NoMeasurement) -> None:
        if not self._turns_of_this_life:
            raise TooShort(str(end)) from end
        self._living.close()
        self._living = self.begin()
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


MOST_ROUNDS = 50
"""The most rounds of a block, those included in which other processes delayed a step."""

GIVEN_UP = 12
"""After so many rounds the block ends if other processes delayed nearly all of them."""


@contextmanager
def all_started(
    measuring: Measuring,
    runner: LivingRunner,
    contenders: Sequence[Contender],
    *,
    last_first: bool = False,
) -> Iterator[list[Started]]:
    """Start all contenders, one after the other, or use what is alive; end them with the block.

    ``last_first`` starts them in reverse order. Of two processes of one plan the one that was
    started first was faster by 0.7 % (+-0.6 %, 14 confirmations of ``benchmarks/aa.py --real``).
    Where the time is up the block ends early; turns that were taken count.
    """
    started: list[Started] = []
    with ExitStack() as held, suppress(TimeUp):
        for contender in contenders[::-1] if last_first else contenders:
            begin = partial(runner.living, contender.plan)
            rules = measuring.rules(contender.plan)
            kept = measuring.living.take(contender.plan)
            one = Started(contender=contender, begin=begin, rules=rules, kept=kept)
            started.append(held.enter_context(closing(one)))
        yield started[::-1] if last_first else started


def take_turns(
    measuring: Measuring,
    started: Sequence[Started],
    everybody: Sequence[Contender],
    block: int,
    is_enough: Callable[[int, float], bool],
    after_two: Callable[[], None] = lambda: None,
) -> None:
    """Measure rounds until ``is_enough``: order drawn by lot, reversed in every second round.

    ``everybody`` gets an entry for each round, also who has none started. ``is_enough`` is asked
    before each round, with the quiet rounds and the seconds of steps so far. Raises TooShort.
    """
    for one in started:
        one.warm_up(measuring.race)
    measuring.timer.step_seconds += seconds_of(started)
    order, begun, quiet, since = random.Random(block), seconds_of(started), 0, 0
    turned, places = list(started), count()
    for done in range(MOST_ROUNDS):
        given_up = done - since >= GIVEN_UP and 3 * quiet < done - since
        if given_up and not measuring.findings.shared:
            return
        if given_up:  # on a machine that is known to be busy, delayed turns count
            measuring.findings.never_quiet = True
            for one in started:
                one.rules = measuring.rules(one.contender.plan)
            since = done
        if is_enough(quiet, seconds_of(started) - begun):
            return
        turned = turned[::-1] if done % 2 else order.sample(started, len(started))
        before = seconds_of(started)
        taken = {id(one.contender): _turn(one, next(places)) for one in turned if one.is_in}
        measuring.timer.step_seconds += seconds_of(started) - before
        quiet += taken.get(id(started[0].contender), (None,))[0] is not None
        for contender in everybody:
            contender.add(block, *taken.get(id(contender), ()))
        level_rounds(everybody)
        if done % 2:
            after_two()


def _turn(one: Started, place: int) -> tuple[float | None, int]:
    """Take one turn of a contender, and write down its steps.

    Returns its log seconds per sample, and its age.
    """
    begun = len(one.run.trace)
    log = one.turn()
    one.taken.append(turn_of(place, one.run.trace[begun:]))
    return log, one.age
