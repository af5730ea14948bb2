"""The knob ``products``: whether oneDNN may round the factors of fp32 matrix products to bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.knobs.precision import NATIVE_BF16, native_precisions
from cputune.knobs.record import Ask, Choices, Effect, Knob, KnobValue, LeftOut, Shown, one_of
from cputune.stack import versions_of, why_no_bf16_products

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.facts import HostFacts
    from cputune.plan import Plan

FP32, BF16 = "fp32", "bf16"


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """fp32; and bf16 where this torch can be told so and the CPU multiplies it in hardware."""
    why = why_no_bf16_products(versions_of(facts))
    if why is None and "bf16" not in native_precisions(facts):
        why = f"this CPU has none of {', '.join(NATIVE_BF16)}"
    if why is not None:
        return Choices(values=(FP32,), left_out=(LeftOut(what="products=bf16", why=why),))
    return Choices(values=(FP32, BF16))


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """A plan of bf16 multiplies nothing in fp32 but what autocast keeps there."""
    if plan.precision != "fp32" and value != FP32:
        return None
    return plan.with_setting("products", value)


def _in_torch(plan: Plan) -> Mapping[str, str]:
    value = plan.setting("products")
    return {} if value == FP32 else {"products": str(value)}


PRODUCTS = Knob(
    name="products",
    summary="whether oneDNN may round the factors of fp32 matrix products to bf16",
    today=FP32,
    parse=one_of("products", (FP32, BF16)),
    choices=_choices,
    put=_put,
    in_settings=True,
    in_torch=_in_torch,
    asked_for="who trains in fp32 means its numbers, and precision=bf16 is faster",
    shown=(
        Shown(
            what="products",
            expected=lambda plan, local_rank: _in_torch(plan).get("products"),
            seen=lambda plan, state: state.get("products"),
        ),
    ),
    words=lambda plan: "products in bf16" if _in_torch(plan) else None,
    effect=Effect(
        own=0.3,
        within={"precision": 0.1, "layout": 0.06},
        label=lambda plan, at: plan.setting("products"),
        expected=lambda facts, plan: -0.2 if _in_torch(plan) else 0.0,
        answers=("matrix products", 0.4),
        source="read side by side on two Zen 5 cores: 1.67 times as fast as fp32 and 0.75 times as "
        "fast as bf16 (log -0.5); where there is no AMX, oneDNN keeps the factors in fp32 and only "
        "takes the place of MKL, so a wary part of it is expected",
    ),
)
