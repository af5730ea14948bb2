"""The search space: every plan that this machine can run, and what was left out and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cputune.errors import UsageError
from cputune.facts import Core, HostFacts, Unknown
from cputune.knobs import KNOBS, NAMES, TODAY, Ask, Choices, KnobValue, LeftOut, knob_named
from cputune.knobs.backend import Backend
from cputune.knobs.precision import native_precisions
from cputune.layout import (
    baseline_plan,
    make_plan,
    rank_counts,
    rank_slices,
    thread_counts,
    usable_cores,
)
from cputune.memory import needed_bytes, room_bytes
from cputune.plan import Plan
from cputune.result import Origin
from cputune.workload import Workload

CCL_WORKER_COUNTS = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """A knob by name, and the values that any plan of the space takes for it."""

    name: str
    values: tuple[KnobValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Every feasible plan, each with its knob values, and what the study tries first.

    ``suggestions`` are named plans of the space (the guide's, the topology's) that are
    tried before any sampler is asked. ``baseline`` is the launch of today; it stands
    outside the space, for it is neither bound nor bounded.
    """

    facts: HostFacts
    workload: Workload
    baseline: Plan
    knobs: tuple[Varied, ...]
    left_out: tuple[LeftOut, ...]
    values: Mapping[Plan, Mapping[str, KnobValue]]
    suggestions: tuple[tuple[Origin, Plan], ...]

    def plans(self) -> Iterator[Plan]:
        """Every feasible plan, once."""
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


def build_space(
    facts: HostFacts,
    workload: Workload,
    *,
    vary: Iterable[str] | None = None,
    fix: Mapping[str, Any] | None = None,
    allow_slow_precision: bool = False,
) -> SearchSpace:
    """Lay out every plan that fits cores, quota, memory, packages and the global batch.

    ``vary`` names the knobs that are varied (all where it is None); ``fix`` holds knobs
    at a value. Raises UsageError for a knob that does not exist and for a value that no
    plan of this machine can have.
    """
    fixed = _fixed(vary, fix or {})
    ask = Ask(workload=workload, fixed=fixed, allow_slow_precision=allow_slow_precision)
    choices = {knob.name: knob.choices(facts, ask) for knob in KNOBS if knob.choices is not None}
    cores = usable_cores(facts)
    left_out: list[LeftOut] = []
    values: dict[Plan, Mapping[str, KnobValue]] = {}
    for layout, layout_values in _layouts(facts, workload, cores, choices, fixed, left_out):
        for plan, plan_values in _with_libraries(facts, layout, choices, fixed):
            values[plan] = {**layout_values, **plan_values}
    for choice in choices.values():
        left_out.extend(choice.left_out)
    if not values:
        _refuse_impossible(fix or {}, left_out)
    return SearchSpace(
        facts=facts,
        workload=workload,
        baseline=baseline_plan(facts),
        knobs=tuple(
            Varied(name=name, values=tuple(dict.fromkeys(v[name] for v in values.values())))
            for name in NAMES
        ),
        left_out=tuple(left_out),
        values=values,
        suggestions=_suggestions(facts, cores, values),
    )


def _layouts(
    facts: HostFacts,
    workload: Workload,
    cores: tuple[Core, ...],
    choices: Mapping[str, Choices],
    fixed: Mapping[str, KnobValue],
    left_out: list[LeftOut],
) -> Iterator[tuple[Plan, dict[str, KnobValue]]]:
    """Ranks, threads, siblings and oneCCL workers on the cores, in plain fp32."""
    quota = facts.limits.cpu_quota
    most_threads = None if quota is None else max(1, math.floor(quota))
    if not cores:
        left_out.append(LeftOut(what="ranks", why="the CPUs of this machine are not known"))
    elif quota is not None and len(cores) < len(facts.topology.allowed_cores):
        left_out.append(
            LeftOut(
                what="cores",
                why=f"a CPU quota of {quota:g} allows {len(cores)} of "
                f"{len(facts.topology.allowed_cores)} cores",
            )
        )
    smt_refused: set[int] = set()
    for ranks in _rank_values(facts, workload, cores, fixed, left_out):
        for backend in _kept(
            choices["backend"].values if ranks > 1 else ("gloo",), "backend", fixed
        ):
            size = len(rank_slices(cores, ranks)[0])
            counts = [w for w in CCL_WORKER_COUNTS if 2 * w <= size] if backend == "ccl" else [0]
            for workers in _kept(counts, "ccl_workers", fixed, grow=backend == "ccl"):
                for threads, smt in _thread_values(cores, ranks, int(workers), fixed):
                    try:
                        plan = make_plan(
                            cores,
                            ranks,
                            threads=threads,
                            smt=smt,
                            ccl_workers=int(workers),
                            backend=cast(Backend, backend),
                        )
                    except ValueError:
                        continue
                    used = ranks * (plan.threads_per_process + plan.ccl_workers)
                    if most_threads is not None and used > most_threads:
                        smt_refused.add(ranks)
                        continue
                    yield (
                        plan,
                        {
                            "ranks": ranks,
                            "threads": plan.threads_per_process,
                            "smt": smt,
                            "backend": backend,
                            "ccl_workers": workers,
                        },
                    )
    if smt_refused:
        left_out.append(
            LeftOut(
                what="smt",
                why=f"threads on SMT siblings would exceed the CPU quota of {quota:g}",
            )
        )
    if facts.topology.threads_per_core == 1:
        left_out.append(LeftOut(what="smt", why="the cores have no SMT siblings online"))
    if "ccl" in choices["backend"].values and len(cores) < 4:
        left_out.append(
            LeftOut(
                what="backend=ccl",
                why="a oneCCL worker and a thread need two cores per rank "
                f"(oneCCL refuses less), and {len(cores)} cores are too few for two such ranks",
            )
        )


def _rank_values(
    facts: HostFacts,
    workload: Workload,
    cores: tuple[Core, ...],
    fixed: Mapping[str, KnobValue],
    left_out: list[LeftOut],
) -> Iterator[int]:
    room = room_bytes(facts)
    undivided: list[int] = []
    unknown: Unknown | None = None
    for value in _kept(rank_counts(cores), "ranks", fixed, grow=bool(cores)):
        ranks = int(value)
        if not 1 <= ranks <= len(cores):
            continue
        try:
            workload.samples_per_rank(ranks)
        except ValueError:
            undivided.append(ranks)
            continue
        needed = needed_bytes(workload, ranks)
        if isinstance(needed, Unknown):
            unknown = needed
        elif room is not None and needed > room:
            left_out.append(
                LeftOut(
                    what=f"ranks={ranks}",
                    why=f"needs at least {needed / 2**30:.1f} GiB of memory, "
                    f"and there are {room / 2**30:.1f} GiB",
                )
            )
            continue
        yield ranks
    if unknown is not None:
        left_out.append(
            LeftOut(what="limit by memory", why=f"{unknown.fact} is not known: {unknown.reason}")
        )
    if undivided:
        left_out.append(
            LeftOut(
                what="ranks=" + ",".join(map(str, undivided)),
                why=f"a global batch of {workload.global_batch_size} cannot be divided over "
                "so many ranks (--batch-per-rank keeps each rank's batch instead)",
            )
        )


def _thread_values(
    cores: tuple[Core, ...], ranks: int, workers: int, fixed: Mapping[str, KnobValue]
) -> Iterator[tuple[int | None, bool]]:
    """(threads, siblings used); None threads are all that the CPUs of a rank take."""
    of_rank = rank_slices(cores, ranks)[0]
    computing = of_rank[workers:]
    wanted = fixed.get("threads")
    if False in _kept((False, True), "smt", fixed):
        counts = thread_counts(of_rank, ccl_workers=workers)
        if wanted == "all":
            counts = counts[:1]
        elif wanted is not None:
            counts = (int(wanted),)
        elif workers:
            counts = tuple(c for c in counts if 2 * c >= len(computing))
        yield from ((count, False) for count in counts)
    siblings = sum(len(core.cpus) for core in computing)
    if (
        siblings > len(computing)
        and True in _kept((False, True), "smt", fixed)
        and wanted in (None, "all", siblings)
    ):
        yield None, True


def _with_libraries(
    facts: HostFacts,
    layout: Plan,
    choices: Mapping[str, Choices],
    fixed: Mapping[str, KnobValue],
) -> Iterator[tuple[Plan, dict[str, KnobValue]]]:
    """A layout with every combination of the knobs that no CPU depends on."""
    found: list[tuple[Plan, dict[str, KnobValue]]] = [(layout, {})]
    for knob in KNOBS:
        if knob.put is None:
            continue
        found = [
            (changed, {**values, knob.name: value})
            for plan, values in found
            for value in _kept(choices[knob.name].values, knob.name, fixed)
            if (changed := knob.put(plan, value, facts)) is not None
        ]
    yield from found


def _kept(
    values: Iterable[KnobValue], knob: str, fixed: Mapping[str, KnobValue], *, grow: bool = False
) -> tuple[KnobValue, ...]:
    """The values that ``fixed`` leaves; with ``grow`` a fixed value need not be among them."""
    if knob not in fixed:
        return tuple(values)
    if grow:
        return (fixed[knob],)
    return tuple(value for value in values if value == fixed[knob])


def _suggestions(
    facts: HostFacts, cores: tuple[Core, ...], values: Mapping[Plan, Mapping[str, KnobValue]]
) -> tuple[tuple[Origin, Plan], ...]:
    """The guide's plan and the topology's, where the space holds them."""
    sockets = len({core.socket for core in cores})
    nodes = len({(core.socket, core.numa_node) for core in cores})
    precision = native_precisions(facts)[0]
    found: dict[Plan, Origin] = {}
    wanted: tuple[tuple[Origin, int, tuple[str, ...]], ...] = (
        ("guide", sockets, ("default",)),
        ("topology", nodes, ("tcmalloc", "jemalloc", "default")),
    )
    for name, ranks, allocators in wanted:
        for allocator in allocators:
            match = [
                plan
                for plan, of in values.items()
                if (of["ranks"], of["precision"], of["allocator"]) == (ranks, precision, allocator)
                and not of["smt"]
                and of["openmp"] == "default"
            ]
            if match:
                best = max(
                    match,
                    key=lambda p: (
                        p.backend == "ccl",
                        -p.ccl_workers,
                        p.ipex,
                        p.threads_per_process,
                    ),
                )
                found.setdefault(best, name)
                break
    return tuple((name, plan) for plan, name in found.items())


def _fixed(vary: Iterable[str] | None, fix: Mapping[str, Any]) -> dict[str, KnobValue]:
    """Every knob that may not vary, and where it stays."""
    wanted = None if vary is None else set(vary)
    for name in sorted((wanted or set()) | set(fix)):
        knob_named(name)
    held: dict[str, KnobValue] = {}
    if wanted is not None:
        held = {name: value for name, value in TODAY.items() if name not in wanted}
        if "ccl_workers" in wanted or "backend" in wanted:
            held.pop("backend", None)
            held.pop("ccl_workers", None)
    for name, value in fix.items():
        held[name] = knob_named(name).parse(value)
        if name == "backend" and value == "ccl":
            held.pop("ccl_workers", None)
    return held


def _refuse_impossible(fix: Mapping[str, Any], left_out: list[LeftOut]) -> None:
    if not fix:
        return
    asked = ", ".join(f"{name}={value}" for name, value in fix.items())
    why = next(
        (
            out.why
            for out in left_out
            for name, value in fix.items()
            if out.what in (name, f"{name}={value}")
        ),
        "`cputune tune --dry-run` prints what there is",
    )
    raise UsageError(f"no plan of this machine has {asked}", hint=why)
