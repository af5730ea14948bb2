"""Whether a training run with these versions uses IPEX and oneCCL, who calls them, and why not.

A script trains with the Trainer of transformers, or with an Accelerator of its own; what
one of them uses the other may leave alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cputune.stack.fit import ipex_torch, oneccl_torch
from cputune.stack.tables import load
from cputune.stack.versions import Versions

Framework = Literal["trainer", "accelerate"]
IpexState = Literal["used unasked", "used when asked", "ignored", "unfit", "absent", "unknown"]

FRAMEWORKS: tuple[Framework, ...] = ("trainer", "accelerate")
IPEX_VARIABLE = "ACCELERATE_USE_IPEX"


@dataclass(frozen=True, slots=True, kw_only=True)
class IpexUse:
    """What becomes of IPEX in a training run on CPUs.

    Attributes:
        state: "used unasked" unless it is switched off by ``ACCELERATE_USE_IPEX=false``;
            "used when asked" by ``ACCELERATE_USE_IPEX=true`` and, where TrainingArguments
            has it, ``--use_ipex``; "ignored" whatever is asked; "unfit" for this torch;
            "absent"; "unknown" where a version that decides is not known.
        caller: who calls ``ipex.optimize``; None where nobody does, or nobody can tell.
        reason: why, with the versions that decide.
    """

    state: IpexState
    caller: Literal["Trainer", "accelerate"] | None = None
    reason: str

    @property
    def possible(self) -> bool:
        """Whether a run can use IPEX, and another run can do without."""
        return self.state in ("used unasked", "used when asked")


def ipex_use(versions: Versions, *, framework: Framework = "trainer") -> IpexUse:
    """What becomes of IPEX with these versions, in scripts of this framework."""
    if "ipex" in versions.unreadable:
        return _unknown("intel_extension_for_pytorch")
    if versions.ipex is None:
        last = load().ipex[-1]
        minor = f"{last.version.major}.{last.version.minor}"
        return IpexUse(
            state="absent",
            reason="intel_extension_for_pytorch is not installed "
            f"(the last, {last.version}, is for torch {minor})",
        )
    if versions.torch is None:
        return _unknown("torch")
    said = ipex_torch(load(), versions)
    if said:
        return IpexUse(state="unfit", reason=f"{said}: importing it fails")
    return _by_trainer(versions) if framework == "trainer" else _by_accelerate(versions)


def _by_trainer(v: Versions) -> IpexUse:
    """Trainer calls IPEX itself, or hands the model to an accelerate that does."""
    if v.transformers is None:
        return _unknown("transformers")
    transformers = load().transformers
    prepares = transformers.does("trainer-prepares-by-accelerate", v.transformers)
    by_accelerate = _by_accelerate(v) if prepares else None
    unasked = by_accelerate is not None and by_accelerate.possible
    switches_off = transformers.does("switches-ipex-off", v.transformers)
    if unasked and by_accelerate and not switches_off:
        return by_accelerate
    if transformers.does("trainer-calls-ipex", v.transformers):
        reason = f"Trainer of transformers {v.transformers} calls ipex.optimize with --use_ipex"
        return IpexUse(state="used when asked", caller="Trainer", reason=reason)
    if by_accelerate is None:
        return IpexUse(
            state="ignored", reason=f"Trainer of transformers {v.transformers} knows no IPEX"
        )
    if unasked:
        return IpexUse(
            state="used when asked",
            caller="accelerate",
            reason=f"accelerate {v.accelerate} calls ipex.optimize, and transformers "
            f"{v.transformers} switches that off where {IPEX_VARIABLE} is not set",
        )
    return IpexUse(
        state=by_accelerate.state,
        reason=f"{by_accelerate.reason}, and transformers {v.transformers} leaves IPEX to it",
    )


def _by_accelerate(v: Versions) -> IpexUse:
    """``Accelerator.prepare`` calls IPEX unless it is told not to, or never."""
    if v.accelerate is None:
        return _unknown("accelerate")
    if load().accelerate.does("uses-ipex-unasked", v.accelerate, v.torch):
        return IpexUse(
            state="used unasked",
            caller="accelerate",
            reason=f"accelerate {v.accelerate} calls ipex.optimize unless {IPEX_VARIABLE}=false",
        )
    return IpexUse(
        state="ignored", reason=f"accelerate {v.accelerate} with torch {v.torch} ignores IPEX"
    )


def _unknown(package: str) -> IpexUse:
    return IpexUse(state="unknown", reason=f"the version of {package} is not known")


def ipex_off(versions: Versions) -> dict[str, str]:
    """The variable that a run without IPEX needs; empty where nobody uses IPEX unasked."""
    states = {ipex_use(versions, framework=each).state for each in FRAMEWORKS}
    return {IPEX_VARIABLE: "false"} if "used unasked" in states else {}


def ccl_use(versions: Versions, *, framework: Framework = "trainer") -> str | None:
    """Why ranks cannot speak oneCCL with these versions; None where they can.

    It needs the bindings that were made for exactly this torch, and a Trainer and an
    accelerate that know ccl. A script with an Accelerator asks the latter alone.
    """
    said = _why_no_bindings(versions)
    if said:
        return said
    v = versions if framework == "trainer" else replace(versions, transformers=None)
    refused = ccl_refusals(v)
    if refused:
        return "; ".join(refused)
    if framework == "trainer" and v.transformers is None:
        return "the version of transformers is not known"
    if v.accelerate is None and _asks_accelerate(v):
        return "the version of accelerate is not known"
    return None


LEAST_CCL_WORKERS = 1
"""With fewer in CCL_WORKER_COUNT accelerate takes gloo, whatever is asked for
(``PartialState._prepare_backend`` in accelerate/state.py)."""


def why_too_few_ccl_workers(workers: str | int | None) -> str | None:
    """Why ranks with this CCL_WORKER_COUNT do not speak ccl; None where they may."""
    text = "" if workers is None else str(workers).strip()
    if text.isascii() and text.isdigit() and int(text[:9]) >= LEAST_CCL_WORKERS:
        return None
    said = f"CCL_WORKER_COUNT={text}" if text else "no CCL_WORKER_COUNT"
    return f"with {said} accelerate takes gloo: ccl wants {LEAST_CCL_WORKERS} or more"


def ccl_refusals(versions: Versions) -> tuple[str, ...]:
    """What transformers and accelerate, as far as they are there, have against ccl."""
    v, transformers, accelerate = versions, load().transformers, load().accelerate
    said = []
    if v.accelerate is not None and _asks_accelerate(v) and accelerate.does("no-ccl", v.accelerate):
        said.append(f"accelerate {v.accelerate} has no ccl backend")
    if v.transformers is None:
        return tuple(said)
    if "ccl" not in transformers.backends_of(v.transformers):
        said.append(f"transformers {v.transformers} does not take --ddp_backend ccl")
    elif not _asks_accelerate(v) and not transformers.does("trainer-imports-ccl", v.transformers):
        said.append(f"transformers {v.transformers} does not import the oneCCL bindings")
    return tuple(said)


def _asks_accelerate(v: Versions) -> bool:
    """Whether accelerate starts the process group, and not TrainingArguments itself."""
    started_by = load().transformers.does("accelerate-starts-ranks", v.transformers)
    return v.transformers is None or started_by is not None


def _why_no_bindings(v: Versions) -> str | None:
    name = "oneccl_bindings_for_pytorch"
    if "oneccl" in v.unreadable:
        return f"the version of {name} is not known"
    if v.oneccl is None:
        last = load().oneccl[-1]
        made_for = last.torch.lstrip("=")
        return f"{name} is not installed (the last, {last.version}, is for torch {made_for})"
    if v.torch is None:
        return "the version of torch is not known"
    return oneccl_torch(load(), v)


def oneccl_module(versions: Versions) -> str:
    """The module that these oneCCL bindings bring; today's name where they are not known."""
    rows = load().oneccl
    at = [row.module for row in rows if versions.oneccl is None or row.version <= versions.oneccl]
    return at[-1] if at else rows[0].module
