"""The knob ``precision``: the type in which matrices are multiplied."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.plans.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    LeftOut,
    Shown,
    State,
    in_field,
    unless,
)
from cputune.plans.plan import Plan
from cputune.plans.values import PRECISIONS, Precision
from cputune.stack import versions_of, why_no_bf16

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.host.facts import HostFacts

# torch's names, which the output of a layer shows.
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

# ISA flags that multiply bf16 in hardware (``bf16`` is Arm's name for it).
NATIVE_BF16 = ("amx_bf16", "avx512_bf16", "bf16")


# The time of a product in bf16 over that in fp32, up to which bf16 counts as fast: 0.5 was read
# with instructions for it, and 2.6 without (``ONEDNN_MAX_CPU_ISA=AVX512_CORE``).
SLOWER = 1.5


def native_precisions(facts: HostFacts) -> tuple[Precision, ...]:
    """Precisions that this CPU multiplies in hardware, the fastest first."""
    if any(map(facts.cpu.has, NATIVE_BF16)):
        return ("bf16", "fp32")
    return ("fp32",)


def advised_precision(facts: HostFacts) -> Precision:
    """bf16 if this CPU multiplies it in hardware and the installed Trainer accepts it."""
    if why_no_bf16(versions_of(facts)) is not None:
        return "fp32"
    return native_precisions(facts)[0]


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """fp32; also bf16 if the CPU has it in hardware, by its flags or by a try in a rank, or if
    --allow-slow-precision is given.
    """
    fp16 = LeftOut(
        what="precision=fp16",
        why="accelerate skips fp16 autocast on CPUs: such a run trains in fp32 without a message",
    )
    reason = None
    if ask.framework == "trainer":
        reason = why_no_bf16(versions_of(facts))
    if reason is None and not ask.allow_slow_precision:
        reason = _why_slow(facts, ask)
    choices = unless(reason, "precision=bf16", "fp32", "bf16")
    return replace(choices, left_out=(fp16, *choices.left_out))


def _why_slow(facts: HostFacts, ask: Ask) -> str | None:
    """Why bf16 would be slower than fp32: its flags are missing, and a try does not contradict.

    A try that other processes delayed cannot leave it out alone.
    """
    if "bf16" in native_precisions(facts):
        return None
    flags = ", ".join(NATIVE_BF16)
    slower = "3 to 4 times slower than fp32"
    if ask.workload is not None and ask.workload.bf16_time is not None:
        if ask.workload.bf16_time <= SLOWER:
            return None
        slower = f"{ask.workload.bf16_time:.1f} times slower than fp32 in a product of matrices"
    return f"this CPU has none of {flags}: bf16 is then {slower} (--allow-slow-precision tries it)"


def _variables(plan: Plan) -> Mapping[str, str]:
    if plan.precision == "fp32":
        return {}
    return {"ACCELERATE_MIXED_PRECISION": plan.precision}


def _as_seen(plan: Plan, state: State) -> Plan:
    precisions = []
    for name in PRECISIONS:
        if DTYPES[name] == state.get("dtype"):
            precisions.append(name)
    if precisions:
        return replace(plan, precision=precisions[0])
    return plan


def _expected(facts: HostFacts, plan: Plan) -> float:
    if plan.precision != "bf16":
        return 0.0
    if "bf16" in native_precisions(facts):
        return -0.7
    return 1.0


PRECISION = Knob(
    name="precision",
    summary="fp32, or bf16 autocast if the CPU multiplies bf16 in hardware",
    values=PRECISIONS,
    never=("fp16",),
    keeps="nothing",
    offers=_choices,
    put=in_field("precision"),
    variables=_variables,
    # fp16 has no argument: ``--fp16`` trains in fp32 on a CPU, without a word.
    argument="bf16",
    argument_value=lambda plan: plan.precision == "bf16",
    shown=(
        Shown(
            what="precision",
            key="dtype",
            expected=lambda plan, _: DTYPES[plan.precision],
            unknown="no layer that multiplies matrices was seen to be called",
        ),
    ),
    as_seen=_as_seen,
    description=lambda plan: plan.precision,
    effect=Effect(
        size=0.6,
        within={"layout": 0.15, "smt": 0.1},
        expected=_expected,
        source="read on two machines of two cores: bf16 takes 0.45 to 0.58 of the time of fp32 "
        "where it is native (log -0.8 to -0.55); emulated it is 3 to 4 times slower (oneDNN's "
        "documentation), of which a wary 2.7 is expected",
    ),
)
