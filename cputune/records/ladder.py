"""The gain of a plan for each kind of change that it makes in the training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cputune.inside.first_steps import LOOKED_AT
from cputune.plans.knobs import changed, kind_between, kind_of
from cputune.plans.knobs.record import KINDS, Kind
from cputune.plans.plan import Plan
from cputune.plans.values import as_text as knob_words
from cputune.plans.workload import Workload
from cputune.records.claims import FASTER, factor
from cputune.records.result import Measured, Result, Throughput
from cputune.text.plain import count

KIND_WORDS: Mapping[Kind, str] = {
    "touches nothing": "changing nothing in the training",
    "same mathematics": "with the same mathematics",
    "other numbers": "with other numbers too",
}


def ladder_of(result: Result) -> tuple[str, ...]:
    """A line for each kind of change: the ratio, what is changed, what was checked.

    Empty if the plan changes nothing in the training.
    """
    if [rung.kind for rung in result.rungs] in ([], ["touches nothing"]):
        return ()
    lines = []
    before = result.baseline.plan
    for rung in result.rungs:
        ratio = ""
        if rung.speedup.narrow:
            ratio = factor(rung.speedup)
            if rung.speedup.outcome != FASTER:
                ratio += f" {rung.speedup.outcome},"
        changes = ", ".join(changes_between(before, rung.plan, rung.kind))
        line = f"{ratio} {KIND_WORDS[rung.kind]}: {changes}"
        if not rung.speedup.narrow:
            line = f"{KIND_WORDS[rung.kind]}, not measured alone: {changes}"
        if rung.kind == "same mathematics":
            line += f" ({checked(result.workload)})"
        lines.append(line)
        before = rung.plan
    return tuple(lines)


def changes_between(before: Plan, after: Plan, kind: Kind) -> Iterator[str]:
    """Yield the differences between two plans of the ladder, those of this kind first."""
    for knob in sorted(changed(before, after), key=lambda knob: kind_of(knob) != kind):
        if knob.name == "ranks":
            yield count(after.world_size, "rank")
        elif knob.name == "threads":
            yield count(after.threads_per_process, "thread")
        else:
            yield f"{knob.name} {knob_words(knob.value_in(after))}"


def checked(workload: Workload) -> str:
    """Describe what was checked of a plan that keeps the mathematics, and up to which point."""
    if workload.training is None:
        return "not checked: the launch completed no step that could be compared"
    text = f"checked on {LOOKED_AT} updates: samples, learning rate, loss, gradient"
    equivalence = workload.model_answers
    if equivalence is not None and equivalence.updates is not None:
        text += f"; batches and model checked up to update {equivalence.updates}"
    if workload.recipe is None:
        text += "; the ranks are compared while it trains"
    return text


def keeping(result: Result, keep: str | None) -> Result:
    """The result with the best plan, and its ratio, that changes no more in the training than
    ``keep``.

    The ratio is missing if the plan was compared in a single block.
    """
    kinds = {"numbers": KINDS[:1], "mathematics": KINDS[:2]}
    if keep not in kinds or kind_between(result.baseline.plan, result.best.plan) in kinds[keep]:
        return result
    allowed = [rung for rung in result.rungs if rung.kind in kinds[keep]]
    if not allowed:
        reason = f"no plan that keeps the {keep} was compared"
        return replace(result, best=result.baseline, speedup=None, not_compared=reason, rungs=())
    rung = allowed[-1]
    rate = result.baseline.samples_per_second
    times = rung.speedup
    speed = Throughput(
        centre=rate.centre * times.ratio, low=rate.low * times.low, high=rate.high * times.high
    )
    reason = (
        f"in one block of processes it ran {times.ratio:.2f} times as fast as the baseline "
        f"({times.low:.2f} to {times.high:.2f})"
    )
    return replace(
        result,
        best=Measured(plan=rung.plan, samples_per_second=speed),
        speedup=None,
        not_compared=reason,
        rungs=tuple(allowed),
    )
