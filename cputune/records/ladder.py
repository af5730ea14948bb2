"""How much a plan gains for each kind of change that it makes in the training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cputune.inside.first_steps import LOOKED_AT
from cputune.plans.knobs import kept_by_change, kind_between, kind_of, knob_named
from cputune.plans.knobs.record import KINDS, Kind, in_words as knob_words
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.records.claims import factor
from cputune.records.result import Measured, Result, Throughput
from cputune.text.plain import count

KIND_WORDS: Mapping[Kind, str] = {
    "touches nothing": "changing nothing in the training",
    "same mathematics": "with the same mathematics",
    "other numbers": "with other numbers too",
}
"""Each kind of change in a few words, after the ratio of a plan that makes it."""


def ladder_of(result: Result) -> tuple[str, ...]:
    """A line for each kind of change in the training: the ratio, what is changed, what was checked.

    Empty for a plan that touches nothing: there is nothing to choose.
    """
    if [rung.kind for rung in result.rungs] in ([], ["touches nothing"]):
        return ()
    lines = []
    before = result.baseline.plan
    for rung in result.rungs:
        ratio = factor(rung.speedup) if rung.speedup.narrow else "not known"
        made = ", ".join(_changed(before, rung.plan, rung.kind))
        line = f"{ratio} {KIND_WORDS[rung.kind]}: {made}"
        if rung.kind == "same mathematics":
            line += f" ({checked(result.workload)})"
        lines.append(line)
        before = rung.plan
    return tuple(lines)


def _changed(before: Plan, after: Plan, kind: Kind) -> Iterator[str]:
    """What differs between two plans of the ladder, in words; what is of this kind comes first."""
    names = kept_by_change(before, after)
    for name in sorted(names, key=lambda name: kind_of(knob_named(name)) != kind):
        if name == "ranks":
            yield count(after.world_size, "rank")
        elif name == "threads":
            yield count(after.threads_per_process, "thread")
        else:
            yield f"{name} {knob_words(after.value(name))}"


def checked(workload: Workload) -> str:
    """What was checked of a plan that promises the same mathematics, with its limit."""
    if workload.training is None:
        return "not checked: the launch has shown no step that could be compared"
    found = f"checked on {LOOKED_AT} updates: samples, learning rate, loss, gradient"
    licence = workload.licence
    if licence is not None and licence.updates is not None:
        found += f"; batches and model asked up to update {licence.updates}"
    if workload.recipe is None:
        found += "; the ranks are compared while it trains"
    return found


def keeping(result: Result, keep: str | None) -> Result:
    """The result whose best plan changes no more in the training than ``keep`` allows.

    Its ratio is the one of that plan; if it was compared in one block alone, there is none.
    """
    kinds = {"numbers": KINDS[:1], "mathematics": KINDS[:2]}
    if keep not in kinds or kind_between(result.baseline.plan, result.best.plan) in kinds[keep]:
        return result
    allowed = [rung for rung in result.rungs if rung.kind in kinds[keep]]
    if not allowed:
        why = f"no plan that keeps the {keep} was compared"
        return replace(result, best=result.baseline, speedup=None, not_compared=why, rungs=())
    rung = allowed[-1]
    rate = result.baseline.samples_per_second
    times = rung.speedup
    speed = Throughput(
        centre=rate.centre * times.ratio, low=rate.low * times.low, high=rate.high * times.high
    )
    why = (
        f"in one block of processes it ran {times.ratio:.2f} times as fast as the baseline "
        f"({times.low:.2f} to {times.high:.2f})"
    )
    return replace(
        result,
        best=Measured(plan=rung.plan, samples_per_second=speed),
        speedup=None,
        not_compared=why,
        rungs=tuple(allowed),
    )
