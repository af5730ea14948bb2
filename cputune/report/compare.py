"""Two results beside each other: the ratio that was measured side by side, and what differs."""

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
from cputune.records.words import (
    YOURS,
    Verdict,
    between,
    slower_beyond,
    times_as_fast,
    training_time,
)
from cputune.report.show import basis
from cputune.report.tuning import speed
from cputune.report.writing import Block, Lines, Rows
from cputune.text.documents import plain
from cputune.tuner.comparing import Comparison

TODAY = YOURS

TUNE_BOTH = "cputune tune, on this machine, once for each, and compare those results here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonToShow:
    """A comparison with the results that it is of, each by the word that the user gave.

    ``after`` is None where the best plan of ``before`` is held against today's launch.
    """

    found: Comparison
    before: Result
    after: Result | None = None
    first: str = "the first"
    second: str = "the second"

    @property
    def names(self) -> tuple[str, str]:
        """What the two plans are called."""
        if self.after is None:
            return TODAY, f"the best plan of {self.first}"
        return f"the plan of {self.first}", f"the plan of {self.second}"

    @property
    def differences(self) -> tuple[str, ...]:
        """In what the two results differ."""
        if self.after is None:
            return ()
        return differences(self.before, self.after)


def differences(a: Result, b: Result) -> tuple[str, ...]:
    """In what two results differ: machine, limits, work, software, plans."""
    machines = host_difference(a.host, b.host, names=("of the first", "of the second"))
    found = [f"other machine: {machines}"] if machines else []
    missing = unknown_facts(a.host) or unknown_facts(b.host)
    if not machines and missing:
        facts = ", ".join(missing)
        found.append(f"nobody knows whether it is the same machine: {facts} of one is not told")
    found += _differences(_BEARING, dict(basis(a)), dict(basis(b)))
    first, second = _beside(a), _beside(b)
    found += _differences({**first, **second}, first, second)
    return tuple(found)


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
        there, here = (versions.get(name) or "not told" for versions in (first, second))
        if there != here:
            yield f"other {name}: {there}, and {here}"


def verdict(shown: ComparisonToShow) -> Verdict:
    """The verdict, which stands first: the ratio, or why there is none."""
    found, (first, second) = shown.found, shown.names
    ratio = found.speedup
    if found.is_same_plan:
        means = f"{_capital(second)} and {first} are one and the same plan."
        return Verdict(means=means, do=KEEP_THE_LAUNCH, sure="nothing had to be measured")
    if ratio is None:
        means = f"{_capital(second)} was not compared with {first}: {found.not_compared}."
        sure = "nothing was measured"
        if found.disturbed:
            do = shlex.join(["cputune", "compare", *_files(shown)])
            return Verdict(means=means, do=do, sure=sure, when=QUIET)
        do = command_of(NextStep(kind="tune"), shown.after or shown.before)
        return Verdict(means=means, do=do, sure=sure)
    count = "1 pair" if ratio.pairs == 1 else f"{ratio.pairs} pairs"
    sure = f"{between(ratio)}, {count} side by side on this machine now"
    if ratio.outcome == EQUIVALENT:
        means = f"{_capital(second)} is as fast as {first}, within {EQUIVALENCE_MARGIN:.0%}."
        return Verdict(means=means, do=KEEP_THE_LAUNCH, sure=sure)
    if ratio.outcome == UNDECIDED:
        means = (
            f"Undecided: {second} ran {times_as_fast(ratio)} as {first}, and the interval "
            f"{ratio.low:.2f}–{ratio.high:.2f} allows both faster and slower."
        )
        return Verdict(means=means, do=_longer(shown), sure=f"not sure: {sure}")
    rate = found.before_rate
    reference = None if rate is None else Measured(plan=found.before, samples_per_second=rate)
    whole = shown.before.time_to_end(reference, ratio.ratio)
    time = training_time(shown.before, whole, ratio.ratio)
    means = f"{_capital(second)} is {times_as_fast(ratio)} as {first}: {time}."
    do = f"cputune run {shown.first}"
    if shown.after is not None and ratio.outcome == FASTER:
        do = f"cputune run {shown.second}"
    elif shown.after is None and ratio.outcome == SLOWER:
        do = command_of(NextStep(kind="tune"), shown.before)
    return Verdict(means=means, do=do, sure=sure, good=ratio.outcome == FASTER)


LONGER = "10m"
"""The time that is proposed for a comparison that is undecided: some three times the usual one."""


def _longer(shown: ComparisonToShow) -> str:
    """The command that compares again for a longer time."""
    return shlex.join(["cputune", "compare", "--max-time", LONGER, *_files(shown)])


def _files(shown: ComparisonToShow) -> list[str]:
    """The words by which the user named the results."""
    return [shown.first] if shown.after is None else [shown.first, shown.second]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def blocks(shown: ComparisonToShow) -> Iterator[Block]:
    """The verdict, the table of what was measured, and in what the results differ."""
    yield verdict(shown)
    if shown.found.speedup is not None:
        yield table(shown, shown.found.speedup)
    if shown.differences:
        yield Lines(tuple(("differs", text) for text in shown.differences))


def slower(shown: ComparisonToShow, share: float) -> str | None:
    """That the second plan is surely slower by more than this share; None where it is not."""
    ratio = shown.found.speedup
    if ratio is None or not slower_beyond(ratio, share):
        return None
    first, second = shown.names
    return f"{second} is {times_as_fast(ratio)} as {first} ({between(ratio)})"


def table(shown: ComparisonToShow, ratio: Speedup) -> Rows:
    """Both plans, each with its speed, and the ratio."""
    found, (first, second) = shown.found, shown.names
    said = (f"{ratio.ratio:.2f}", f"{ratio.low:.2f}–{ratio.high:.2f}, {ratio.outcome}")
    rows = []
    for name, plan, rate, words in (
        (first, found.before, found.before_rate, ("1", "the reference")),
        (second, found.after, found.after_rate, said),
    ):
        figures = ("–", "–") if rate is None else speed(rate)
        rows.append((name, plan.describe(), *figures, *words))
    return Rows(
        headings=("", "plan", "samples/s", "95 % interval", "ratio", ""),
        right=frozenset({"samples/s", "ratio"}),
        rows=tuple(rows),
    )


def document(shown: ComparisonToShow) -> dict[str, object]:
    """The ``cputune.comparison/3`` document."""
    said, found, (first, second) = verdict(shown), shown.found, shown.names
    ratio = found.speedup
    sides = {}
    for key, name, plan, rate in (
        ("before", first, found.before, found.before_rate),
        ("after", second, found.after, found.after_rate),
    ):
        sides[key] = {"name": name, "plan": plain(plan), "samples_per_second": plain(rate)}
    return {
        "schema": "cputune.comparison/3",
        "verdict": said.means,
        "do": said.do,
        "sure": said.sure,
        "speedup": None if ratio is None else {**plain(ratio), "outcome": ratio.outcome},
        "not_compared": found.not_compared,
        **sides,
        "differences": list(shown.differences),
        "runs": plain(found.runs),
    }
