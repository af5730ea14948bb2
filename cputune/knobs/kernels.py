"""Which implementations compute a step: ``ipex``, ``optimizer``, ``dropout``, ``compile``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.knobs.record import (
    Argument,
    Ask,
    Choices,
    Effect,
    Knob,
    KnobValue,
    Shown,
    State,
    TrainerArgument,
    changed_shown,
    in_field,
    in_settings,
    one_of,
    unless,
    yes_or_no,
)
from cputune.stack import (
    Versions,
    default_optimizer,
    ipex_use,
    optimizers,
    takes,
    versions_of,
    why_no_compile,
    why_no_masks,
)

if TYPE_CHECKING:
    from types import EllipsisType

    from cputune.facts import HostFacts
    from cputune.plan import Plan


def _ipex(facts: HostFacts, ask: Ask) -> Choices:
    """IPEX on or off, where a run can use it and another can do without."""
    use = ipex_use(versions_of(facts), framework=ask.framework)
    return unless(None if use.possible else use.reason, "ipex", False, True)


IPEX = Knob(
    name="ipex",
    summary="whether intel_extension_for_pytorch optimizes model and optimizer",
    today=False,
    parse=yes_or_no("ipex"),
    keeps="mathematics",
    choices=_ipex,
    put=in_field("ipex"),
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
        source="assumed: the guides promise a gain without a figure; the optimizer that it fuses "
        "is worth up to a quarter where torch's own is not",
    ),
)

DEFAULT, LOOP, FUSED = "default", "adamw_torch", "adamw_torch_fused"

_SHOWN = {LOOP: "AdamW as a loop", FUSED: "AdamW, fused"}


def _optimizers(facts: HostFacts, ask: Ask) -> Choices:
    """The script's own optimizer; and fused AdamW, where the script trains with another AdamW.

    The numbers that AdamW computes are the same either way. Any other optimizer is the user's
    choice, and stays. A value that the user asks for needs only to be possible.
    """
    versions = versions_of(facts)
    wanted = str(ask.fixed.get("optimizer", FUSED))
    why = _why_no_optimizer(versions, wanted)
    if why is None and "optimizer" not in ask.fixed:
        why = _why_same_optimizer(ask, versions)
    return unless(why, f"optimizer={wanted}", DEFAULT, wanted)


def _why_no_optimizer(versions: Versions, wanted: str) -> str | None:
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


def _why_same_optimizer(ask: Ask, versions: Versions) -> str | None:
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


def _put_optimizer(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """None for another optimizer with IPEX, which replaces the step of each by its own."""
    if plan.ipex and value != DEFAULT:
        return None
    return plan.with_setting("optimizer", value)


def _optim(plan: Plan) -> Argument | EllipsisType:
    return plan.settings.get("optimizer", ...)


def optimizer_of(state: State) -> str | None:
    """How a rank's optimizer steps, in words; None where the rank does not show it."""
    seen = state.get("optimizer")
    if seen is None:
        return None
    way = next((f", {name}" for name in ("fused", "foreach") if seen[name]), " as a loop")
    return f"{seen['class']}{way}"


OPTIMIZER = Knob(
    name="optimizer",
    summary="the script's own optimizer, or fused AdamW in the place of AdamW as a loop",
    today=DEFAULT,
    parse=one_of("optimizer", (DEFAULT, LOOP, FUSED)),
    keeps="mathematics",
    choices=_optimizers,
    put=_put_optimizer,
    argument=TrainerArgument(name="optim", value=_optim),
    shown=(
        Shown(
            what="optimizer",
            key="optimizer",
            expected=lambda plan, local_rank: _SHOWN.get(str(plan.setting("optimizer"))),
            read=lambda plan, seen: optimizer_of({"optimizer": seen}),
        ),
    ),
    words=lambda plan: str(value) if (value := plan.settings.get("optimizer")) else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.06, "precision": 0.06},
        expected=lambda facts, plan: -0.15 if plan.setting("optimizer") == FUSED else 0.0,
        answers=("optimizer", 0.8),
        source="read side by side on two cores, 4 layers in bf16: AdamW as a loop 0.78 times as "
        "fast as fused (log -0.25); a wary half of it is expected, since it weighs less beside "
        "larger batches",
    ),
)

INTEL = "GenuineIntel"


def _masks(facts: HostFacts, ask: Ask) -> Choices:
    """The way of torch itself; and random bytes, where torch draws on one thread alone.

    aten/src/ATen/native/cpu/DistributionKernels.cpp (bernoulli_scalar_kernel) calls MKL, which
    draws on all threads, where cpuinfo says that the processor is Intel's.
    """
    why = why_no_masks(versions_of(facts))
    training = None if ask.workload is None else ask.workload.training
    if why is None and facts.cpu.vendor is None:
        why = "whose processor this is, is not known: on Intel's torch draws masks on all threads"
    elif why is None and facts.cpu.vendor == INTEL:
        why = "on Intel's processors torch draws masks on all threads already"
    elif why is None and training and training.dropout is False and "dropout" not in ask.fixed:
        why = "no layer of the model was seen to drop anything"
    return unless(why, "dropout=bytes", "torch", "bytes")


DROPOUT = Knob(
    name="dropout",
    summary="dropout masks of torch's own generator, or of random bytes on all threads",
    today="torch",
    parse=one_of("dropout", ("torch", "bytes")),
    keeps="distribution",
    choices=_masks,
    put=in_settings("dropout"),
    set_in_torch=True,
    shown=(changed_shown("dropout masks", "dropout", "dropout"),),
    words=lambda plan: "dropout masks of random bytes" if "dropout" in plan.settings else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.1, "precision": 0.1},
        expected=lambda facts, plan: -0.1 if "dropout" in plan.settings else 0.0,
        answers=("dropout masks", 0.8),
        source="read side by side on two Zen 5 cores, 4 layers in bf16: 1.10 times as fast with "
        "hidden layers alone, 1.36 with attention's (logs -0.1 and -0.31); what torch draws on one "
        "thread weighs more, the more threads there are",
    ),
)

TORCH_COMPILE = "torch_compile"


def _compile(facts: HostFacts, ask: Ask) -> Choices:
    """As the script is; and compiled, where torch, a C++ compiler and the script allow it.

    A Trainer compiles by its own argument; other scripts have their model compiled where it is
    first called to train (``cputune.inside.in_torch``). The first steps compile, which takes from
    half a minute to many: they do not count, and are told apart (``Trial.compile_seconds``).
    """
    return unless(_why_no_compile(facts, ask), "compile=yes", False, True)


def _why_no_compile(facts: HostFacts, ask: Ask) -> str | None:
    versions, workload = versions_of(facts), ask.workload
    why = why_no_compile(versions)
    if why is not None:
        return why
    if facts.cxx is None:
        missing = facts.why_unknown("cxx") or "there is no C++ compiler"
        return f"{missing}, and torch.compile needs a C++ compiler (apt-get install g++)"
    if workload is not None and workload.argument(f"--{TORCH_COMPILE}") is not None:
        return f"the script asks for --{TORCH_COMPILE} itself"
    if ask.framework == "trainer" and not takes(versions, TORCH_COMPILE):
        return f"transformers {versions.transformers} has no {TORCH_COMPILE}"
    return None


def _put_compile(plan: Plan, value: KnobValue, facts: HostFacts) -> Plan | None:
    """None for a compiled plan with IPEX or ``dropout``.

    IPEX puts kernels of its own into the model, and compiled code draws dropout masks in its own
    way.
    """
    if value and (plan.ipex or "dropout" in plan.settings):
        return None
    return plan.with_setting("compile", value)


def compiled(plan: Plan) -> bool:
    """Whether the plan says that the model is compiled."""
    return bool(plan.setting("compile"))


COMPILE = Knob(
    name="compile",
    summary="whether torch.compile makes kernels of the model before its first step",
    today=False,
    parse=yes_or_no("compile"),
    keeps="distribution",  # compiled code draws dropout masks in its own way
    choices=_compile,
    put=_put_compile,
    argument=TrainerArgument(name=TORCH_COMPILE, value=lambda plan: compiled(plan) or ...),
    set_in_torch=True,
    asked_for="it compiles for a minute or more before the first step, which long runs win back",
    shown=(changed_shown("compiled", "compiled", "compile"),),
    words=lambda plan: "compiled" if compiled(plan) else None,
    effect=Effect(
        own=0.15,
        within={"layout": 0.06, "precision": 0.1},
        expected=lambda facts, plan: 0.0,
        source="read side by side on two Zen 5 cores, 4 layers in bf16: 0.93 times as fast as not "
        "compiled (log 0.07); what is fused weighs more in other models, so nothing is expected",
    ),
)
