"""The knob ``openmp``: which OpenMP runtime the threads of a rank are managed by."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast, get_args

from cputune.knobs.preload import found_here, preloads, seen_preloaded
from cputune.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    Shown,
    State,
    one_of,
    variable_shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.facts import HostFacts
    from cputune.plan import Plan

OpenMP = Literal["default", "libgomp", "libiomp5"]
OPENMP_RUNTIMES: tuple[OpenMP, ...] = get_args(OpenMP)


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The OpenMP runtime that torch brings, and Intel's where it was found."""
    return found_here(facts, "openmp", ("default", "libiomp5"))


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    chosen = replace(plan, openmp=cast("OpenMP", value))
    return replace(chosen, preload=preloads(chosen, facts))


def _variables(plan: Plan) -> Mapping[str, str]:
    """Threads that spin 200 ms after each region steal cores from other ranks.

    No KMP_AFFINITY, which shrinks the process's own mask (pytorch/pytorch#91989).
    """
    return {"KMP_BLOCKTIME": "1"} if plan.openmp == "libiomp5" else {}


def _as_seen(plan: Plan, state: State) -> Plan:
    for name in OPENMP_RUNTIMES[1:]:
        if paths := seen_preloaded(state, name):
            return replace(plan, openmp=name, preload=(*paths, *plan.preload))
    return plan


OPENMP = Knob(
    name="openmp",
    summary="the OpenMP runtime: the one that torch brings, or libiomp5 preloaded",
    today="default",
    parse=one_of("openmp", OPENMP_RUNTIMES),
    choices=_choices,
    put=_put,
    variables=_variables,
    shown=(
        Shown(
            what="OpenMP runtime",
            expected=lambda plan, local_rank: None if plan.openmp == "default" else plan.openmp,
            seen=lambda plan, state: state.get("openmp"),
        ),
        variable_shown("KMP_BLOCKTIME", _variables),
    ),
    as_seen=_as_seen,
    words=lambda plan: None if plan.openmp == "default" else plan.openmp,
    effect=Effect(
        own=0.08,
        within={"layout": 0.04, "precision": 0.04},
        label=lambda plan, at: plan.openmp,
        source="read side by side on two cores: libiomp5 0.96 times as fast as libgomp, and "
        "0.94 to 1.03 times in three rounds on another machine",
    ),
)
