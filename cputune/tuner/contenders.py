"""A plan in the confirmation: its rounds, its speed, its gain over another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from cputune.plans.plan import Plan
from cputune.records.result import Role, Throughput
from cputune.tuner.gains import (
    DOUBT,
    NOTHING_SEEN,
    Gain,
    Scattered,
    gain_side_by_side,
    throughput,
)
from cputune.tuner.reading import SizedStep, doubt_of_mean, levelled

SLOWER = "slower than the other"


@dataclass(slots=True, kw_only=True)
class Contender:
    """A plan in the confirmation.

    Attributes:
        logs: log seconds per sample of each round, or None; if batches differ in length, those of
            the mean batch (``level_rounds``).
        blocks: the block number of each round.
        ages: how many steps the processes had taken before a round; infinite if each round has
            new ones.
        places: in each round, the place of its processes in the order of starts of their block,
            from -0.5 (first) to 0.5 (last); None if that is not known.
        steps: those of each round that count.
        sizes: of the first steps of a process.
        doubt_of_data: the variance of ``logs`` if another plan takes other samples.
        out: why it is no longer measured.
    """

    role: Role
    plan: Plan
    logs: list[float | None] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)
    places: list[float | None] = field(default_factory=list)
    steps: dict[int, list[SizedStep]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    doubt_of_data: float = 0.0
    out: str | None = None

    def add(
        self,
        block: int,
        log: float | None = None,
        age: float = math.inf,
        place: float | None = None,
    ) -> None:
        """Record a round."""
        self.blocks.append(block)
        self.logs.append(log)
        self.ages.append(age)
        self.places.append(place)

    @property
    def measured(self) -> list[float]:
        """The rounds that gave a number."""
        values: list[float] = []
        for value in self.logs:
            if value is not None:
                values.append(value)
        return values


def level_rounds(contenders: Sequence[Contender]) -> None:
    """Convert each round to the mean batch; the same samples mean the same batches."""
    taking = [contender for contender in contenders if contender.steps]
    orders = {_order(contender.plan) for contender in taking}
    common = None
    if len(orders) < 2:
        # In one order all plans take the same samples first: these batches are the same for all.
        common = min((len(contender.sizes) for contender in taking), default=0)
    for contender in taking:
        sizes = contender.sizes[:common]
        if len(set(sizes)) < 2:
            continue
        every: list[SizedStep] = []
        for steps in contender.steps.values():
            every += steps
        logs = iter(levelled(every, sizes))
        for at, steps in contender.steps.items():
            value = median([next(logs) for _ in steps])
            if contender.logs[at] is not None:
                contender.logs[at] = value
        contender.doubt_of_data = doubt_of_mean(every, sizes)


def _order(plan: Plan) -> object:
    return plan.settings.get("order")


def gain_of(
    baseline: Contender,
    other: Contender,
    noise: float,
    *,
    doubt: float = DOUBT,
    elsewhere: Scattered = NOTHING_SEEN,
) -> Gain | None:
    """The paired gain of a plan over the baseline; None before two rounds have both.

    ``elsewhere`` is how blocks of other plans scattered.
    """
    count = max(baseline.blocks, default=-1) + 1
    blocks: list[list[float]] = [[] for _ in range(count)]
    ages: list[list[float]] = [[] for _ in range(count)]
    later = [0.0] * count
    for at, block in enumerate(baseline.blocks[: len(other.logs)]):
        slow, fast = baseline.logs[at], other.logs[at]
        if slow is not None and fast is not None:
            blocks[block].append(slow - fast)
            ages[block].append(min(_age(other, at), _age(baseline, at)))
            later[block] = _later(baseline, other, at)
    shared = 0.0
    if _order(baseline.plan) != _order(other.plan):
        shared = baseline.doubt_of_data + other.doubt_of_data
    return gain_side_by_side(
        blocks, noise, ages=ages, later=later, doubt=doubt, shared=shared, elsewhere=elsewhere
    )


def blocks_of(contender: Contender) -> set[int]:
    """The blocks in which a contender gave a number."""
    rounds = zip(contender.blocks, contender.logs, strict=True)
    return {block for block, log in rounds if log is not None}


def _age(contender: Contender, at: int) -> float:
    if at < len(contender.ages):
        return contender.ages[at]
    return math.inf


def _later(contender: Contender, other: Contender, at: int) -> float:
    """How much later a contender was started than another in the block of a round; 0: not known."""
    if at >= min(len(contender.places), len(other.places)):
        return 0.0
    place, others = contender.places[at], other.places[at]
    if place is None or others is None:
        return 0.0
    return place - others


def fastest_of(
    baseline: Contender, rivals: Sequence[Contender], noise: float
) -> tuple[Contender, Gain] | None:
    """The rival with the largest gain, and its gain.

    The rivals were chosen in rounds of their own, so the largest gain is no matter of luck.
    """
    fastest: tuple[Contender, Gain] | None = None
    for rival in rivals:
        if rival.out is not None:
            continue
        gain = gain_of(baseline, rival, noise)
        if gain is not None and (fastest is None or gain.mean > fastest[1].mean):
            fastest = (rival, gain)
    return fastest


def throughput_of(contender: Contender, noise: float) -> Throughput:
    """The throughput of a plan over all its rounds."""
    blocks = max(1, len(blocks_of(contender)))
    return throughput(contender.measured, noise, processes=blocks)
