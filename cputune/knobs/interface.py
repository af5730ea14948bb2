"""The knob ``interface``: the network interface on which ranks of several hosts talk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cputune.errors import UsageError
from cputune.knobs.record import Ask, Choices, Effect, Knob, KnobValue, LeftOut

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.plan import Plan

CHOSEN = "default"
"""The one that is chosen by what is known of the hosts."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")


def _parse(value: object) -> KnobValue:
    text = str(value)
    if _NAME.fullmatch(text) is None:
        raise UsageError(
            f"interface is the name of a network interface, not {value!r}",
            hint="--fix interface=eth0",
        )
    return text


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The one that is chosen, and those beside it that lead to all hosts too."""
    first, others = ask.interfaces[:1], ask.interfaces[1:]
    wanted = ask.fixed.get("interface")
    if wanted in (None, CHOSEN):
        return Choices(values=(CHOSEN, *others))
    if wanted in ask.interfaces:
        return Choices(values=(CHOSEN, str(wanted)))
    there = ", ".join((*first, *others)) or "none: it is said of several hosts (--hosts)"
    why = f"the interfaces that lead to all hosts are {there}"
    return Choices(values=(CHOSEN,), left_out=(LeftOut(what=f"interface={wanted}", why=why),))


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """Ranks of one node talk to no other."""
    return plan.with_setting("interface", value) if plan.nodes > 1 else plan


def interface_of(plan: Plan) -> str | None:
    """The interface that a plan names; None for the one that is chosen."""
    value = plan.setting("interface")
    return None if value == CHOSEN else str(value)


INTERFACE = Knob(
    name="interface",
    summary="the network interface that ranks of several hosts talk on",
    today=CHOSEN,
    parse=_parse,
    choices=_choices,
    put=_put,
    in_settings=True,
    words=lambda plan: (name := interface_of(plan)) and f"over {name}",
    effect=Effect(
        own=0.1,
        within={"nodes": 0.2},
        label=lambda plan, at: interface_of(plan),
        source="assumed: of two networks one may be ten times as fast, and a step feels it by the "
        "share that adding up gradients has in it",
    ),
)
