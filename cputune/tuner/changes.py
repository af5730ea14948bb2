"""What each change is worth: from the baseline to the best plan, one knob at a time.

The plans in between run in the second block of the confirmation, each compared with the one before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from cputune.plans.knobs import KNOBS, kept_between, kind_between, kind_of, knob_named
from cputune.plans.knobs.record import KINDS, Kind
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue
from cputune.records.result import Rung, Worth
from cputune.tuner.contenders import Contender, gain_of
from cputune.tuner.gains import Gain
from cputune.tuner.space import SearchSpace

# The change of everything that decides the CPUs and the number of ranks.
LAYOUT = "layout"

# Knobs that change together with the layout.
_LAID_OUT = ("backend", "ccl_workers")


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
    layout = _laid_out(meant, separate)
    begin = _layout_of(space, baseline, separate)
    same_ranks = baseline.world_size == best.world_size
    order: list[str] = sorted(separate, key=lambda name: KINDS.index(kind_of(knob_named(name))))
    place = 0
    if begin is not None and not same_ranks:
        # Other ranks change the training: what changes nothing of it comes before.
        kinds = [kind_of(knob_named(name)) for name in order]
        place = kinds.count(KINDS[0])
    order.insert(place, LAYOUT)
    values = dict(meant)
    for name in separate:
        values[name] = baseline.value(name)
    if begin is not None and place:
        values.update(begin)
    # By their values in the order of the knobs, which ``values`` has too.
    plans = {tuple(of.items()): plan for plan, of in space.values.items()}
    pending: list[tuple[str, str]] = []
    path: list[Change] = []
    for name in order:
        if name == LAYOUT:
            values.update(layout)
            if shape(baseline) != shape(best):
                pending.append((LAYOUT, best.layout_words()))
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
            return _laid_out(values, separate)
    return None


def _laid_out(values: Mapping[str, KnobValue], separate: Sequence[str]) -> dict[str, KnobValue]:
    """The values of the knobs that decide the layout."""
    return {name: value for name, value in values.items() if name not in separate}


def rungs_of(
    path: Sequence[Change], contenders: Sequence[Contender], noise: float, total: Gain
) -> tuple[Rung, ...]:
    """For each kind of change the last plan of the steps that changes no more than that.

    ``contenders`` are the baseline and the plan of each change; ``total`` is the gain of the last
    one.
    """
    baseline, *others = contenders
    last: dict[Kind, int] = {}
    for at, change in enumerate(path):
        last[kind_between(baseline.plan, change.plan)] = at
    rungs = []
    for kind, at in last.items():
        gain: Gain | None = total
        if at + 1 < len(path):
            gain = gain_of(baseline, others[at], noise, doubt=0.05, elsewhere=total.scattered)
        if gain is not None:
            rungs.append(Rung(kind=kind, plan=path[at].plan, speedup=gain.speedup))
    return tuple(rungs)


def worths(
    path: Sequence[Change], contenders: Sequence[Contender], noise: float, total: Gain
) -> tuple[Worth, ...]:
    """The gain of each change over the plan before it; changes without a number are left out.

    The plans share one block, so the difference between processes is taken from the comparison of
    the ``total``, which has several blocks.
    """
    each = []
    for change, (before, after) in zip(path, pairwise(contenders), strict=True):
        gain = gain_of(before, after, noise, doubt=0.05, elsewhere=total.scattered)
        if gain is not None:
            keeps = kept_between(before.plan, change.plan)
            each.append(
                Worth(knob=change.knob, value=change.value, speedup=gain.speedup, keeps=keeps)
            )
    return tuple(each)


def why_not_one_by_one(each: Sequence[Worth], total: Gain) -> str | None:
    """Why single changes get no numbers; None if these multiply to the total."""
    product = math.fsum(math.log(worth.speedup.ratio) for worth in each)
    if total.low <= product <= total.high:
        return None
    together = total.speedup
    return (
        "The changes depend on each other: one by one they multiply to "
        f"{math.exp(product):.2f} times as fast, and together they make {together.ratio:.2f} "
        f"(95 % interval {together.low:.2f} to {together.high:.2f}). So none has "
        "its own number."
    )


def separate_knobs() -> tuple[str, ...]:
    """Knobs that can be changed while every rank keeps its CPUs."""
    names: list[str] = []
    for knob in KNOBS:
        if knob.put is not None and knob.name not in _LAID_OUT:
            names.append(knob.name)
    return tuple(names)


def shape(plan: Plan) -> tuple[int, int, int, frozenset[int]]:
    """What identifies a layout: nodes, ranks, threads of each, and the CPUs of all."""
    cpus = frozenset(chain.from_iterable(plan.cpus))
    return plan.nodes, plan.processes_per_node, plan.threads_per_process, cpus
