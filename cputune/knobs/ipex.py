"""The knob ``ipex``: whether intel_extension_for_pytorch optimizes model and optimizer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from cputune.knobs.backend import between, version_of
from cputune.knobs.record import Ask, Choices, Effect, Knob, KnobValue, LeftOut, Shown, yes_or_no

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.plan import Plan


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """IPEX on or off, where the installed trainer would really use it.

    Last IPEX for CPU: 2.8.0. The Trainer optimizes by itself in transformers 4.20 to
    4.52; up to 4.56 it leaves that to accelerate, which does so in 0.19 to 1.7 always
    and in 1.8 to 1.12 only with torch below 2.7 (``Accelerator._prepare_ipex``).
    """
    why = _why_no_ipex(facts)
    if why is None:
        return Choices(values=(False, True))
    return Choices(values=(False,), left_out=(LeftOut(what="ipex", why=why),))


def _why_no_ipex(facts: HostFacts) -> str | None:
    torch = version_of(facts, "torch")
    own = version_of(facts, "intel_extension_for_pytorch")
    transformers = version_of(facts, "transformers")
    accelerate = version_of(facts, "accelerate")
    if own is None:
        return "intel_extension_for_pytorch is not installed (the last, 2.8.0, is for torch 2.8)"
    if torch is None:
        return "the version of torch is not known"
    if own.release[:2] != torch.release[:2]:
        return f"intel_extension_for_pytorch {own} does not fit torch {torch}: importing it fails"
    if transformers is None:
        return "the version of transformers is not known"
    if not between(transformers, "4.20", "4.56"):
        return f"transformers {transformers} does not use IPEX (4.20 to 4.56 did)"
    if between(transformers, "4.20", "4.52"):
        return None
    if accelerate is not None and (
        between(accelerate, "0.19", "1.7")
        or (between(accelerate, "1.8", "1.12") and torch < Version("2.7"))
    ):
        return None
    return (
        f"accelerate {accelerate or 'of unknown version'} with torch {torch} ignores IPEX, "
        f"and transformers {transformers} leaves it to accelerate"
    )


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    return replace(plan, ipex=bool(value))


IPEX = Knob(
    name="ipex",
    summary="whether intel_extension_for_pytorch optimizes model and optimizer",
    today=False,
    parse=yes_or_no("ipex"),
    choices=_choices,
    put=_put,
    variables=lambda plan: {"ACCELERATE_USE_IPEX": "true"} if plan.ipex else {},
    arguments=lambda plan: {"use_ipex": plan.ipex},
    shown=(
        Shown(
            what="IPEX",
            expected=lambda plan, local_rank: "on" if plan.ipex else "off",
            seen=lambda plan, state: "on" if state.get("ipex") else "off",
        ),
    ),
    words=lambda plan: "IPEX" if plan.ipex else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.06, "precision": 0.06},
        label=lambda plan, at: plan.ipex,
        source="assumed: the guides promise a gain without a figure; the optimizer that it fuses "
        "is worth up to a quarter where torch's own is not",
    ),
)
