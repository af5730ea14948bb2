"""Compares two results: whether they may be compared, and the ratio of their speeds.

They were measured at different times, each speed with its own interval; the interval of a ratio
combines both. It does not contain what a machine changes by from one day to the next. Only plans
that ran side by side, in one study, are free of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cputune.documents import plain
from cputune.emitters.header import host_difference, untold
from cputune.errors import ResultError
from cputune.report.show import basis, launch_commands
from cputune.report.tuning import speed
from cputune.report.writing import Block, Lines, Rows
from cputune.result import Measured, Result, Speedup, Throughput
from cputune.tuner.gains import RUN_NOISE
from cputune.tuner.race import Z95
from cputune.words import (
    NOTHING_TO_DO,
    TUNE_AGAIN,
    Interval,
    Verdict,
    between,
    surely_slower,
    times_as_fast,
    training_time,
)
from cputune.workload import Workload

NO_DIFFERENCE = "no difference can be told"

SLOWER = "5%"
"""The share of speed that may be lost where the user names none: a smaller loss may be due to the
day."""


def in_a_word(ratio: Interval) -> str:
    """``faster`` or ``slower``, or that no difference can be told: the interval contains 1."""
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else NO_DIFFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A result beside the reference.

    Attributes:
        name: how the user names the result.
        today: the ratio of today's launches; None where there is none.
        best: the ratio of the best plans; None where there is none.
        other_machine: how their machines differ; None where nothing shows that they do.
        warnings: differences that the ratio depends on.
        notes: other differences: versions, and which plan is the best.
    """

    name: str
    result: Result
    today: Speedup | None = None
    best: Speedup | None = None
    other_machine: str | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def compare(reference: Result, other: Result, *, name: str = "the other") -> Compared:
    """Hold ``other``, which is called ``name``, against the reference.

    Raises ResultError where their speeds cannot be compared.
    """
    if (why := _why_not(reference, other)) is not None:
        raise ResultError(
            f"{name} cannot be compared: {why}",
            hint="tune the same work twice, and compare those results",
        )
    machines = host_difference(reference.host, other.host, names=("of the first", "of this one"))
    missing = untold(reference.host) or untold(other.host)
    warnings = []
    if machines:
        warnings.append(f"other machine, so this compares machines: {machines}")
    elif missing:
        facts = ", ".join(missing)
        warnings.append(f"nobody knows whether it is the same machine: {facts} of one is not told")
    warnings += _differences(_BEARING, dict(basis(reference)), dict(basis(other)))
    warnings += [
        f"{word} was not confirmed side by side: its speeds are those of single trials"
        for word, result in (("the first", reference), ("this one", other))
        if not result.confirmation
    ]
    first, second = _beside(reference), _beside(other)
    return Compared(
        name=name,
        result=other,
        today=ratio(reference, reference.baseline, other, other.baseline),
        best=ratio(reference, reference.best, other, other.best),
        other_machine=machines,
        warnings=tuple(warnings),
        notes=tuple(_differences({**first, **second}, first, second)),
    )


_BEARING = ("allowed CPUs", "CPU quota", "memory limit", "batch", "script", "data")
"""What the ratio depends on; limits may change while the machine stays the same."""


def _beside(result: Result) -> dict[str, str | None]:
    """Other things that may differ: software, and which plans they are."""
    return {
        "kernel": result.kernel,
        "microcode": result.microcode,
        "best plan": result.best.plan.describe(),
        "launch of today": result.baseline.plan.describe(),
        **result.versions,
    }


def _differences(
    names: Iterable[str], first: Mapping[str, str | None], second: Mapping[str, str | None]
) -> Iterator[str]:
    for name in names:
        there, here = (told.get(name) or "not told" for told in (first, second))
        if there != here:
            yield f"other {name}: {there}, and {here}"


def _why_not(a: Result, b: Result) -> str | None:
    """Why the samples per second of the two cannot be compared; None where they can."""
    if a == b:
        return "it is one and the same result"
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
    """What is trained, without fields that only describe it."""
    recipe = workload.recipe
    if recipe is None:
        return workload.program
    said = ("name", "description", "source")
    return {key: value for key, value in recipe.to_json().items() if key not in said}


def _named(workload: Workload) -> str:
    if workload.recipe is not None:
        return f"the recipe {workload.name}"
    return "the script " + " ".join(workload.program)


def ratio(a: Result, of_a: Measured, b: Result, of_b: Measured) -> Speedup | None:
    """Speed of ``of_b`` over that of ``of_a``; None where one of them has no speed."""
    first, second = of_a.samples_per_second, of_b.samples_per_second
    if min(first.low, first.median, second.low, second.median) <= 0:
        return None
    center = math.log(second.median / first.median)
    below_a, above_a = _halves(first, confirmed=bool(a.confirmation))
    below_b, above_b = _halves(second, confirmed=bool(b.confirmation))
    return Speedup(
        ratio=math.exp(center),
        low=math.exp(center - math.hypot(below_b, above_a)),
        high=math.exp(center + math.hypot(above_b, below_a)),
    )


def _halves(rate: Throughput, *, confirmed: bool) -> tuple[float, float]:
    """The distances from the median to the ends of the interval, as logs.

    The interval of a single trial is that of its steps alone, so what two runs differ by is added.
    The interval of a confirmation contains it already.
    """
    runs = 0.0 if confirmed else Z95 * RUN_NOISE
    below, above = math.log(rate.median / rate.low), math.log(rate.high / rate.median)
    return math.hypot(below, runs), math.hypot(above, runs)


def verdict(first: str, reference: Result, one: Compared) -> Verdict:
    """The verdict, which stands first: what became of the best plan."""
    best = one.best
    if best is None:
        return Verdict(means="No speeds were compared.", do=NOTHING_TO_DO, sure="not at all")
    sure = f"{between(best)}, measured at different times"
    if in_a_word(best) == NO_DIFFERENCE:
        means = f"The best plans of {one.name} and {first} are as fast: {NO_DIFFERENCE}."
        return Verdict(means=means, do=NOTHING_TO_DO, sure=sure)
    whole = one.result.time_to_end(reference.best, best.ratio)
    time = training_time(one.result, whole, best.ratio)
    do = launch_commands(one.name, one.result.best.plan.nodes)[0]
    if in_a_word(best) == "slower":
        there = f"nothing: {first} is of another machine"
        do = there if one.other_machine else "tune again, as you did for that one"
    means = f"{one.name} is {times_as_fast(best)} as {first}: {time}."
    return Verdict(means=means, do=do, sure=sure)


DIFFERENT_TIMES = (
    "Measured at different times; what a machine does from one day to the next is in no interval."
)


def blocks(first: str, reference: Result, one: Compared) -> Iterator[Block]:
    """The verdict, the table, and in what they differ: warnings first."""
    yield verdict(first, reference, one)
    yield table(first, reference, one)
    warnings = tuple(("warning", text) for text in one.warnings)
    yield Lines((*warnings, *(("note", text) for text in (*one.notes, DIFFERENT_TIMES))))


def slower(one: Compared, share: float) -> str | None:
    """That the best plan is surely slower by more than this share; None where it is not."""
    if one.best is None or not surely_slower(one.best, share):
        return None
    words = f"{times_as_fast(one.best)} ({between(one.best)})"
    return f"{one.name}: its best plan is {words}; {TUNE_AGAIN}"


def table(first: str, reference: Result, one: Compared) -> Rows:
    """Today's launches, then the best plans: each with its speed and its ratio to the first."""
    rows = []
    for what, before, after, ratio in (
        ("today", reference.baseline, one.result.baseline, one.today),
        ("best", reference.best, one.result.best, one.best),
    ):
        said = ("–", "not compared")
        if ratio is not None:
            words = f"{ratio.low:.2f}–{ratio.high:.2f}, {in_a_word(ratio)}"
            said = (f"{ratio.ratio:.2f}", words)
        rows.append((what, first, *speed(before.samples_per_second), "1", "the reference"))
        rows.append(("", one.name, *speed(after.samples_per_second), *said))
    return Rows(
        headings=("", "result", "samples/s", "95 % interval", "ratio", ""),
        right=frozenset({"samples/s", "ratio"}),
        rows=tuple(rows),
    )


def document(first: str, reference: Result, one: Compared) -> dict[str, object]:
    """The ``cputune.comparison/1`` document; the first of its results is the reference."""
    said = verdict(first, reference, one)
    members = []
    for member in (Compared(name=first, result=reference), one):
        told = ("name", "other_machine", "warnings", "notes")
        found = {key: plain(getattr(member, key)) for key in told}
        for what, side in (("today", member.result.baseline), ("best", member.result.best)):
            ratio = getattr(member, what)
            words = None if ratio is None else {**plain(ratio), "verdict": in_a_word(ratio)}
            found[what] = {**plain(side), "ratio": words}
        members.append(found)
    texts = {"verdict": said.means, "do": said.do, "sure": said.sure}
    return {"schema": "cputune.comparison/1", **texts, "results": members}
