"""Leaves out of a plan what was seen to change nothing while it was tried.

Each part that sets the objects of a script notes what it has changed
(``cputune.inside.applying.shared.Setting.did``), and each rank of a trial reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from cputune.inside.applying.parts import needed
from cputune.inside.applying.ranks import PRETENDED
from cputune.launch.launch import launch_of
from cputune.plans.delivery.delivery import Delivery
from cputune.plans.plan import Plan
from cputune.plans.workload import Workload
from cputune.stack import Versions, has_argument
from cputune.text.plain import count

AVERAGE = "average_tokens_across_devices"
UNUSED = "find_unused_parameters"

# Whether a rank shows that this has changed nothing, by its key in ``Force.torch``.
AS_FOUND = {
    "dropout": lambda rank: rank.get("dropout") == "torch",
    "padding": lambda rank: str(rank.get("padding", "")).startswith("full"),
    "order": lambda rank: str(rank.get("order", "")).startswith("as found"),
    "gradients": lambda rank: rank.get("gradients") not in (None, "sparse"),
    "gradient_precision": lambda rank: rank.get("gradient_precision") not in (None, "bf16"),
}

# What the ranks of each trial of a plan showed (``RankState``).
Trials = Sequence[Sequence[Mapping[str, Any]]]


def fitted(
    delivery: Delivery,
    workload: Workload,
    plan: Plan,
    versions: Mapping[str, str],
    *,
    as_run: Plan,
    trials: Iterable[Sequence[Mapping[str, Any]]],
) -> tuple[Delivery, dict[str, str]]:
    """A plan of a study without what it does not need, and why each part is left out.

    ``as_run`` is the plan as it ran, and ``trials`` what the ranks of its trials reported.
    """
    if not _trains_as_typed(workload, plan, as_run):
        shown = [ranks for ranks in trials if ranks]
        return used(delivery, shown, workload, Versions.from_names(versions))
    left_out: dict[str, str] = {}
    if delivery.force is not None:
        for part in needed(delivery.force):
            left_out[part.module] = "your launch trains so by itself"
    return replace(delivery, flags=(), force=None), left_out


def _trains_as_typed(workload: Workload, plan: Plan, as_run: Plan) -> bool:
    """Whether a plan is the launch as typed, for which nothing has to be set but variables.

    ``plan`` is what its ranks showed, to be bound, and ``as_run`` the same as it ran. Its script
    and words decide all that it trains. accelerate and deepspeed pass more to a loop than a plan
    has (``ACCELERATE_GRADIENT_ACCUMULATION_STEPS``).
    """
    if not as_run.as_found or workload.recipe is not None:
        return False
    if plan.world_size != as_run.world_size or plan.nodes != as_run.nodes:
        return False
    launch = launch_of(workload.launch)
    passes_more = launch is not None and launch.launcher in ("accelerate", "deepspeed")
    return workload.framework == "trainer" or not passes_more


def used(
    delivery: Delivery, trials: Trials, workload: Workload, versions: Versions
) -> tuple[Delivery, dict[str, str]]:
    """A plan without the parts that changed nothing, and why each is left out.

    Arguments of TrainingArguments take the place of a part that set nothing else. Nothing is left
    out if no trial has shown it.
    """
    force = delivery.force
    ranks = list(chain.from_iterable(trials))
    if force is None or not ranks:
        return delivery, {}
    left_out: dict[str, str] = {}
    reason = f"it changed nothing in {count(len(trials), 'trial')}"
    torch = dict(force.torch)
    for name in force.torch:
        if name in AS_FOUND and all(map(AS_FOUND[name], ranks)):
            left_out[name] = reason
            del torch[name]
    force = replace(force, torch=torch)
    flags: tuple[str, ...] = ()
    if all("applied" in rank for rank in ranks):
        changed = _changed(ranks)
        if workload.takes_flags and workload.framework == "trainer":
            flags = _set_by_flags(changed, versions)
        for part in needed(force):
            if part.module in OF_OBJECTS and not changed.get(part.module):
                beside = "noted"
                if flags:
                    beside = f"beside {' '.join(flags)}"
                left_out[part.module] = f"{reason}, {beside}"
                force = replace(force, without=(*force.without, part.module))
    flags = delivery.flags + flags
    return replace(delivery, force=force if needed(force) else None, flags=flags), left_out


# Parts that note what they change in a script's objects.
OF_OBJECTS = ("trainer", "ranks", "dispatch", "apart", "loop")


def _changed(ranks: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """What the parts changed in any rank, by part."""
    changed: dict[str, set[str]] = {}
    for rank in ranks:
        for part, what in rank["applied"].items():
            changed.setdefault(str(part), set()).update(map(str, what))
    return changed


def _set_by_flags(changed: dict[str, set[str]], versions: Versions) -> tuple[str, ...]:
    """Arguments that say what parts set; it is taken out of what they changed.

    A loss that is no sum over items is not multiplied by the ranks without ``AVERAGE``. One that is
    needs the items of all ranks (``cputune.inside.applying.scale``).
    """
    flags: tuple[str, ...] = ()
    trainer, ranks = changed.get("trainer", set()), changed.get("ranks", set())
    if has_argument(versions, AVERAGE) and (PRETENDED in ranks or AVERAGE in trainer):
        flags += (f"--{AVERAGE}", str(PRETENDED not in ranks))
        ranks.discard(PRETENDED)
        trainer.discard(AVERAGE)
    if UNUSED in ranks and has_argument(versions, f"ddp_{UNUSED}"):
        flags += (f"--ddp_{UNUSED}", "True")
        ranks.discard(UNUSED)
    return flags
