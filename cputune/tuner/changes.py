"""What each change is worth: from today's launch to the best plan, one knob at a time.

The plans on the way live beside the two in the second block of the confirmation, and each
is compared with the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cputune.plans.knobs import KNOBS, kept_between
from cputune.plans.plan import Plan
from cputune.records.result import Worth
from cputune.tuner.contenders import Contender, gain_of
from cputune.tuner.gains import Gain
from cputune.tuner.space import SearchSpace

LAYOUT = "layout"
"""The change of everything that decides which CPUs the ranks have, and how many there are."""

_LAID_OUT = ("backend", "ccl_workers")
"""Knobs that change together with the layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step on the way: what is changed, to what, and the plan that this gives."""

    knob: str
    value: str
    plan: Plan


def changes(space: SearchSpace, today: Plan, best: Plan) -> tuple[Change, ...]:
    """The way from today's launch to the best plan: first the layout, then knob by knob.

    Where there is no plan for one change alone (tcmalloc without its OpenMP runtime, say),
    it is made together with the next.
    """
    meant = dict(space.values[best])
    pending: list[tuple[str, str]] = []
    values = {**meant, **{name: today.value(name) for name in separate_knobs()}}
    if shape(today) != shape(best):
        pending.append((LAYOUT, layout_words(best)))
    found = {tuple(of.items()): plan for plan, of in space.values.items()}
    path: list[Change] = []
    for name in (None, *separate_knobs()):
        if name is not None:
            if values[name] == meant[name]:
                continue
            values[name] = meant[name]
            pending.append((name, str(meant[name])))
        plan = found.get(tuple(values.items()))
        if plan is not None and pending:
            knobs, texts = zip(*pending, strict=True)
            path.append(Change(knob=", ".join(knobs), value=", ".join(texts), plan=plan))
            pending = []
    return tuple(path)


def worths(
    path: Sequence[Change], contenders: Sequence[Contender], noise: float, whole: Gain
) -> tuple[Worth, ...]:
    """What each change brings beside the plan before it; those without a number are left out.

    ``contenders`` are today's launch and the plan of each change, in order. They share one block:
    by how much processes differ is taken from the comparison of the ``whole``, which has several.
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
    """Why the changes are given no numbers of their own; None where these multiply to the whole."""
    product = math.fsum(math.log(worth.speedup.ratio) for worth in each)
    if whole.low <= product <= whole.high:
        return None
    together = whole.speedup
    return (
        "The changes depend on each other: one by one they multiply to "
        f"{math.exp(product):.2f} times as fast, and together they make {together.ratio:.2f} "
        f"(95 % interval {together.low:.2f} to {together.high:.2f}). So none is given a number "
        "of its own."
    )


def separate_knobs() -> tuple[str, ...]:
    """Knobs that can be changed while every rank keeps its CPUs."""
    return tuple(k.name for k in KNOBS if k.put is not None and k.name not in _LAID_OUT)


def shape(plan: Plan) -> tuple[int, int, int, frozenset[int]]:
    """What makes two layouts one: nodes, ranks, threads of each, and the CPUs of all."""
    cpus = frozenset(cpu for of_rank in plan.cpus for cpu in of_rank)
    return plan.nodes, plan.processes_per_node, plan.threads_per_process, cpus


def layout_words(plan: Plan) -> str:
    """``2 × 14 threads``, and on how many nodes, where there are several."""
    words = f"{plan.processes_per_node} × {plan.threads_per_process} threads"
    return words if plan.nodes == 1 else f"{plan.nodes} nodes, {words}"
