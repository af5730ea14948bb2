"""Compares two results: the ratio measured side by side, and their differences."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cputune.records.claims import (
    EQUIVALENCE_MARGIN,
    EQUIVALENT,
    FASTER,
    SLOWER,
    UNDECIDED,
    Speedup,
    host_difference,
    unknown_facts,
)
from cputune.records.next_command import KEEP_THE_LAUNCH, QUIET, NextStep, command_of
from cputune.records.result import Measured, Result
from cputune.records.shared_texts import (
    YOURS,
    Verdict,
    between,
    slower_beyond,
    times_as_fast,
    training_time,
)
from cputune.report.show import basis
from cputune.report.study_table import speed
from cputune.report.writing import Block, Lines, Rows
from cputune.text.documents import plain
from cputune.tuner.comparing import Comparison

TUNE_BOTH = "cputune tune, on this machine, once for each, and compare those results here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonToShow:
    """A comparison with its results; ``after``: None for the best plan of ``before`` and the
    current launch.
    """

    comparison: Comparison
    before: Result
    after: Result | None = None
    first: str = "the first"
    second: str = "the second"

    @property
    def names(self) -> tuple[str, str]:
        if self.after is None:
            return YOURS, f"the best plan of {self.first}"
        return f"the plan of {self.first}", f"the plan of {self.second}"

    @property
    def differences(self) -> tuple[str, ...]:
        """The differences between the two results."""
        if self.after is None:
            return ()
        return differences(self.before, self.after)


def differences(a: Result, b: Result) -> tuple[str, ...]:
    """List the differences between two results: machine, limits, workload, software, plans."""
    machines = host_difference(a.host, b.host, names=("of the first", "of the second"))
    missing = unknown_facts(a.host) or unknown_facts(b.host)
    texts = []
    if machines:
        texts.append(f"other machine: {machines}")
    elif missing:
        facts = ", ".join(missing)
        texts.append(f"it is not known whether the machine is the same: one result has no {facts}")
    texts += _differences(_BEARING, dict(basis(a)), dict(basis(b)))
    first, second = _software_and_plans(a), _software_and_plans(b)
    texts += _differences(first | second, first, second)
    return tuple(texts)


# What the ratio depends on. Limits may change while the machine stays the same.
_BEARING = ("allowed CPUs", "CPU quota", "memory limit", "batch", "script", "data")


def _software_and_plans(result: Result) -> dict[str, str | None]:
    facts: dict[str, str | None] = {
        "kernel": result.kernel,
        "microcode": result.microcode,
        "best plan": result.best.plan.describe(),
        "current launch": result.baseline.plan.describe(),
    }
    return facts | dict(result.versions)


def _differences(
    names: Iterable[str], first: Mapping[str, str | None], second: Mapping[str, str | None]
) -> Iterator[str]:
    for name in names:
        there, here = (facts.get(name) or "not known" for facts in (first, second))
        if there != here:
            yield f"other {name}: {there}, and {here}"


def verdict(shown: ComparisonToShow) -> Verdict:
    """The verdict: the ratio, or the reason why two plans were not compared."""
    comparison, (first, second) = shown.comparison, shown.names
    ratio = comparison.speedup
    if comparison.is_same_plan:
        means = f"{_capital(second)} and {first} are the same plan."
        return Verdict(means=means, do=KEEP_THE_LAUNCH, sure="nothing had to be measured")
    if ratio is None:
        means = f"{_capital(second)} was not compared with {first}: {comparison.not_compared}."
        sure = "nothing was measured"
        if comparison.disturbed:
            do = shlex.join(["cputune", "compare", *_files(shown)])
            return Verdict(means=means, do=do, sure=sure, when=QUIET)
        do = command_of(NextStep(kind="tune"), shown.after or shown.before)
        return Verdict(means=means, do=do, sure=sure)
    if ratio.pairs == 1:
        count = "1 pair"
    else:
        count = f"{ratio.pairs} pairs"
    sure = f"{between(ratio)}, {count} side by side on this machine now"
    if ratio.outcome == EQUIVALENT:
        means = f"{_capital(second)} is as fast as {first}, within {EQUIVALENCE_MARGIN:.0%}."
        return Verdict(means=means, do=KEEP_THE_LAUNCH, sure=sure)
    if ratio.outcome == UNDECIDED:
        means = (
            f"Undecided: {second} ran {times_as_fast(ratio)} as {first}, and the interval "
            f"{ratio.low:.2f}–{ratio.high:.2f} allows both faster and slower."
        )
        return Verdict(means=means, do=_longer(shown), sure=sure)
    rate = comparison.before_rate
    reference = None
    if rate is not None:
        reference = Measured(plan=comparison.before, samples_per_second=rate)
    time_to_end = shown.before.time_to_end(reference, ratio.ratio)
    time = training_time(shown.before, time_to_end, ratio.ratio)
    means = f"{_capital(second)} is {times_as_fast(ratio)} as {first}: {time}."
    do = f"cputune run {shown.first}"
    if shown.after is not None and ratio.outcome == FASTER:
        do = f"cputune run {shown.second}"
    elif shown.after is None and ratio.outcome == SLOWER:
        do = command_of(NextStep(kind="tune"), shown.before)
    return Verdict(means=means, do=do, sure=sure, good=ratio.outcome == FASTER)


# Time limit after an undecided comparison, about three times the usual one.
LONGER = "10m"


def _longer(shown: ComparisonToShow) -> str:
    return shlex.join(["cputune", "compare", "--max-time", LONGER, *_files(shown)])


def _files(shown: ComparisonToShow) -> list[str]:
    if shown.after is None:
        return [shown.first]
    return [shown.first, shown.second]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def blocks(shown: ComparisonToShow) -> Iterator[Block]:
    """The verdict, the table of measurements, and the differences."""
    yield verdict(shown)
    if shown.comparison.speedup is not None:
        yield table(shown, shown.comparison.speedup)
    if shown.differences:
        yield Lines(tuple(("differs", text) for text in shown.differences))


def slower(shown: ComparisonToShow, share: float) -> str | None:
    """A sentence if the second plan is slower by more than this share, else None."""
    ratio = shown.comparison.speedup
    if ratio is None or not slower_beyond(ratio, share):
        return None
    first, second = shown.names
    return f"{second} is {times_as_fast(ratio)} as {first} ({between(ratio)})"


def table(shown: ComparisonToShow, ratio: Speedup) -> Rows:
    """Both plans with their throughput, and the ratio."""
    comparison, (first, second) = shown.comparison, shown.names
    interval = f"{ratio.low:.2f}–{ratio.high:.2f}, {ratio.outcome}"
    sides = (
        (first, comparison.before, comparison.before_rate, "1", "the reference"),
        (second, comparison.after, comparison.after_rate, f"{ratio.ratio:.2f}", interval),
    )
    rows = []
    for name, plan, rate, value, range_text in sides:
        throughput, of_throughput = "–", "–"
        if rate is not None:
            throughput, of_throughput = speed(rate)
        rows.append((name, plan.describe(), throughput, of_throughput, value, range_text))
    return Rows(
        headings=("", "plan", "samples/s", "95 % interval", "ratio", ""),
        right=frozenset({"samples/s", "ratio"}),
        rows=tuple(rows),
    )


def document(shown: ComparisonToShow) -> dict[str, object]:
    """The ``cputune.comparison/3`` document."""
    answer, comparison, (first, second) = verdict(shown), shown.comparison, shown.names
    ratio = comparison.speedup
    speedup = None
    if ratio is not None:
        speedup = plain(ratio) | {"outcome": ratio.outcome}
    sides = {}
    for key, name, plan, rate in (
        ("before", first, comparison.before, comparison.before_rate),
        ("after", second, comparison.after, comparison.after_rate),
    ):
        sides[key] = {"name": name, "plan": plain(plan), "samples_per_second": plain(rate)}
    return {
        "schema": "cputune.comparison/3",
        "verdict": answer.means,
        "do": answer.do,
        "sure": answer.sure,
        "speedup": speedup,
        "not_compared": comparison.not_compared,
        "before": sides["before"],
        "after": sides["after"],
        "differences": list(shown.differences),
        "runs": plain(comparison.runs),
    }
