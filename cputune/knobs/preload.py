"""The knobs whose values are libraries in LD_PRELOAD: ``allocator`` and ``openmp``."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from cputune.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    LeftOut,
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

OpenMP = Literal["default", "libgomp", "libiomp5"]
OPENMP_RUNTIMES: tuple[OpenMP, ...] = get_args(OpenMP)

JEMALLOC_SETTINGS = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""What the Intel launcher sets for jemalloc (intel_extension_for_pytorch/cpu/launch)."""


def preloads(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """The paths that this plan preloads: its OpenMP runtime, then its allocator."""
    libraries = (facts.library(name) for name in (plan.openmp, plan.allocator))
    return tuple(library.path for library in libraries if library is not None)


def _found_here(facts: HostFacts, knob: str, names: tuple[str, ...]) -> Choices:
    """Of ``names`` ("default" first) those whose library was found on this machine."""
    missing = [name for name in names[1:] if facts.library(name) is None]
    return Choices(
        values=tuple(name for name in names if name not in missing),
        left_out=tuple(
            LeftOut(what=f"{knob}={name}", why=f"no lib{name.removeprefix('lib')} was found")
            for name in missing
        ),
    )


def _preloaded(state: State, name: str) -> tuple[str, ...]:
    """The paths in the LD_PRELOAD of a rank that hold this library."""
    library = f"lib{name.removeprefix('lib')}"
    paths = state.get("preload", ())
    return tuple(path for path in paths if path.startswith("/") and library in path)


def _allocators(facts: HostFacts, ask: Ask) -> Choices:
    """The malloc of libc, and those that were found by their real path."""
    return _found_here(facts, "allocator", ALLOCATORS)


def _put_allocator(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    chosen = replace(plan, allocator=cast("Allocator", value))
    return replace(chosen, preload=preloads(chosen, facts))


def _jemalloc(plan: Plan) -> Mapping[str, str]:
    return {"MALLOC_CONF": JEMALLOC_SETTINGS} if plan.allocator == "jemalloc" else {}


def _mapped(plan: Plan, files: Any) -> str:
    """Those of the plan's paths that are mapped; the kernel names the file behind a link."""
    mapped = set(map(os.path.realpath, files))
    return ":".join(path for path in plan.preload if os.path.realpath(path) in mapped)


def _allocator_seen(plan: Plan, state: State) -> Plan:
    for name in ALLOCATORS[1:]:
        if paths := _preloaded(state, name):
            return replace(plan, allocator=name, preload=(*plan.preload, *paths))
    return plan


ALLOCATOR = Knob(
    name="allocator",
    summary="the malloc that is preloaded: the libc's own, tcmalloc or jemalloc",
    today="default",
    parse=one_of("allocator", ALLOCATORS),
    keeps="numbers",
    choices=_allocators,
    put=_put_allocator,
    variables=_jemalloc,
    shown=(
        Shown(what="allocator", key="allocator", expected=lambda plan, local_rank: plan.allocator),
        # The OpenMP runtime among them.
        Shown(
            what="preload",
            key="mapped",
            expected=lambda plan, local_rank: ":".join(plan.preload) or None,
            read=_mapped,
        ),
        variable_shown("MALLOC_CONF", _jemalloc),
    ),
    as_seen=_allocator_seen,
    words=lambda plan: None if plan.allocator == "default" else plan.allocator,
    effect=Effect(
        own=0.12,
        within={"layout": 0.04, "precision": 0.04},
        label=lambda plan, at: plan.allocator,
        source="read side by side on two cores: tcmalloc 1.12 times as fast as glibc's malloc, "
        "jemalloc 0.89 times (logs 0.11 and -0.12)",
    ),
)


def _runtimes(facts: HostFacts, ask: Ask) -> Choices:
    """The OpenMP runtime that torch brings, and Intel's where it was found."""
    return _found_here(facts, "openmp", ("default", "libiomp5"))


def _put_runtime(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    chosen = replace(plan, openmp=cast("OpenMP", value))
    return replace(chosen, preload=preloads(chosen, facts))


def _blocktime(plan: Plan) -> Mapping[str, str]:
    """Threads that spin 200 ms after each region steal cores from other ranks.

    No KMP_AFFINITY, which shrinks the process's own mask (pytorch/pytorch#91989).
    """
    return {"KMP_BLOCKTIME": "1"} if plan.openmp == "libiomp5" else {}


def _runtime_seen(plan: Plan, state: State) -> Plan:
    for name in OPENMP_RUNTIMES[1:]:
        if paths := _preloaded(state, name):
            return replace(plan, openmp=name, preload=(*paths, *plan.preload))
    return plan


OPENMP = Knob(
    name="openmp",
    summary="the OpenMP runtime: the one that torch brings, or libiomp5 preloaded",
    today="default",
    parse=one_of("openmp", OPENMP_RUNTIMES),
    keeps="numbers",
    choices=_runtimes,
    put=_put_runtime,
    variables=_blocktime,
    shown=(
        Shown(
            what="OpenMP runtime",
            key="openmp",
            expected=lambda plan, local_rank: None if plan.openmp == "default" else plan.openmp,
        ),
        variable_shown("KMP_BLOCKTIME", _blocktime),
    ),
    as_seen=_runtime_seen,
    words=lambda plan: None if plan.openmp == "default" else plan.openmp,
    effect=Effect(
        own=0.08,
        within={"layout": 0.04, "precision": 0.04},
        label=lambda plan, at: plan.openmp,
        source="read side by side on two cores: libiomp5 0.96 times as fast as libgomp, and "
        "0.94 to 1.03 times in three rounds on another machine",
    ),
)
