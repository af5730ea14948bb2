"""Launches that are alive at once and take steps in turn, for benchmarks that compare them.

Whatever the machine does in the meantime hits all alike, and a ratio is taken within one round.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from statistics import median, stdev

from cputune.plans.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TrialError
from cputune.tuner.contenders import Contender as Compared, gain_of, level_rounds
from cputune.tuner.gains import Gain, center_of, students_quantile
from cputune.tuner.race import Race
from cputune.tuner.reading import Rules
from cputune.tuner.turns import (
    Started,
    TooShort,
    agree_on_skipped,
    note_places,
    order_of_starts,
)

WARMUP = 6
"""First steps of a launch, which do not count: they are slower, some four of them."""

BLOCKS, ROUNDS = 3, 6
"""The fewest blocks of new processes of a comparison, and the rounds of each."""

TURN = 3
"""Steps of a turn, of which the first does not count: caches hold what others left there."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """A launch and what it took: for each round seconds per sample, None where it was out."""

    name: str
    runner: ProcessRunner
    plan: Plan
    seconds: list[float] = field(default_factory=list)
    failed: str | None = None

    @property
    def samples_per_second(self) -> float:
        """The median of its rounds."""
        return 1 / median(self.seconds)


def side_by_side(contenders: Sequence[Contender], *, until: float, least_rounds: int = 4) -> None:
    """Start all, one after the other, then let each take its turn until the clock shows ``until``.

    A contender that fails is out, with the reason; the order turns by one from round to round.
    """
    with ExitStack() as ended:
        alive = {}
        for one in contenders:
            ended.enter_context(one.runner)
            living = one.runner.living(one.plan)
            ended.callback(living.close)
            try:
                living.turn(WARMUP)
                alive[one.name] = living
                print(f"{one.name}: runs", file=sys.stderr, flush=True)
            except TrialError as error:
                one.failed = f"{error} {error.details or ''}".strip()[-300:]
                print(f"{one.name}: {one.failed}", file=sys.stderr, flush=True)
        rounds, longest = 0, 0.0
        while alive and (rounds < least_rounds or time.monotonic() + longest < until):
            began = time.monotonic()
            running = [one for one in contenders if one.failed is None]
            turned = rounds % len(running)
            for one in running[turned:] + running[:turned]:
                try:
                    steps = alive[one.name].turn(TURN)[1:]
                except TrialError as error:
                    one.failed = str(error)
                    continue
                one.seconds.append(
                    sum(step.seconds for step in steps) / sum(step.samples for step in steps)
                )
            rounds += 1
            longest = max(longest, time.monotonic() - began)


def ratio(one: Contender, other: Contender) -> str:
    """How much faster ``one`` is than ``other``, within rounds, with its 95 % interval.

    The Hodges-Lehmann centre and Student's interval of the rounds. All are of the same processes,
    so it does not hold what other processes of the same launch would differ by (some 3 %).
    """
    pairs = zip(one.seconds, other.seconds, strict=False)
    logs = [math.log(theirs / ours) for ours, theirs in pairs]
    if len(logs) < 3:
        return "too few rounds"
    half = students_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    center, low, high = (math.exp(center_of(logs) + off) for off in (0.0, -half, half))
    return f"{center:.2f} ({low:.2f}–{high:.2f})"


def in_blocks(one: Contender, other: Contender, *, until: float) -> Gain | None:
    """The gain of ``one`` over ``other``, by the rules of the product's own comparison.

    Both are started anew for each of at least ``BLOCKS`` blocks, in alternating order, and nothing
    else is alive. The interval has the scatter between processes, which one of rounds alone has
    not: of the same launch twice, all of six such intervals excluded 1. Further blocks are measured
    as long as they are likely to end before the clock shows ``until``. None, with ``failed`` set,
    if one of them fails.
    """
    race = Race()
    pair = [
        Compared(role="baseline", plan=other.plan),
        Compared(role="candidate", plan=one.plan),
    ]
    launches = {id(pair[0]): other, id(pair[1]): one}
    block, longest = 0, 0.0
    while block < BLOCKS or time.monotonic() + longest < until:
        began = time.monotonic()
        with ExitStack() as ended:
            started = []
            for entry in order_of_starts(pair, block):
                runner = launches[id(entry)].runner
                started.append(Started(entry, partial(runner.living, entry.plan), Rules()))
                ended.enter_context(closing(started[-1]))
            note_places(started)
            try:
                for each in started:
                    each.warm_up(race)
                agree_on_skipped(started)
                for at in range(ROUNDS):
                    _round(pair, started[:: -1 if at % 2 else 1], block)
            except TooShort as error:
                one.failed = other.failed = str(error)
        for entry in pair:
            if entry.out is not None:
                launches[id(entry)].failed = entry.out
        if one.failed is not None or other.failed is not None:
            return None
        block, longest = block + 1, max(longest, time.monotonic() - began)
    for entry in pair:
        launches[id(entry)].seconds += [math.exp(log) for log in entry.measured]
    return gain_of(pair[0], pair[1], race.noise.deviation, doubt=0.05)


def _round(pair: Sequence[Compared], turned: Sequence[Started], block: int) -> None:
    """A turn of each, in this order."""
    measured = {}
    for each in turned:
        if each.is_in:
            measured[id(each.contender)] = (each.turn(0), each.age, each.place)
    for entry in pair:
        entry.add(block, *measured.get(id(entry), ()))
    level_rounds(pair)


def table(rows: Mapping[str, Sequence[str]], head: Sequence[str]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in rows.items()]
    return "\n".join(lines)
