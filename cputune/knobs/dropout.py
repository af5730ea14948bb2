"""The knob ``dropout``: how the masks of dropout are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.knobs.record import Ask, Choices, Effect, Knob, KnobValue, LeftOut, Shown, one_of
from cputune.stack import versions_of, why_no_masks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.facts import HostFacts
    from cputune.plan import Plan

TORCH, BYTES = "torch", "bytes"

INTEL = "GenuineIntel"


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """The way of torch itself; and random bytes, where torch draws on one thread alone.

    aten/src/ATen/native/cpu/DistributionKernels.cpp (bernoulli_scalar_kernel) calls MKL, which
    draws on all threads, where cpuinfo says that the processor is Intel's.
    """
    why = why_no_masks(versions_of(facts))
    if why is None and facts.cpu.vendor is None:
        why = "whose processor this is, is not known: on Intel's torch draws masks on all threads"
    if why is None and facts.cpu.vendor == INTEL:
        why = "on Intel's processors torch draws masks on all threads already"
    training = None if ask.workload is None else ask.workload.training
    if (
        why is None
        and training is not None
        and training.dropout is False
        and "dropout" not in ask.fixed
    ):
        why = "no layer of the model was seen to drop anything"
    if why is not None:
        return Choices(values=(TORCH,), left_out=(LeftOut(what="dropout=bytes", why=why),))
    return Choices(values=(TORCH, BYTES))


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan:
    return plan.with_setting("dropout", value)


def _in_torch(plan: Plan) -> Mapping[str, str]:
    value = plan.setting("dropout")
    return {} if value == TORCH else {"dropout": str(value)}


DROPOUT = Knob(
    name="dropout",
    summary="dropout masks of torch's own generator, or of random bytes on all threads",
    today=TORCH,
    parse=one_of("dropout", (TORCH, BYTES)),
    keeps="distribution",
    choices=_choices,
    put=_put,
    in_settings=True,
    in_torch=_in_torch,
    shown=(
        Shown(
            what="dropout masks",
            key="dropout",
            expected=lambda plan, local_rank: _in_torch(plan).get("dropout"),
        ),
    ),
    words=lambda plan: "dropout masks of random bytes" if _in_torch(plan) else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.1, "precision": 0.1},
        label=lambda plan, at: plan.setting("dropout"),
        expected=lambda facts, plan: -0.1 if _in_torch(plan) else 0.0,
        answers=("dropout masks", 0.8),
        source="read side by side on two Zen 5 cores, 4 layers in bf16: 1.10 times as fast with "
        "hidden layers alone, 1.36 with attention's (logs -0.1 and -0.31); what torch draws on one "
        "thread weighs more, the more threads there are",
    ),
)
