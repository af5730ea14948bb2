"""What each change is worth: from today's launch to the best plan, one knob at a time.

The plans on the way live side by side, as in the confirmation, and each is compared with the
one before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cputune.knobs import KNOBS, TODAY, KnobValue
from cputune.plan import Plan
from cputune.result import Speedup, Worth
from cputune.steps import LivingRunner
from cputune.tuner.confirm import Contender, gain_of
from cputune.tuner.events import WorthStarted
from cputune.tuner.measuring import Measuring
from cputune.tuner.paired import Gain
from cputune.tuner.space import SearchSpace
from cputune.tuner.turns import LEAST_ROUNDS, seated, take_turns

LAYOUT = "layout"
"""The change of everything that decides which CPUs the ranks have, and how many there are."""

_LAID_OUT = ("backend", "ccl_workers")
"""Knobs that change together with the layout."""

MOST_SECONDS = 30.0
"""Of steps; what is not known by then stays as wide as it is."""

NARROW = 0.04
"""Half-width (log) at which the worth of a change is known well enough."""


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
    values = {**meant, **{name: _today(today, name) for name in _separate()}}
    if _shape(today) != _shape(best):
        pending.append((LAYOUT, _layout_of(best)))
    found = {tuple(of.items()): plan for plan, of in space.values.items()}
    way: list[Change] = []
    for name in (None, *_separate()):
        if name is not None:
            if values[name] == meant[name]:
                continue
            values[name] = meant[name]
            pending.append((name, str(meant[name])))
        plan = found.get(tuple(values.items()))
        if plan is not None and pending:
            knobs, texts = zip(*pending, strict=True)
            way.append(Change(knob=", ".join(knobs), value=", ".join(texts), plan=plan))
            pending = []
    return tuple(way)


def measure_worth(
    measuring: Measuring, runner: LivingRunner, today: Plan, way: Sequence[Change]
) -> tuple[Worth, ...]:
    """What each change brings beside the plan before it; those without a number are left out."""
    contenders = [
        Contender(role="candidate", plan=plan, believed=(0.0, 1.0))
        for plan in (today, *(change.plan for change in way))
    ]
    noise = measuring.race.noise.deviation

    def is_enough(quiet: int, seconds: float) -> bool:
        if measuring.timer.up(1.0) or any(one.out is not None for one in contenders):
            return True
        known = all(gain.half_width <= NARROW for gain in _gains(contenders, noise) if gain)
        return quiet >= LEAST_ROUNDS and (known or seconds > MOST_SECONDS)

    measuring.on_event(WorthStarted(plans=tuple(one.plan for one in contenders)))
    with seated(measuring, runner, contenders) as seats:
        take_turns(measuring, seats, contenders, 0, is_enough)
    return tuple(
        worth_of(change, gain)
        for change, gain in zip(way, _gains(contenders, noise), strict=True)
        if gain is not None
    )


def worth_of(change: Change, gain: Gain) -> Worth:
    """A change and its gain, as they stand in a result."""
    return Worth(
        knob=change.knob,
        value=change.value,
        speedup=Speedup(
            ratio=math.exp(gain.mean),
            low=math.exp(gain.low),
            high=math.exp(gain.high),
            pairs=gain.pairs,
        ),
    )


def _gains(contenders: Sequence[Contender], noise: float) -> list[Gain | None]:
    return [gain_of(before, after, noise) for before, after in pairwise(contenders)]


def _separate() -> Iterator[str]:
    """Knobs that can be changed while every rank keeps its CPUs."""
    return (knob.name for knob in KNOBS if knob.put is not None and knob.name not in _LAID_OUT)


def _today(plan: Plan, name: str) -> KnobValue:
    """What today's launch has of a knob."""
    value: KnobValue = plan.settings.get(name, getattr(plan, name, TODAY[name]))
    return value


def _shape(plan: Plan) -> tuple[int, int, frozenset[int]]:
    cpus = frozenset(cpu for of_rank in plan.cpus for cpu in of_rank)
    return plan.processes_per_node, plan.threads_per_process, cpus


def _layout_of(plan: Plan) -> str:
    return f"{plan.processes_per_node} × {plan.threads_per_process} threads"
