"""Which implementations compute a step: ``ipex``, ``optimizer``, ``dropout``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cputune.plans.knobs.record import (
    Ask,
    Choices,
    Effect,
    Knob,
    Shown,
    State,
    changed_shown,
    in_field,
    in_settings,
    unless,
)
from cputune.plans.plan import Plan
from cputune.stack import (
    Versions,
    default_optimizer,
    ipex_use,
    optimizers,
    versions_of,
    why_no_masks,
)

if TYPE_CHECKING:
    from cputune.host.facts import HostFacts


def _why_no_ipex(facts: HostFacts, ask: Ask) -> str | None:
    """Why a run cannot use IPEX, or cannot avoid it; None if both are possible."""
    use = ipex_use(versions_of(facts), framework=ask.framework)
    if use.possible:
        return None
    return use.reason


IPEX = Knob(
    name="ipex",
    summary="whether intel_extension_for_pytorch optimizes model and optimizer",
    values=(False, True),
    keeps="mathematics",
    offers=_why_no_ipex,
    put=in_field("ipex"),
    variables=lambda plan: {"ACCELERATE_USE_IPEX": "true"} if plan.ipex else {},
    argument="use_ipex",
    argument_value=lambda plan: plan.ipex,
    shown=(
        Shown(
            what="IPEX",
            key="ipex",
            expected=lambda plan, _: "on" if plan.ipex else "off",
            read=lambda plan, optimized: "on" if optimized else "off",
        ),
    ),
    as_seen=lambda plan, state: replace(plan, ipex=bool(state.get("ipex"))),
    description=lambda plan: "IPEX" if plan.ipex else None,
    effect=Effect(
        size=0.15,
        within={"layout": 0.06, "precision": 0.06},
        source="assumed: the guides give no number; its fused optimizer "
        "gains up to a quarter if torch's is not fused",
    ),
)

DEFAULT, LOOP, FUSED = "default", "adamw_torch", "adamw_torch_fused"

_SHOWN = {LOOP: "AdamW as a loop", FUSED: "AdamW, fused"}


def _optimizers(facts: HostFacts, ask: Ask) -> Choices:
    """The script's optimizer; also fused AdamW if the script trains with another AdamW.

    All AdamW compute the same numbers; any other optimizer is the user's choice.
    """
    versions = versions_of(facts)
    wanted = str(ask.fixed.get("optimizer", FUSED))
    reason = None
    if wanted == DEFAULT:
        pass
    elif versions.transformers is None or versions.torch is None:
        reason = "the versions of transformers and torch are not known"
    elif wanted not in optimizers(versions):
        reason = (
            f"transformers {versions.transformers} with torch {versions.torch} has no "
            f"--optim {wanted} that steps on a CPU"
        )
    elif "optimizer" not in ask.fixed:
        reason = _why_same_optimizer(ask, versions)
    return unless(reason, f"optimizer={wanted}", DEFAULT, wanted)


def _why_same_optimizer(ask: Ask, versions: Versions) -> str | None:
    stepped = None
    if ask.workload is not None:
        stepped = ask.workload.optimizer
    if stepped is not None:
        if stepped == _SHOWN[LOOP]:
            return None
        return f"the script steps with {stepped}"
    if ask.framework == "accelerate":
        return "the script's optimizer is not known before it has run"
    requested = None
    if ask.workload is not None:
        requested = ask.workload.argument("--optim")
    if requested is not None:
        replaceable = requested in optimizers(versions) and requested != FUSED
        if replaceable:
            return None
        return f"the script sets --optim {requested} itself"
    if default_optimizer(versions) == FUSED:
        return (
            f"it is the default of transformers {versions.transformers} "
            f"with torch {versions.torch} already"
        )
    return None


def optimizer_of(state: State) -> str | None:
    """How a rank's optimizer steps, in words; None if the rank does not show it."""
    optimizer = state.get("optimizer")
    if optimizer is None:
        return None
    kernel = next((f", {name}" for name in ("fused", "foreach") if optimizer[name]), " as a loop")
    return f"{optimizer['class']}{kernel}"


def _optimizer_described(plan: Plan) -> str | None:
    value = plan.settings.get("optimizer")
    if value is None:
        return None
    return str(value)


OPTIMIZER = Knob(
    name="optimizer",
    summary="the script's optimizer, or fused AdamW instead of AdamW as a loop",
    values=(DEFAULT, LOOP, FUSED),
    keeps="mathematics",
    offers=_optimizers,
    # IPEX replaces the step of each optimizer by its own.
    put=in_settings("optimizer", needless=lambda plan: plan.ipex),
    argument="optim",
    shown=(
        Shown(
            what="optimizer",
            key="optimizer",
            expected=lambda plan, _: _SHOWN.get(str(plan.setting("optimizer"))),
            read=lambda plan, optimizer: optimizer_of({"optimizer": optimizer}),
        ),
    ),
    description=_optimizer_described,
    effect=Effect(
        size=0.15,
        within={"layout": 0.06, "precision": 0.06},
        expected=lambda facts, plan: -0.15 if plan.setting("optimizer") == FUSED else 0.0,
        source="read side by side on two cores, 4 layers in bf16: AdamW as a loop 0.78 times as "
        "fast as fused (log -0.25); half of it is expected, since "
        "it matters less with larger batches",
    ),
)

# The share of the first step in which torch draws masks: less cannot be seen. That step is up to
# twice as long as later ones.
SHOWS = 0.005


def _why_no_masks(facts: HostFacts, ask: Ask) -> str | None:
    """Why masks stay torch's: how long it takes to draw them was tried in a rank."""
    reason = why_no_masks(versions_of(facts))
    if reason is not None or ask.workload is None or "dropout" in ask.fixed:
        return reason
    training, masks = ask.workload.training, ask.workload.masks
    if training and training.dropout is False:
        return "no dropout was seen in the model"
    # Attention with dropout is computed in another way, too, which is worth a trial.
    if masks is None or masks.attention or masks.seconds >= SHOWS * masks.step_seconds:
        return None
    return (
        f"torch draws the masks of a step in {1000 * masks.seconds:.2g} ms, "
        f"and a step takes {1000 * masks.step_seconds:.0f} ms"
    )


DROPOUT = Knob(
    name="dropout",
    summary="dropout of torch, or masks of random bytes on all threads, and attention with them",
    values=("torch", "bytes"),
    keeps="distribution",
    offers=_why_no_masks,
    put=in_settings("dropout"),
    set_in_torch=True,
    shown=(changed_shown("dropout masks", "dropout", "dropout"),),
    description=lambda plan: (
        "dropout masks of random bytes" if "dropout" in plan.settings else None
    ),
    effect=Effect(
        size=0.15,
        within={"layout": 0.1, "precision": 0.1},
        expected=lambda facts, plan: -0.1 if "dropout" in plan.settings else 0.0,
        source="read side by side on two Zen 4 cores, 4 layers in bf16 with tcmalloc: 1.22 times "
        "as fast (1.15–1.30, log -0.2); half of it is expected, since matmuls of larger layers "
        "weigh more; what torch draws on one thread weighs more, the more threads there are",
    ),
)
