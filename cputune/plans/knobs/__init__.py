"""The knobs: what can be varied about a launch, one record each.

All code that needs the knobs loops over ``KNOBS``. A new knob is a record in a file of this folder
and a row here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.errors import UsageError
from cputune.plans.knobs.affinity import NODES, RANKS, SMT, THREADS
from cputune.plans.knobs.backend import BACKEND, CCL_WORKERS
from cputune.plans.knobs.batches import ACCUMULATION, ORDER, PADDING, WORKERS
from cputune.plans.knobs.gradients import GRADIENT_PRECISION, GRADIENTS
from cputune.plans.knobs.kernels import DROPOUT, IPEX, OPTIMIZER
from cputune.plans.knobs.libraries import ALLOCATOR, MALLOC, OPENMP
from cputune.plans.knobs.precision import PRECISION
from cputune.plans.knobs.record import KEPT, KINDS, Argument, Keeps, Kind, Knob, State
from cputune.plans.plan import Plan
from cputune.plans.values import KnobValue
from cputune.text import cpulist

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts
    from cputune.plans.workload import Workload

# They are shown in this order: the layout first, then the libraries.
KNOBS: tuple[Knob, ...] = (
    NODES,
    RANKS,
    THREADS,
    SMT,
    PRECISION,
    BACKEND,
    CCL_WORKERS,
    GRADIENTS,
    GRADIENT_PRECISION,
    ALLOCATOR,
    MALLOC,
    OPENMP,
    IPEX,
    OPTIMIZER,
    ACCUMULATION,
    WORKERS,
    PADDING,
    ORDER,
    DROPOUT,
)

NAMES = tuple(knob.name for knob in KNOBS)

# The value of each knob that is not varied.
BASELINE: Mapping[str, KnobValue] = {knob.name: knob.baseline for knob in KNOBS}


def as_seen(plan: Plan, states: Sequence[State]) -> Plan:
    """The plan with what its ranks show, for a launch that runs as typed."""
    for knob in KNOBS:
        plan = knob.as_seen(plan, states[0])
    cpus = tuple(map(_cpus, states))
    if not all(cpus) or len(cpus) != plan.world_size:
        return plan
    each = plan.processes_per_node
    alike = cpus[:each] * plan.nodes == cpus
    if alike:
        return replace(plan, cpus=cpus[:each])
    return plan


def _cpus(state: State) -> tuple[int, ...]:
    """The CPUs of a rank; a result stores them as text."""
    affinity = state.get("affinity") or ()
    if isinstance(affinity, str):
        return cpulist.parse(affinity)
    return tuple(affinity)


def set_by(plan: Plan, *, by_arguments: bool) -> tuple[dict[str, Argument], dict[str, str]]:
    """The fields of TrainingArguments that a plan sets, and what it sets in torch itself.

    The fields have their current names. With ``by_arguments`` they are read, and nothing that they
    set is set in torch.
    """
    arguments: dict[str, Argument] = {}
    in_torch: dict[str, str] = {}
    for knob in KNOBS:
        fields = knob.arguments(plan)
        arguments.update(fields)
        if not (fields and by_arguments):
            in_torch.update(knob.in_torch(plan))
    return arguments, in_torch


def least_kept(each: Iterable[Keeps]) -> Keeps:
    """What still stays the same in the training if several things change."""
    order = list(KEPT)
    return max(each, key=order.index, default="numbers")


def keeps(knob: Knob, keep: Keeps | None) -> bool:
    """Whether a knob keeps at least this much of the training the same."""
    return keep is None or least_kept((knob.keeps, keep)) == keep


def changed(baseline: Plan, best: Plan) -> tuple[Knob, ...]:
    """The knobs that have another value in another plan; of the layout ranks and threads."""
    knobs = []
    if baseline.world_size != best.world_size:
        knobs.append(RANKS)
    if baseline.threads_per_process != best.threads_per_process:
        knobs.append(THREADS)
    for knob in KNOBS:
        if knob.put is not None and knob.value_in(baseline) != knob.value_in(best):
            knobs.append(knob)
    return tuple(knobs)


def kept_between(baseline: Plan, best: Plan) -> Keeps:
    """What stays the same in the training from one plan to another."""
    return least_kept(knob.keeps for knob in changed(baseline, best))


def with_the_numbers_of(baseline: Plan, plan: Plan, facts: HostFacts) -> Plan | None:
    """A plan without what changes draws or takes fewer bits; None if it cannot be put back."""
    exact: Plan | None = plan
    for knob in changed(baseline, plan):
        if exact is None or knob.put is None or keeps(knob, "mathematics"):
            continue
        exact = knob.put(exact, knob.value_in(baseline), facts)
    return exact


def kind_of(knob: Knob) -> Kind:
    """What kind of change a knob makes in the training.

    Another number of threads adds in another order, but changes no code path of the training.
    """
    if knob.keeps == "numbers" or knob.name == THREADS.name:
        return "touches nothing"
    if knob.keeps == "mathematics":
        return "same mathematics"
    return "other numbers"


def kind_between(before: Plan, after: Plan) -> Kind:
    """The kind of a whole plan: that of its change that affects the training most."""
    kinds = map(kind_of, changed(before, after))
    return max(kinds, key=KINDS.index, default="touches nothing")


def keeps_mathematics(baseline: Plan, best: Plan) -> bool:
    """Whether a plan changes no random draws and uses no fewer bits, so that it can be checked."""
    return least_kept((kept_between(baseline, best), "mathematics")) == "mathematics"


def varied(names: Iterable[str] | None, keep: Keeps | None = None) -> frozenset[str]:
    """The knobs that are varied: all (None), or the named ones, that keep at least ``keep``.
    Raises UsageError.
    """
    knobs = KNOBS if names is None else map(knob_named, names)
    return frozenset(knob.name for knob in knobs if keeps(knob, keep))


def knob_named(name: str) -> Knob:
    """The knob of this name. Raises UsageError."""
    for knob in KNOBS:
        if knob.name == name:
            return knob
    near = difflib.get_close_matches(name, NAMES, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = "knobs: " + ", ".join(NAMES)
    raise UsageError(f"no knob is called {name!r}", hint=hint)


# The knobs that a script decides itself if cputune cannot reach into its training loop.

_LOOP = "the script has its own training loop"

# Knobs that keep their current values if the script decides them, and why.
OWNED: Mapping[str, str] = {
    "ranks": f"{_LOOP}, and only the script can divide its batches over ranks",
    "precision": f"{_LOOP}, and sets the precision itself",
    "backend": f"{_LOOP}, and starts its process group itself",
    "ipex": f"{_LOOP}: only the script itself can call ipex.optimize",
    "optimizer": f"{_LOOP}, and makes its own optimizer",
}


def owned(workload: Workload, baseline: Plan) -> dict[str, KnobValue]:
    """The knobs that the script decides, with their values in the current launch."""
    if workload.framework != "pytorch":
        return {}
    values = {name: baseline.value(name) for name in OWNED}
    values["ranks"] = baseline.processes_per_node  # a plan has no value of this name
    return values
