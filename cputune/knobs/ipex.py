"""The knob ``ipex``: whether intel_extension_for_pytorch optimizes model and optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    LeftOut,
    Shown,
    TrainerArgument,
    yes_or_no,
)
from cputune.stack import ipex_use, versions_of

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.plan import Plan


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """IPEX on or off, where a run can use it and another can do without."""
    use = ipex_use(versions_of(facts), framework=ask.framework)
    if use.possible:
        return Choices(values=(False, True))
    return Choices(values=(False,), left_out=(LeftOut(what="ipex", why=use.reason),))


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    return replace(plan, ipex=bool(value))


IPEX = Knob(
    name="ipex",
    summary="whether intel_extension_for_pytorch optimizes model and optimizer",
    today=False,
    parse=yes_or_no("ipex"),
    keeps="mathematics",
    choices=_choices,
    put=_put,
    variables=lambda plan: {"ACCELERATE_USE_IPEX": "true"} if plan.ipex else {},
    argument=TrainerArgument(name="use_ipex", value=lambda plan: plan.ipex),
    shown=(
        Shown(
            what="IPEX",
            key="ipex",
            expected=lambda plan, local_rank: "on" if plan.ipex else "off",
            read=lambda plan, optimized: "on" if optimized else "off",
        ),
    ),
    as_seen=lambda plan, state: replace(plan, ipex=bool(state.get("ipex"))),
    words=lambda plan: "IPEX" if plan.ipex else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.06, "precision": 0.06},
        label=lambda plan, at: plan.ipex,
        source="assumed: the guides promise a gain without a figure; the optimizer that it fuses "
        "is worth up to a quarter where torch's own is not",
    ),
)
