"""Two results beside each other: may they be compared, and what is the ratio of their speeds?

They were measured at different times, each in its own interval, so the interval of a ratio holds
both. It does not hold what a machine does from one day to the next: only plans that ran side by
side, in one study, are free of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from cputune.emitters.header import section
from cputune.emitters.machine import host_difference, untold
from cputune.result import Measured, Result, Throughput
from cputune.tuner.paired import RUN_NOISE
from cputune.tuner.statistics import Z95
from cputune.workload import Workload

NO_DIFFERENCE = "no difference can be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as fast as the reference, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, or that no difference can be told: the interval holds 1."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else NO_DIFFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A result beside the reference.

    Attributes:
        name: of the result, as its user names it.
        today: the ratio of the two launches of today; None where none is to be said.
        best: the same of the two best plans.
        refused: why no ratio is said at all; None where they may be compared.
        other_machine: in what their machines differ; None where nothing says that they do.
        same_machine: None where a fact that would tell is not known of one of them.
        warnings: in what they differ that the ratio hangs on.
        notes: in what else they differ: versions, and which plan is the best.
    """

    name: str
    result: Result
    today: Ratio | None = None
    best: Ratio | None = None
    refused: str | None = None
    other_machine: str | None = None
    same_machine: bool | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare(reference: Result, other: Result, *, name: str) -> Compared:
    """Hold ``other``, which is called ``name``, against the reference."""
    refused = why_not(reference, other)
    machines = host_difference(reference.host, other.host, names=("of the first", "of this one"))
    missing = untold(reference.host) or untold(other.host)
    same = False if machines else None if missing else True
    if refused is not None:
        return Compared(
            name=name, result=other, refused=refused, other_machine=machines, same_machine=same
        )
    return Compared(
        name=name,
        result=other,
        other_machine=machines,
        same_machine=same,
        today=ratio(reference, reference.baseline, other, other.baseline),
        best=ratio(reference, reference.best, other, other.best),
        warnings=tuple(_warnings(reference, other, machines, missing)),
        notes=tuple(_notes(reference, other)),
    )


def why_not(a: Result, b: Result) -> str | None:
    """Why samples per second of the two are not of one kind; None where they are."""
    if _job(a.workload) != _job(b.workload):
        first, second = _named(a.workload), _named(b.workload)
        if first == second:
            return f"both trained {first}, but it was changed in between"
        return f"they trained different things: {first}, and {second}"
    for word, result in (("the first", a), ("this one", b)):
        if result.disturbed:
            return (
                f"{word} was measured while others computed on its machine: its speeds mean nothing"
            )
    return None


def _job(workload: Workload) -> object:
    """What is trained, without what is only said of it."""
    recipe = workload.recipe
    if recipe is None:
        return workload.program
    said = ("name", "description", "source")
    return {key: value for key, value in recipe.to_json().items() if key not in said}


def _named(workload: Workload) -> str:
    if workload.recipe is not None:
        return f"the recipe {workload.name}"
    return "the script " + " ".join(workload.program)


def _warnings(
    a: Result, b: Result, machines: str | None, missing: tuple[str, ...]
) -> Iterator[str]:
    if machines:
        yield f"other machine, so this compares machines: {machines}"
    elif missing:
        facts = ", ".join(missing)
        yield f"nobody knows whether it is the same machine: {facts} of one is not told"
    for group, key, limit in _LIMITS:
        there, here = (section(result.host, group).get(key) for result in (a, b))
        if there != here:
            yield f"other {limit}: {_limit(there)}, and {_limit(here)}"
    batches = tuple(_batch(result.workload) for result in (a, b))
    if batches[0] != batches[1]:
        yield f"other batch: {batches[0]}, and {batches[1]}"
    words = tuple(set(result.workload.argv) for result in (a, b))
    if words[0] != words[1]:
        gone, new = (sorted(one - two) for one, two in (words, words[::-1]))
        yield f"other arguments: {' '.join(gone) or 'none'}, and {' '.join(new) or 'none'}"
    if a.data != b.data:
        yield f"other data: {a.data or 'not known'}, and {b.data or 'not known'}"
    for word, result in (("the first", a), ("this one", b)):
        if not result.confirmation:
            yield f"{word} was not confirmed side by side: its speeds are those of single trials"


_LIMITS = (
    ("topology", "allowed", "allowed CPUs"),
    ("limits", "cpu_quota", "CPU quota"),
    ("limits", "memory_bytes", "memory limit in bytes"),
)
"""What a container or a scheduler may change while the machine stays the same."""


def _limit(value: object) -> str:
    return "none" if value is None else str(value)


def _batch(workload: Workload) -> str:
    if workload.batch_per_rank is not None:
        return f"{workload.batch_per_rank} samples of each rank"
    size = workload.global_batch_size
    return "not known" if size is None else f"{size} samples"


def _notes(a: Result, b: Result) -> Iterator[str]:
    changed = [
        f"{name} {a.versions.get(name, 'none')} → {b.versions.get(name, 'none')}"
        for name in sorted({*a.versions, *b.versions})
        if a.versions.get(name) != b.versions.get(name)
    ]
    if changed:
        yield "other versions: " + ", ".join(changed)
    if a.best.plan != b.best.plan:
        yield f"other best plan: {a.best.plan.describe()} → {b.best.plan.describe()}"
    if a.baseline.plan != b.baseline.plan:
        yield f"other launch of today: {a.baseline.plan.describe()} → {b.baseline.plan.describe()}"


def ratio(a: Result, of_a: Measured, b: Result, of_b: Measured) -> Ratio | None:
    """Speed of ``of_b`` over that of ``of_a``; None where one of them has no speed."""
    first, second = of_a.samples_per_second, of_b.samples_per_second
    if min(first.low, first.median, second.low, second.median) <= 0:
        return None
    center = math.log(second.median / first.median)
    below_a, above_a = _halves(first, confirmed=bool(a.confirmation))
    below_b, above_b = _halves(second, confirmed=bool(b.confirmation))
    return Ratio(
        ratio=math.exp(center),
        low=math.exp(center - math.hypot(below_b, above_a)),
        high=math.exp(center + math.hypot(above_b, below_a)),
    )


def _halves(rate: Throughput, *, confirmed: bool) -> tuple[float, float]:
    """The interval below and above the median, as logs.

    The interval of a single trial is that of its steps alone; what two runs differ by comes on
    top. A confirmation's holds it already.
    """
    runs = 0.0 if confirmed else Z95 * RUN_NOISE
    below, above = math.log(rate.median / rate.low), math.log(rate.high / rate.median)
    return math.hypot(below, runs), math.hypot(above, runs)
