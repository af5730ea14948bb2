"""The knob ``malloc``: what glibc's own malloc does with the memory of tensors that are freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    LeftOut,
    Shown,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.facts import HostFacts
    from cputune.plan import Plan
    from cputune.workload import Workload

DEFAULT, KEPT, HUGE = "default", "kept", "huge_pages"

_KEPT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Nothing is mapped by itself, nothing is given back, and the heap grows by 64 MiB (mallopt(3)).

As it is, malloc maps each large tensor and gives it back when it is freed, and the next one of its
size costs a page fault for each 4 KiB."""

_HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The heap asks for huge pages (madvise(2)); glibc 2.35 and later."""


_IN_USE_BYTES = 8 << 20
"""Of huge pages: a process that asks for none has 2 MiB, of stacks and libraries; one that does,
some hundred."""


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """As it is; where today's launch was seen to give memory back, memory that is kept.

    And kept in huge pages, where the kernel gives them.
    """
    why = None if "malloc" in ask.fixed else _why_needless(ask.workload)
    if why is not None:
        return Choices(values=(DEFAULT,), left_out=(LeftOut(what="malloc", why=why),))
    pages = facts.settings.transparent_huge_pages
    if pages in ("madvise", "always"):
        return Choices(values=(DEFAULT, KEPT, HUGE))
    why = (
        f"transparent huge pages are not known: "
        f"{facts.why_unknown('settings.transparent_huge_pages') or 'the kernel does not say'}"
        if pages is None
        else f"/sys/kernel/mm/transparent_hugepage/enabled says {pages}"
    )
    return Choices(values=(DEFAULT, KEPT), left_out=(LeftOut(what=f"malloc={HUGE}", why=why),))


def _why_needless(workload: Workload | None) -> str | None:
    """Another malloc than glibc's that is preloaded today tells no blocks."""
    blocks = None if workload is None else workload.mapped_blocks
    if blocks is None:
        return "what glibc's malloc does with the memory of a step is not known before it has run"
    return None if blocks else "today's launch gives no memory back to the kernel"


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """Another malloc that is preloaded reads none of these variables."""
    if plan.allocator != "default" and value != DEFAULT:
        return None
    return plan.with_setting("malloc", value)


def _value(plan: Plan) -> str:
    return str(plan.setting("malloc"))


def _variables(plan: Plan) -> Mapping[str, str]:
    value = _value(plan)
    return {**(_KEPT if value != DEFAULT else {}), **(_HUGE if value == HUGE else {})}


def _maps(plan: Plan, blocks: int) -> str:
    return "kept" if blocks == 0 else f"{blocks} mapped blocks"


def _pages(plan: Plan, huge_bytes: int) -> str:
    return "in use" if huge_bytes >= _IN_USE_BYTES else f"{huge_bytes >> 20} MiB"


MALLOC = Knob(
    name="malloc",
    summary="what glibc's malloc does with freed memory: as it is, kept, or in huge pages",
    today=DEFAULT,
    parse=one_of("malloc", (DEFAULT, KEPT, HUGE)),
    keeps="numbers",
    choices=_choices,
    put=_put,
    in_settings=True,
    variables=_variables,
    shown=(
        Shown(
            what="memory of tensors",
            key="mapped_blocks",
            expected=lambda plan, local_rank: None if _value(plan) == DEFAULT else "kept",
            read=_maps,
            unknown="this libc does not tell its blocks: mallinfo2 is in glibc 2.33 and later",
        ),
        Shown(
            what="huge pages",
            key="huge_pages_bytes",
            expected=lambda plan, local_rank: "in use" if _value(plan) == HUGE else None,
            read=_pages,
            unknown="/proc/self/smaps_rollup does not tell them",
        ),
    ),
    words=lambda plan: {KEPT: "malloc keeps memory", HUGE: "huge pages"}.get(_value(plan)),
    effect=Effect(
        own=0.1,
        within={"layout": 0.04, "precision": 0.04},
        part_of="allocator",
        label=lambda plan, at: _value(plan),
        source="read side by side on two Zen 4 cores, 4 layers in bf16: with memory kept "
        "1.13 times as fast as glibc's malloc as it is, huge pages 1.15 times (logs 0.12 and 0.14)",
    ),
)
