"""Native libraries: ``allocator`` and ``openmp``, which are preloaded, and glibc's ``malloc``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.host.files import real_path
from cputune.plans.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    LeftOut,
    Put,
    Shown,
    State,
    in_settings,
    unless,
    variable_shown,
)
from cputune.plans.plan import Plan
from cputune.plans.values import ALLOCATORS, OPENMP_RUNTIMES, KnobValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from cputune.host.facts import HostFacts

# Freed memory is kept, also of large blocks: one page fault a step. With Intel's launcher's
# setting (``oversize_threshold:1``) large blocks are returned at once: 47,000 page faults
# (benchmarks/allocators.py).
JEMALLOC_SETTINGS = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0"


def preloads(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """The paths that this plan preloads: its OpenMP runtime, then its allocator."""
    libraries = (facts.library(name) for name in (plan.openmp, plan.allocator))
    paths: list[str] = []
    for library in libraries:
        if library is not None:
            paths.append(library.path)
    return tuple(paths)


def _preloading(name: str) -> Put:
    def put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
        chosen = replace(plan, **{name: value})  # type: ignore[arg-type]
        return replace(chosen, preload=preloads(chosen, facts))

    return put


def _found_here(facts: HostFacts, knob: str, names: tuple[str, ...]) -> Choices:
    """Those of ``names`` ("default" first) whose library is on this machine."""
    missing = [name for name in names[1:] if facts.library(name) is None]
    left_out = []
    for name in missing:
        reason = f"no lib{name.removeprefix('lib')} was found"
        left_out.append(LeftOut(what=f"{knob}={name}", why=reason))
    values = tuple(name for name in names if name not in missing)
    return Choices(values=values, left_out=tuple(left_out))


def _jemalloc(plan: Plan) -> Mapping[str, str]:
    if plan.allocator == "jemalloc":
        return {"MALLOC_CONF": JEMALLOC_SETTINGS}
    return {}


def _mapped(plan: Plan, files: Iterable[str]) -> str:
    """Those of the plan's paths that are mapped; the kernel shows the target of a link."""
    mapped = set(map(real_path, files))
    return ":".join(path for path in plan.preload if real_path(path) in mapped)


def _as_preloaded(knob: str, names: tuple[str, ...]) -> Callable[[Plan, State], Plan]:
    """The plan with the library that a rank preloads; an OpenMP runtime comes first."""

    def as_preloaded(plan: Plan, state: State) -> Plan:
        for name in names[1:]:
            library, preloaded = f"lib{name.removeprefix('lib')}", state.get("preload", ())
            paths = []
            for path in preloaded:
                if path.startswith("/") and library in path:
                    paths.append(path)
            if paths:
                preload = plan.preload + tuple(paths)
                if knob == "openmp":
                    preload = tuple(paths) + plan.preload
                return replace(plan, preload=preload, **{knob: name})  # type: ignore[arg-type]
        return plan

    return as_preloaded


ALLOCATOR = Knob(
    name="allocator",
    summary="the malloc: the libc's, or tcmalloc or jemalloc preloaded",
    values=ALLOCATORS,
    keeps="numbers",
    offers=lambda facts, ask: _found_here(facts, "allocator", ALLOCATORS),
    put=_preloading("allocator"),
    variables=_jemalloc,
    shown=(
        Shown(what="allocator", key="allocator", expected=lambda plan, _: plan.allocator),
        # The OpenMP runtime among them.
        Shown(
            what="preload",
            key="mapped",
            expected=lambda plan, _: ":".join(plan.preload) or None,
            read=_mapped,
        ),
        variable_shown("MALLOC_CONF", _jemalloc),
    ),
    as_seen=_as_preloaded("allocator", ALLOCATORS),
    description=lambda plan: None if plan.allocator == "default" else plan.allocator,
    effect=Effect(
        size=0.12,
        within={"layout": 0.04, "precision": 0.04},
        source="read side by side on two cores: tcmalloc 1.12 times as fast as glibc's malloc, "
        "jemalloc 0.89 times as it is (logs 0.11 and -0.12); where it keeps memory, as here, "
        "1.09 times less CPU time on Zen 4",
    ),
)


def _blocktime(plan: Plan) -> Mapping[str, str]:
    """Threads that spin 200 ms after each region take cores from other ranks.

    KMP_AFFINITY is not set, because it shrinks the process's affinity (pytorch/pytorch#91989).
    """
    if plan.openmp == "libiomp5":
        return {"KMP_BLOCKTIME": "1"}
    return {}


OPENMP = Knob(
    name="openmp",
    summary="the OpenMP runtime: torch's, or libiomp5 preloaded",
    values=OPENMP_RUNTIMES,
    keeps="numbers",
    offers=lambda facts, ask: _found_here(facts, "openmp", ("default", "libiomp5")),
    put=_preloading("openmp"),
    variables=_blocktime,
    shown=(
        Shown(
            what="OpenMP runtime",
            key="openmp",
            expected=lambda plan, _: None if plan.openmp == "default" else plan.openmp,
        ),
        variable_shown("KMP_BLOCKTIME", _blocktime),
    ),
    as_seen=_as_preloaded("openmp", OPENMP_RUNTIMES),
    description=lambda plan: None if plan.openmp == "default" else plan.openmp,
    effect=Effect(
        size=0.08,
        within={"layout": 0.04, "precision": 0.04},
        source="read side by side on two cores: libiomp5 0.96 times as fast as libgomp, and "
        "0.94 to 1.03 times in three rounds on another machine",
    ),
)

DEFAULT, KEPT, HUGE = "default", "kept", "huge_pages"

# No block is mapped alone, nothing is returned, and the heap grows by 64 MiB (mallopt(3)).
#
# By default malloc unmaps each large tensor when it is freed; the next one costs a page fault for
# each 4 KiB.
_KEPT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}

# The heap asks for huge pages (madvise(2)); glibc 2.35 and later.
_HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


# A process has fewer bytes in huge pages if it does not ask for them: 2 MiB, of stacks and
# libraries. One that asks has some hundred MiB.
_IN_USE_BYTES = 8 << 20


def _mallocs(facts: HostFacts, ask: Ask) -> Choices:
    """The default malloc; also one tuned to keep memory, in huge pages if the kernel gives them,
    if the current launch returned it.
    """
    blocks = None
    if ask.workload is not None:
        blocks = ask.workload.mapped_blocks
    if not blocks and "malloc" not in ask.fixed:
        reason = "your current launch returns no memory to the kernel"
        unknown = "how glibc's malloc handles the memory of a step is not known before it has run"
        return unless(unknown if blocks is None else reason, "malloc", DEFAULT)
    pages = facts.settings.transparent_huge_pages
    if pages in ("madvise", "always"):
        return Choices(values=(DEFAULT, KEPT, HUGE))
    reason = facts.why_unknown("settings.transparent_huge_pages") or (
        f"/sys/kernel/mm/transparent_hugepage/enabled says {pages or 'nothing'}"
    )
    return Choices(values=(DEFAULT, KEPT), left_out=(LeftOut(what=f"malloc={HUGE}", why=reason),))


def _malloc_variables(plan: Plan) -> Mapping[str, str]:
    value = plan.settings.get("malloc")
    variables = {}
    if value:
        variables.update(_KEPT)
    if value == HUGE:
        variables.update(_HUGE)
    return variables


MALLOC = Knob(
    name="malloc",
    summary="what glibc's malloc does with freed memory: default, kept, or in huge pages",
    values=(DEFAULT, KEPT, HUGE),
    keeps="numbers",
    offers=_mallocs,
    # Another malloc, which is preloaded, reads none of these variables.
    put=in_settings("malloc", needless=lambda plan: plan.allocator != "default"),
    variables=_malloc_variables,
    shown=(
        Shown(
            what="memory of tensors",
            key="mapped_blocks",
            expected=lambda plan, _: "kept" if "malloc" in plan.settings else None,
            read=lambda plan, blocks: f"{blocks} mapped blocks" if blocks else "kept",
            unknown="this libc does not report its blocks: mallinfo2 needs glibc 2.33",
        ),
        Shown(
            what="huge pages",
            key="huge_pages_bytes",
            expected=lambda plan, _: "in use" if plan.settings.get("malloc") == HUGE else None,
            read=lambda plan, huge: "in use" if huge >= _IN_USE_BYTES else f"{huge >> 20} MiB",
            unknown="/proc/self/smaps_rollup does not report them",
        ),
    ),
    description=lambda plan: {KEPT: "malloc keeps memory", HUGE: "huge pages"}.get(
        str(plan.setting("malloc"))
    ),
    effect=Effect(
        size=0.1,
        within={"layout": 0.04, "precision": 0.04},
        part_of="allocator",
        source="read side by side on two Zen 4 cores, 4 layers in bf16: with memory kept "
        "1.13 times as fast as glibc's malloc as it is, huge pages 1.15 times (logs 0.12 and 0.14)",
    ),
)
