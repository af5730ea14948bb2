"""What each change is worth: from the baseline to the best plan, one knob at a time.

The plans in between run in the second block of the confirmation, each compared with the one before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cputune.plans.knobs import KNOBS, kept_between, kind_between, kind_of, knob_named
from cputune.plans.knobs.record import KINDS, Kind, KnobValue
from cputune.plans.plan import Plan
from cputune.records.result import Rung, Worth
from cputune.tuner.contenders import Contender, gain_of
from cputune.tuner.gains import Gain
from cputune.tuner.space import SearchSpace

LAYOUT = "layout"
"""The change of everything that decides the CPUs and the number of ranks."""

_LAID_OUT = ("backend", "ccl_workers")
"""Knobs that change together with the layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step to the best plan: what is changed, to what, and the resulting plan."""

    knob: str
    value: str
    plan: Plan


def changes(space: SearchSpace, baseline: Plan, best: Plan) -> tuple[Change, ...]:
    """The steps from the baseline to the best plan, those that change the training least first.

    So the plans form a ladder (``rungs_of``). A change that no plan has alone (tcmalloc without its
    OpenMP runtime) is combined with the next.
    """
    meant = dict(space.values[best])
    separate = separate_knobs()
    layout = {name: value for name, value in meant.items() if name not in separate}
    begin = _layout_of(space, baseline, separate)
    same_ranks = baseline.world_size == best.world_size
    order: list[str] = sorted(separate, key=lambda name: KINDS.index(kind_of(knob_named(name))))
    place = 0
    if begin is not None and not same_ranks:
        harmless = (kind_of(knob_named(name)) == KINDS[0] for name in order)
        place = sum(harmless)
    order.insert(place, LAYOUT)
    values = {**meant, **{name: baseline.value(name) for name in separate}}
    if begin is not None and place:
        values.update(begin)
    plans = {tuple(of.items()): plan for plan, of in space.values.items()}
    pending: list[tuple[str, str]] = []
    path: list[Change] = []
    for name in order:
        if name == LAYOUT:
            values.update(layout)
            if shape(baseline) != shape(best):
                pending.append((LAYOUT, layout_words(best)))
        elif values[name] != meant[name]:
            values[name] = meant[name]
            pending.append((name, str(meant[name])))
        plan = plans.get(tuple(values.items()))
        if plan is not None and pending:
            knobs, texts = zip(*pending, strict=True)
            path.append(Change(knob=", ".join(knobs), value=", ".join(texts), plan=plan))
            pending = []
    return tuple(path)


def _layout_of(
    space: SearchSpace, baseline: Plan, separate: Sequence[str]
) -> dict[str, KnobValue] | None:
    """The layout of the baseline; None if no plan of the space has it."""
    for plan, values in space.values.items():
        if shape(plan) == shape(baseline):
            by_name = {}
            for name, value in values.items():
                if name not in separate:
                    by_name[name] = value
            return by_name
    return None


def rungs_of(
    path: Sequence[Change], contenders: Sequence[Contender], noise: float, whole: Gain
) -> tuple[Rung, ...]:
    """For each kind of change the last plan of the steps that changes no more than that.

    ``contenders`` are the baseline and the plan of each change; ``whole`` is the gain of the last
    one.
    """
    baseline, *others = contenders
    last: dict[Kind, int] = {}
    for at, change in enumerate(path):
        last[kind_between(baseline.plan, change.plan)] = at
    rungs = []
    for kind, at in last.items():
        gain: Gain | None = whole
        if at + 1 < len(path):
            gain = gain_of(baseline, others[at], noise, doubt=0.05, seen=whole.scattered)
        if gain is not None:
            rungs.append(Rung(kind=kind, plan=path[at].plan, speedup=gain.speedup))
    return tuple(rungs)


def worths(
    path: Sequence[Change], contenders: Sequence[Contender], noise: float, whole: Gain
) -> tuple[Worth, ...]:
    """The gain of each change over the plan before it; changes without a number are left out.

    The plans share one block, so the difference between processes is taken from the comparison of
    the ``whole``, which has several blocks.
    """
    return tuple(
        Worth(
            knob=change.knob,
            value=change.value,
            speedup=gain.speedup,
            keeps=kept_between(before.plan, change.plan),
        )
        for change, (before, after) in zip(path, pairwise(contenders), strict=True)
        if (gain := gain_of(before, after, noise, doubt=0.05, seen=whole.scattered)) is not None
    )


def why_not_one_by_one(each: Sequence[Worth], whole: Gain) -> str | None:
    """Why single changes get no numbers; None if these multiply to the whole."""
    product = math.fsum(math.log(worth.speedup.ratio) for worth in each)
    if whole.low <= product <= whole.high:
        return None
    together = whole.speedup
    return (
        "The changes depend on each other: one by one they multiply to "
        f"{math.exp(product):.2f} times as fast, and together they make {together.ratio:.2f} "
        f"(95 % interval {together.low:.2f} to {together.high:.2f}). So none has "
        "its own number."
    )


def separate_knobs() -> tuple[str, ...]:
    """Knobs that can be changed while every rank keeps its CPUs."""
    names: list[str] = []
    for k in KNOBS:
        if k.put is not None and k.name not in _LAID_OUT:
            names.append(k.name)
    return tuple(names)


def shape(plan: Plan) -> tuple[int, int, int, frozenset[int]]:
    """What identifies a layout: nodes, ranks, threads of each, and the CPUs of all."""
    cpus = frozenset(cpu for of_rank in plan.cpus for cpu in of_rank)
    return plan.nodes, plan.processes_per_node, plan.threads_per_process, cpus


def layout_words(plan: Plan) -> str:
    """``2 × 14 threads``, and the number of nodes if there are several."""
    text = f"{plan.processes_per_node} × {plan.threads_per_process} threads"
    if plan.nodes == 1:
        return text
    return f"{plan.nodes} nodes, {text}"
