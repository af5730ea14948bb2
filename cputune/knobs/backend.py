"""The knob ``backend``: what torch.distributed adds up the gradients of the ranks with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from cputune.knobs.record import Argument, Ask, Choices, Effect, Knob, LeftOut, Shown, State, one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputune.facts import HostFacts
    from cputune.plan import Plan

BACKENDS = ("gloo", "ccl", "mpi")


def _choices(facts: HostFacts, ask: Ask) -> Choices:
    """gloo, and ccl where it lives.

    ``--ddp_backend ccl`` needs transformers 4.29 to 5.0, accelerate up to 1.12, the
    oneCCL bindings made for exactly this torch, and an MPI that oneCCL knows.
    """
    why = _why_no_ccl(facts)
    if why is None:
        return Choices(values=("gloo", "ccl"))
    return Choices(values=("gloo",), left_out=(LeftOut(what="backend=ccl", why=why),))


def _why_no_ccl(facts: HostFacts) -> str | None:
    package = facts.package("oneccl_bind_pt") or facts.package("oneccl_bindings_for_pytorch")
    if package is None:
        return "oneccl_bindings_for_pytorch is not installed (the last, 2.8.0, is for torch 2.8.0)"
    own, torch = _version(package.version), version_of(facts, "torch")
    if own is None or torch is None:
        return "the versions of torch and of oneccl_bindings_for_pytorch are not known"
    if not bindings_fit(own, torch):
        return f"oneccl_bindings_for_pytorch {own} is not made for torch {torch}"
    transformers = version_of(facts, "transformers")
    accelerate = version_of(facts, "accelerate")
    if transformers is None or not between(transformers, "4.29", "5.0"):
        return f"transformers {transformers or 'of unknown version'} has no ccl (4.29 to 5.0 have)"
    if accelerate is None or accelerate >= Version("1.13.dev0"):
        return f"accelerate {accelerate or 'of unknown version'} has no ccl (up to 1.12 has)"
    if not any(launcher.dialect == "intelmpi" for launcher in facts.launchers):
        return "no mpirun of Intel MPI was found, and oneCCL needs one to start its ranks"
    return None


def bindings_fit(bindings: Version, torch: Version) -> bool:
    """Whether these oneCCL bindings were built against this torch.

    The versions are the same, but for 1.12.100, which is for torch 1.12.1, and 1.13,
    which fits every torch 1.13.
    """
    if bindings.release == (1, 12, 100):
        return torch.release == (1, 12, 1)
    if bindings.release[:2] == (1, 13):
        return torch.release[:2] == (1, 13)
    pad = (0, 0, 0)
    return (bindings.release + pad)[:3] == (torch.release + pad)[:3]


def version_of(facts: HostFacts, package: str) -> Version | None:
    """The version of an installed package; None where it is absent or not a version."""
    found = facts.package(package)
    return None if found is None else _version(found.version)


def _version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        return None


def between(version: Version, first: str, last: str) -> bool:
    """Whether ``first <= version``, and its major.minor is not above ``last``."""
    return Version(first) <= version and version.release[:2] <= Version(last).release[:2]


def _arguments(plan: Plan) -> Mapping[str, Argument]:
    """A backend in a run of one process is a ValueError (``TrainingArguments._setup_devices``)."""
    return {"ddp_backend": plan.backend if plan.world_size > 1 else None}


def _seen(plan: Plan, state: State) -> object | None:
    return state.get("backend") if (state.get("world_size") or 1) > 1 else None


BACKEND = Knob(
    name="backend",
    summary="what adds up the gradients of the ranks: gloo, or ccl where oneCCL lives",
    today="gloo",
    parse=one_of("backend", BACKENDS),
    choices=_choices,
    arguments=_arguments,
    shown=(
        Shown(
            what="backend",
            expected=lambda plan, local_rank: plan.backend if plan.world_size > 1 else None,
            seen=_seen,
        ),
    ),
    words=lambda plan: plan.backend if plan.world_size > 1 else None,
    effect=Effect(
        own=0.1,
        within={"ranks": 0.1},
        label=lambda plan, at: plan.backend if plan.world_size > 1 else None,
        source="read on two ranks of a 4-layer BERT in bf16: 12.5 samples/s over ccl, 11.0 over "
        "gloo (log 0.13); the share of the all-reduce grows with the ranks",
    ),
)
