"""The search space: every plan that this machine can run, and what was left out and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import TYPE_CHECKING

from cputune.errors import UsageError
from cputune.host.facts import HostFacts
from cputune.plans.cores import usable_cores
from cputune.plans.knobs import BASELINE, KNOBS, NAMES, OWNED, keeps, knob_named, owned, varied
from cputune.plans.knobs.libraries import DEFAULT
from cputune.plans.knobs.precision import advised_precision
from cputune.plans.knobs.record import KEPT, Ask, Choices, Keeps, Knob, LeftOut
from cputune.plans.layout import baseline_plan, guide_plan
from cputune.plans.memory import HALF, SINGLE
from cputune.plans.placing import by_caches, groups
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue, as_text
from cputune.plans.workload import Workload
from cputune.records.options import TuneOptions
from cputune.records.result import Origin
from cputune.tuner.layouts import Layouts

if TYPE_CHECKING:
    from cputune.ranks.hosts import RankHosts


# Knobs in the repr of a space: with the first and the last line it has ten.
MOST_SHOWN = 8

# Characters of a line in the repr of a space.
LONGEST_LINE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """A knob by name, and the values that any plan of the space takes for it."""

    name: str
    values: tuple[KnobValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Every feasible plan with its knob values, and what the study tries first.

    ``suggestions`` are named plans of the space (the guide's, the topology's) that are tried first.
    ``baseline`` is the current launch; it is neither bound nor limited, so it is not in the space.
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

    def __repr__(self) -> str:
        """At most ten lines: the knobs that vary with their values, and how many do not."""
        varying = [knob for knob in self.knobs if len(knob.values) > 1]
        shown = varying[:MOST_SHOWN]
        lines = [f"<cputune.SearchSpace: {len(self)} plans of {self.workload!r}>"]
        lines += [_values_line(knob) for knob in shown]
        more, fixed = len(varying) - len(shown), len(self.knobs) - len(varying)
        left_out = f"{len(self.left_out)} values are left out (.knobs, .left_out)"
        lines.append(f"{more} more knobs vary, {fixed} do not; {left_out}")
        return "\n".join(lines)


def _values_line(knob: Varied) -> str:
    values = ", ".join(map(str, knob.values))
    return shorten(f"{knob.name}: {values}", LONGEST_LINE, placeholder=" …")


def search_space(
    facts: HostFacts,
    job: Workload,
    *,
    knobs: Iterable[str] | None = None,
    fix: Mapping[str, object] | None = None,
    keep: Keeps | None = None,
    allow_slow_precision: bool = False,
    allow_bf16_gradients: bool = False,
    baseline: Plan | None = None,
    hosts: Sequence[tuple[str, HostFacts]] = (),
) -> SearchSpace:
    """Every plan that this machine can run for this job, and what was left out and why.

    Args:
        facts: of this machine, or of the first host.
        job: what is trained.
        knobs: names what is varied; all by default. The rest keeps its current values.
        fix: holds a knob at a value.
        keep: leaves out what changes more of the training.
        allow_slow_precision: offer bf16 on a CPU that does not multiply it in hardware.
        allow_bf16_gradients: offer to send gradients in bf16.
        baseline: the current launch as its ranks were seen to run, if it has run.
        hosts: names of the hosts that plans may use; empty: only this machine.

    Raises UsageError for an unknown knob and for a value that no plan of this machine can have.
    """
    named = None
    if knobs is not None:
        named = frozenset(knobs)
    fixed = {}
    for name, value in (fix or {}).items():
        fixed[name] = knob_named(name).parse(value)
    baseline = baseline or baseline_plan(facts, ranks=job.launch_ranks)
    unlike = ""
    if job.model_answers is not None:
        unlike = job.model_answers.unlike
    if unlike:
        keep = "numbers"
    owned_knobs = dict(owned(job, baseline))
    if "ranks" in fixed:  # a script that divides its batches itself may be asked for others
        owned_knobs.pop("ranks", None)
    _refuse_what_is_owned(job, owned_knobs, fixed)
    ask = Ask(
        workload=job,
        fixed={**_unvaried(varied(named, keep), fixed, baseline), **fixed, **owned_knobs},
        owned=owned_knobs,
        hosts=tuple(hosts),
        keep=keep,
        named=named or frozenset(),
        # The precision of the baseline is slow, perhaps, but possible.
        allow_slow_precision=allow_slow_precision or baseline.precision == "bf16",
        allow_bf16_gradients=allow_bf16_gradients,
    )
    values, left_out = _plans(facts, job, ask)
    left_out += tuple(_not_kept(facts, ask, varied(named), set(fixed), keep, unlike))
    if fixed and not values:
        raise _impossible(fixed, left_out)
    return SearchSpace(
        facts=facts,
        workload=job,
        baseline=baseline,
        knobs=_varied_knobs(values.values()),
        left_out=left_out,
        values=values,
        suggestions=_suggestions(facts, values, ask.fixed),
    )


def _varied_knobs(of_plans: Collection[Mapping[str, KnobValue]]) -> tuple[Varied, ...]:
    """The knobs with the values that plans of the space have, each value once."""
    knobs = []
    for name in NAMES:
        values = dict.fromkeys(of_plan[name] for of_plan in of_plans)
        knobs.append(Varied(name=name, values=tuple(values)))
    return tuple(knobs)


def _refuse_what_is_owned(
    job: Workload, owned_knobs: Mapping[str, KnobValue], fixed: Mapping[str, KnobValue]
) -> None:
    """Raise UsageError if a knob is held at another value than the script's own."""
    for name in owned_knobs:
        if fixed.get(name, owned_knobs[name]) != owned_knobs[name]:
            raise UsageError(
                f"{job.name} cannot be tuned with {name}={as_text(fixed[name])}",
                hint=f"{OWNED[name]}; remove --fix {name}",
            )


def space_of(
    options: TuneOptions,
    facts: HostFacts,
    job: Workload,
    hosts: RankHosts | None = None,
    *,
    baseline: Plan | None = None,
) -> SearchSpace:
    """The space of a study with these options, over these hosts. Raises UsageError."""
    return search_space(
        facts,
        job,
        knobs=options.knobs,
        fix=options.fix,
        keep=options.keep,
        allow_slow_precision=options.allow_slow_precision,
        allow_bf16_gradients=options.allow_bf16_gradients,
        baseline=baseline,
        hosts=() if hosts is None else hosts.facts,
    )


def _plans(
    facts: HostFacts, workload: Workload, ask: Ask
) -> tuple[dict[Plan, Mapping[str, KnobValue]], tuple[LeftOut, ...]]:
    """Every plan with its knob values, and what was left out."""
    _refuse_unlike(ask.hosts)
    choices = {}
    for knob in KNOBS:
        if knob.offers is not None:
            choices[knob.name] = _choices(knob, facts, ask)
    kept_bytes = SINGLE
    if set(choices["precision"].values) - {"fp32"}:
        kept_bytes = HALF
    layouts = Layouts(
        facts=facts,
        workload=workload,
        ask=ask,
        backends=choices["backend"].values,
        value_bytes=kept_bytes,
    )
    plans: dict[Plan, Mapping[str, KnobValue]] = {}
    for layout, values in layouts.plans():
        for plan, more in _with_libraries(facts, layout, choices, ask):
            plans.setdefault(plan, {**values, **more})
    left_out = []
    if "ranks" in ask.owned:
        left_out.append(LeftOut(what="ranks", why=OWNED["ranks"]))
    left_out += layouts.left_out
    for choice in choices.values():
        left_out += choice.left_out
    return plans, tuple(left_out)


def _refuse_unlike(hosts: Sequence[tuple[str, HostFacts]]) -> None:
    """Raise UsageError if hosts differ in their CPUs: one plan binds the ranks of all alike."""
    for name, there in hosts[1:]:
        if _cpus_of(there) != _cpus_of(hosts[0][1]):
            raise UsageError(
                f"{name} has other CPUs than {hosts[0][0]} (cores, allowed CPUs or quota), and a "
                "plan binds the ranks of all hosts alike",
                hint="name hosts that are alike; of Slurm take whole nodes: salloc --exclusive",
            )


def _cpus_of(facts: HostFacts) -> object:
    cores = facts.topology.allowed_cores
    places = [(core.cpus, core.socket, core.numa_node, core.l3) for core in cores]
    return places, facts.topology.allowed, facts.limits.cpu_quota


def _choices(knob: Knob, facts: HostFacts, ask: Ask) -> Choices:
    """The values that are possible on every host; others name the host that lacks them."""
    if knob.name in ask.owned:
        is_owned = LeftOut(what=knob.name, why=OWNED[knob.name])
        return Choices(values=(ask.owned[knob.name],), left_out=(is_owned,))
    choices = knob.choices(facts, ask)
    for name, there in ask.hosts[1:]:
        others = knob.choices(there, ask)
        reasons = {out.what: out.why for out in others.left_out}
        common = []
        left_out = list(choices.left_out)
        for value in choices.values:
            if value in others.values:
                common.append(value)
            else:
                left_out.append(_lacking(knob.name, value, name, reasons))
        choices = Choices(values=tuple(common), left_out=tuple(left_out))
    return choices


def _lacking(knob: str, value: KnobValue, host: str, reasons: Mapping[str, str]) -> LeftOut:
    what = f"{knob}={as_text(value)}"
    reason = "it is not possible there"
    for name in (what, knob):
        if reasons.get(name):
            reason = reasons[name]
            break
    return LeftOut(what=what, why=f"on {host}: {reason}")


def _with_libraries(
    facts: HostFacts, layout: Plan, choices: Mapping[str, Choices], ask: Ask
) -> list[tuple[Plan, dict[str, KnobValue]]]:
    """A layout with every combination of the knobs that do not decide CPUs."""
    plans: list[tuple[Plan, dict[str, KnobValue]]] = [(layout, {})]
    for knob in KNOBS:
        if knob.put is None:
            continue
        offered = ask.kept(knob.name, choices[knob.name].values)
        with_knob = []
        for plan, values in plans:
            for value in offered:
                changed = knob.put(plan, value, facts)
                if changed is not None:
                    with_knob.append((changed, {**values, knob.name: value}))
        plans = with_knob
    return plans


def _not_kept(
    facts: HostFacts,
    ask: Ask,
    free: Set[str],
    held: Set[str],
    keep: Keeps | None,
    unlike: str,
) -> Iterator[LeftOut]:
    """The knobs that could be varied if less of the training had to stay the same."""
    for knob in KNOBS:
        if knob.offers is None or knob.name in ask.owned or knob.name in held:
            continue
        if knob.name in free and not keeps(knob, keep):
            if unlike:
                reason = f"two starts of the current launch differ: {unlike}"
                yield LeftOut(what=knob.name, why=reason)
                continue
            several = len(_choices(knob, facts, replace(ask, fixed={})).values) > 1
            yield LeftOut(
                what=knob.name,
                why=f"{KEPT[knob.keeps]}: --keep {keep} leaves it out",
                option="without --keep" if several else None,
            )


FASTER_ALLOCATORS = ("tcmalloc", "jemalloc")

# Knobs that are only useful together: to vary one is to vary both.
TOGETHER = {"backend", "ccl_workers"}


def _unvaried(
    free: Set[str], fixed: Mapping[str, KnobValue], baseline: Plan
) -> Mapping[str, KnobValue]:
    """The knobs that are not varied, at their current values."""
    free = free | set(fixed)
    if free & TOGETHER:
        free |= TOGETHER
    by_name: dict[str, KnobValue] = {}
    for name, value in BASELINE.items():
        if name not in free:
            by_name[name] = getattr(baseline, name, value)
    return by_name


def _impossible(fixed: Mapping[str, KnobValue], left_out: Sequence[LeftOut]) -> UsageError:
    """The requested values that no plan has together, and why."""
    named = sorted(fixed, key=NAMES.index)
    settings = [f"{name}={as_text(fixed[name])}" for name in named]
    together = ""
    if len(settings) > 1:
        together = " together"
    problem = f"no plan of this machine has {', '.join(settings)}{together}"
    for name, setting in zip(named, settings, strict=True):
        for out in left_out:
            if out.what in (name, setting):
                return UsageError(problem, hint=out.why)
    return UsageError(problem, hint="remove --fix; `cputune tune --dry-run` then lists the values")


def _suggestions(
    facts: HostFacts,
    values: Mapping[Plan, Mapping[str, KnobValue]],
    held: Mapping[str, KnobValue],
) -> tuple[tuple[Origin, Plan], ...]:
    """The guide's plan on the most nodes, and the topology's plans on one.

    All in the advised precision; the rest keeps its current values, except oneCCL and IPEX, which
    the guides use if possible. Those of the topology use a faster allocator and cut padding.
    ``held`` are the values of knobs that are not varied.
    """
    if not values:
        return ()
    guide: dict[str, KnobValue] = {"nodes": max(plan.nodes for plan in values), "smt": False}
    guide["ranks"] = guide_plan(facts).processes_per_node
    libraries: dict[str, KnobValue] = {"allocator": _fastest_allocator(values.values())}
    if any(of["padding"] == "cut" for of in values.values()):
        libraries["padding"] = "cut"
    wanted: list[tuple[Origin, Mapping[str, KnobValue]]] = [("guide", guide)]
    for layout in _of_topology(facts, values):
        wanted.append(("topology", {**libraries, **layout}))
    unchanged = {}
    for knob in KNOBS:
        if knob.put is not None and knob.name != "ipex":
            unchanged[knob.name] = knob.baseline
    suggestions: dict[Plan, Origin] = {}
    for origin, suggested in wanted:
        meant = {**unchanged, "precision": advised_precision(facts), **suggested, **held}
        match = [plan for plan, of in values.items() if meant.items() <= of.items()]
        if match:
            suggestions.setdefault(max(match, key=_liked), origin)
    return tuple((origin, plan) for plan, origin in suggestions.items())


def _fastest_allocator(of_plans: Collection[Mapping[str, KnobValue]]) -> KnobValue:
    possible = {values["allocator"] for values in of_plans}
    for name in FASTER_ALLOCATORS:
        if name in possible:
            return name
    return DEFAULT


# If a socket has this many cores, all may be slower than half of them: memory is shared.
MANY_CORES = 16


def _of_topology(
    facts: HostFacts, values: Mapping[Plan, Mapping[str, KnobValue]]
) -> Iterator[Mapping[str, KnobValue]]:
    """The layouts that caches and memory of one machine suggest.

    A rank per NUMA node, or per several whole ones; a rank per L3 cache; and one rank on one
    socket, or on half of the only one, if the training hardly gains from more cores.
    """
    cores = usable_cores(facts)
    nodes = len(groups(cores, by_node=True))
    there = {plan.processes_per_node for plan in values if plan.nodes == 1}
    single = {"nodes": 1, "smt": False}
    yield {**single, "ranks": max((n for n in there if nodes % n == 0), default=nodes)}
    yield {**single, "ranks": len(by_caches(cores))}
    sockets = groups(cores, by_node=False)
    if len(sockets) > 1:
        yield {**single, "ranks": 1, "threads": len(sockets[0])}
    elif len(sockets[0]) >= MANY_CORES:
        yield {**single, "ranks": 1, "threads": len(sockets[0]) // 2}


def _liked(plan: Plan) -> tuple[object, ...]:
    """What the guides prefer: oneCCL with few workers, IPEX, all cores."""
    return plan.backend == "ccl", -plan.ccl_workers, plan.ipex, plan.threads_per_process
