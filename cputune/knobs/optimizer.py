"""The knob ``optimizer``: which of torch's implementations of AdamW steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cputune.knobs.record import (
    Argument,
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    LeftOut,
    Shown,
    State,
    TrainerArgument,
    one_of,
)
from cputune.stack import Versions, default_optimizer, optimizers, versions_of

if TYPE_CHECKING:
    from types import EllipsisType

    from cputune.facts import HostFacts
    from cputune.plan import Plan

DEFAULT, LOOP, FUSED = "default", "adamw_torch", "adamw_torch_fused"

_SHOWN = {LOOP: "AdamW as a loop", FUSED: "AdamW, fused"}


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own; and fused AdamW, where the script trains with another AdamW.

    The numbers that AdamW computes are the same either way; any other optimizer is the
    user's choice, and stays. A value that is asked for needs only to be possible.
    """
    versions = versions_of(facts)
    wanted = ask.fixed.get("optimizer", FUSED)
    why = _why_impossible(ask, versions, str(wanted))
    if why is None and "optimizer" not in ask.fixed:
        why = _why_needless(ask, versions)
    if why is not None:
        return Choices(values=(DEFAULT,), left_out=(LeftOut(what=f"optimizer={wanted}", why=why),))
    return Choices(values=tuple(dict.fromkeys((DEFAULT, wanted))))


def _why_impossible(ask: Ask, versions: Versions, wanted: str) -> str | None:
    if wanted == DEFAULT:
        return None
    if versions.transformers is None or versions.torch is None:
        return "the versions of transformers and torch are not known"
    if wanted not in optimizers(versions):
        return (
            f"transformers {versions.transformers} with torch {versions.torch} has no "
            f"--optim {wanted} that steps on a CPU"
        )
    return None


def _why_needless(ask: Ask, versions: Versions) -> str | None:
    stepped = None if ask.workload is None else ask.workload.optimizer
    if stepped is not None:
        return None if stepped == _SHOWN[LOOP] else f"the script steps with {stepped}"
    if ask.framework == "accelerate":
        return "which optimizer the script makes is not known before it has run"
    asked = None if ask.workload is None else ask.workload.argument("--optim")
    if asked is not None:
        known = asked in optimizers(versions) and asked != FUSED
        return None if known else f"the script asks for --optim {asked} itself"
    if default_optimizer(versions) == FUSED:
        return (
            f"it is the default of transformers {versions.transformers} "
            f"with torch {versions.torch} already"
        )
    return None


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """IPEX puts a step of its own in the place of torch's, so that all others are alike."""
    if plan.ipex and value != DEFAULT:
        return None
    return plan.with_setting("optimizer", value)


def _value(plan: Plan) -> str:
    return str(plan.setting("optimizer"))


def _argument(plan: Plan) -> Argument | EllipsisType:
    value = _value(plan)
    return ... if value == DEFAULT else value


def optimizer_of(state: State) -> str | None:
    """How a rank steps, in words; None where it does not show it."""
    seen = state.get("optimizer")
    return None if seen is None else _stepping(seen)


def _stepping(seen: Any) -> str:
    way = next((f", {name}" for name in ("fused", "foreach") if seen[name]), " as a loop")
    return f"{seen['class']}{way}"


OPTIMIZER = Knob(
    name="optimizer",
    summary="the script's own optimizer, or fused AdamW in the place of AdamW as a loop",
    today=DEFAULT,
    parse=one_of("optimizer", (DEFAULT, LOOP, FUSED)),
    keeps="mathematics",
    choices=_choices,
    put=_put,
    in_settings=True,
    argument=TrainerArgument(name="optim", value=_argument),
    shown=(
        Shown(
            what="optimizer",
            key="optimizer",
            expected=lambda plan, local_rank: _SHOWN.get(_value(plan)),
            read=lambda plan, seen: _stepping(seen),
        ),
    ),
    words=lambda plan: None if _value(plan) == DEFAULT else _value(plan),
    effect=Effect(
        own=0.15,
        within={"layout": 0.06, "precision": 0.06},
        label=lambda plan, at: _value(plan),
        expected=lambda facts, plan: -0.15 if _value(plan) == FUSED else 0.0,
        answers=("optimizer", 0.8),
        source="read side by side on two cores, 4 layers in bf16: AdamW as a loop 0.78 times as "
        "fast as fused (log -0.25); a wary half of it is expected, since it weighs less beside "
        "larger batches",
    ),
)
