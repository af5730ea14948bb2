"""The knob ``allocator``: which malloc is preloaded."""

from __future__ import annotations

import os
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

Allocator = Literal["default", "tcmalloc", "jemalloc"]
ALLOCATORS: tuple[Allocator, ...] = get_args(Allocator)

JEMALLOC_SETTINGS = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""What the Intel launcher sets for jemalloc (intel_extension_for_pytorch/cpu/launch)."""


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The malloc of libc, and those that were found by their real path."""
    return found_here(facts, "allocator", ALLOCATORS)


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    chosen = replace(plan, allocator=cast("Allocator", value))
    return replace(chosen, preload=preloads(chosen, facts))


def _variables(plan: Plan) -> Mapping[str, str]:
    return {"MALLOC_CONF": JEMALLOC_SETTINGS} if plan.allocator == "jemalloc" else {}


def _mapped(plan: Plan, state: State) -> str | None:
    """Those of the plan's paths that are mapped; the kernel names the file behind a link."""
    if state.get("mapped") is None:
        return None
    mapped = set(map(os.path.realpath, state["mapped"]))
    return ":".join(path for path in plan.preload if os.path.realpath(path) in mapped)


def _as_seen(plan: Plan, state: State) -> Plan:
    for name in ALLOCATORS[1:]:
        if paths := seen_preloaded(state, name):
            return replace(plan, allocator=name, preload=(*plan.preload, *paths))
    return plan


ALLOCATOR = Knob(
    name="allocator",
    summary="the malloc that is preloaded: the libc's own, tcmalloc or jemalloc",
    today="default",
    parse=one_of("allocator", ALLOCATORS),
    choices=_choices,
    put=_put,
    variables=_variables,
    shown=(
        Shown(
            what="allocator",
            expected=lambda plan, local_rank: plan.allocator,
            seen=lambda plan, state: state.get("allocator"),
        ),
        # The OpenMP runtime among them.
        Shown(
            what="preload",
            expected=lambda plan, local_rank: ":".join(plan.preload) or None,
            seen=_mapped,
        ),
        variable_shown("MALLOC_CONF", _variables),
    ),
    as_seen=_as_seen,
    words=lambda plan: None if plan.allocator == "default" else plan.allocator,
    effect=Effect(
        own=0.12,
        within={"layout": 0.04, "precision": 0.04},
        label=lambda plan, at: plan.allocator,
        source="read side by side on two cores: tcmalloc 1.12 times as fast as glibc's malloc, "
        "jemalloc 0.89 times (logs 0.11 and -0.12)",
    ),
)
