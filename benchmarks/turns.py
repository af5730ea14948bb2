"""Launches that are alive at once and take steps in turn, for benchmarks that compare them.

Whatever the machine does in the meantime hits all alike, and a ratio is taken within one round.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median, stdev

from cputune.plans.plan import Plan
from cputune.ranks.runner import ProcessRunner
from cputune.records.steps import TrialError
from cputune.tuner.gains import center_of, students_quantile

WARMUP = 6
"""First steps of a launch, which do not count: they are slower, some four of them."""

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


def table(rows: Mapping[str, Sequence[str]], head: Sequence[str]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in rows.items()]
    return "\n".join(lines)
