"""The knob ``compile``: whether torch.compile makes kernels of the model before its first step.

A Trainer compiles by its own argument; other scripts have their model compiled where it is first
called to train (``cputune.inside.in_torch``). The first steps compile, which takes from half a
minute to many: they do not count as steps, and are told by themselves (``Trial.compile_seconds``).
"""

from __future__ import annotations

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
from cputune.stack import takes, versions_of, why_no_compile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.facts import HostFacts
    from cputune.plan import Plan

ARGUMENT = "torch_compile"


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """As the script is; and compiled, where torch, a C++ compiler and the script allow it."""
    why = _why_impossible(facts, ask)
    if why is not None:
        return Choices(values=(False,), left_out=(LeftOut(what="compile=yes", why=why),))
    return Choices(values=(False, True))


def _why_impossible(facts: HostFacts, ask: Ask) -> str | None:
    versions, workload = versions_of(facts), ask.workload
    why = why_no_compile(versions)
    if why is not None:
        return why
    if facts.cxx is None:
        missing = facts.why_unknown("cxx") or "there is no C++ compiler"
        return f"{missing}, and torch.compile needs a C++ compiler (apt-get install g++)"
    if workload is not None and workload.framework == "lightning":
        return "the script trains with Lightning: only the script itself can compile its module"
    if workload is not None and workload.argument(f"--{ARGUMENT}") is not None:
        return f"the script asks for --{ARGUMENT} itself"
    if ask.framework == "trainer" and not takes(versions, ARGUMENT):
        return f"transformers {versions.transformers} has no {ARGUMENT}"
    return None


def _put(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """IPEX puts kernels of its own into the model; what is compiled draws its masks itself."""
    if value and (plan.ipex or plan.setting("dropout") != "torch"):
        return None
    return plan.with_setting("compile", value)


def compiled(plan: Plan) -> bool:
    """Whether the plan says that the model is compiled."""
    return bool(plan.setting("compile"))


def _in_torch(plan: Plan) -> Mapping[str, str]:
    return {"compile": "yes"} if compiled(plan) else {}


COMPILE = Knob(
    name="compile",
    summary="whether torch.compile makes kernels of the model before its first step",
    today=False,
    parse=yes_or_no("compile"),
    keeps="mathematics",
    choices=_choices,
    put=_put,
    in_settings=True,
    argument=TrainerArgument(name=ARGUMENT, value=lambda plan: True if compiled(plan) else ...),
    in_torch=_in_torch,
    asked_for="it compiles for a minute or more before the first step, which long runs win back",
    shown=(
        Shown(
            what="compiled",
            key="compiled",
            expected=lambda plan, local_rank: True if compiled(plan) else None,
        ),
    ),
    words=lambda plan: "compiled" if compiled(plan) else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.06, "precision": 0.1},
        label=lambda plan, at: plan.setting("compile"),
        expected=lambda facts, plan: 0.0,
        source="read side by side on two Zen 5 cores, 4 layers in bf16: 0.93 times as fast as not "
        "compiled (log 0.07); what is fused weighs more in other models, so nothing is expected",
    ),
)
