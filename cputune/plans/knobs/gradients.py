"""What ranks send of their gradients: ``gradients``, ``gradient_precision``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.plans.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    changed_shown,
    in_settings,
    unless,
)
from cputune.plans.plan import Plan

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts

# Above this share of touched gradients, sending all is as fast.
WORTH = 0.8


def _alone(plan: Plan) -> bool:
    """One rank sends nothing; oneCCL sends in its own way."""
    return plan.world_size == 1 or plan.backend != "gloo"


def _why_dense(facts: HostFacts, ask: Ask) -> str | None:
    job = ask.workload
    if "gradients" in ask.fixed:
        return None
    if job is None or job.gradient_bytes is None or job.touched_bytes is None:
        return "the rows of gradients that a step touches are not known before it has run"
    share = job.touched_bytes / job.gradient_bytes
    if share <= WORTH:
        return None
    return f"a step touches {share:.0%} of the gradients"


GRADIENTS = Knob(
    name="gradients",
    summary="whether ranks send embedding rows that no token of the step touched",
    values=("dense", "sparse"),
    keeps="mathematics",
    offers=_why_dense,
    put=in_settings("gradients", needless=_alone),
    set_in_torch=True,
    shown=(changed_shown("gradients sent", "gradients", "gradients"),),
    description=lambda plan: "sparse gradients" if "gradients" in plan.settings else None,
    effect=Effect(
        size=0.1,
        within={"nodes": 0.2},
        expected=lambda facts, plan: -0.2 if _on_the_wire(plan, "gradients") else 0.0,
        source="read between two hosts of one core over 0.5 Gbit/s, 11 million parameters "
        "(benchmarks/second_node.py): a step in 0.86 s instead of 1.27 (log -0.39), 15.5 MB sent "
        "instead of 44.8; half of it is expected",
    ),
)


def _on_the_wire(plan: Plan, name: str) -> bool:
    return name in plan.settings and plan.nodes > 1


def _types(facts: HostFacts, ask: Ask) -> Choices:
    """fp32; also bf16 if the user allows it, because it changes the training."""
    reason = None
    if not (ask.allow_bf16_gradients or "gradient_precision" in ask.fixed):
        reason = (
            "it changes the numbers: they are rounded to bf16 (--allow-bf16-gradients tries it)"
        )
    return unless(reason, "gradient_precision=bf16", "fp32", "bf16")


GRADIENT_PRECISION = Knob(
    name="gradient_precision",
    summary="type in which ranks send and add their gradients: fp32 or bf16",
    values=("fp32", "bf16"),
    keeps="nothing",
    offers=_types,
    put=in_settings("gradient_precision", needless=_alone),
    set_in_torch=True,
    shown=(changed_shown("gradients in transit", "gradient_precision", "gradient_precision"),),
    description=lambda plan: "gradients in bf16" if "gradient_precision" in plan.settings else None,
    effect=Effect(
        size=0.1,
        within={"nodes": 0.2},
        expected=lambda facts, plan: -0.1 if _on_the_wire(plan, "gradient_precision") else 0.0,
        source="read as that of gradients: a step in 1.00 s instead of 1.27 (log -0.24), and in "
        "0.76 with sparse ones (-0.12 more)",
    ),
)
