"""What a stack uses, accepts, rejects and ignores: IPEX, oneCCL, flags, keys and variables.

A script trains with the Trainer of transformers or with its own Accelerator, and the two may
differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from packaging.version import InvalidVersion, Version

from cputune.stack import interface
from cputune.stack.fit import ipex_torch, oneccl_torch
from cputune.stack.tables import Feature, Library, Versions, load

# The first torch with a fused AdamW for CPUs.
_FUSED_ON_CPU = Version("2.4")

# The first bitsandbytes whose optimizers step on a CPU.
_BITSANDBYTES_ON_CPU = Version("0.50")


def fuses_on_cpu(torch: Version) -> bool:
    """Whether ``adamw_torch_fused`` of this torch steps on a CPU."""
    return torch >= _FUSED_ON_CPU


def bitsandbytes_steps_on_cpu(version: str | None) -> bool | None:
    """None for an unknown version."""
    try:
        return Version(version or "") >= _BITSANDBYTES_ON_CPU
    except InvalidVersion:
        return None


Framework = Literal["trainer", "accelerate"]
IpexState = Literal["used unasked", "used when asked", "ignored", "unfit", "absent", "unknown"]

FRAMEWORKS: tuple[Framework, ...] = ("trainer", "accelerate")
IPEX_VARIABLE = "ACCELERATE_USE_IPEX"


@dataclass(frozen=True, slots=True, kw_only=True)
class IpexUse:
    """Whether a training on CPUs uses IPEX.

    Attributes:
        state: "used unasked" unless ``ACCELERATE_USE_IPEX=false``; "used when asked" with
            ``ACCELERATE_USE_IPEX=true`` and, if TrainingArguments has it, ``--use_ipex``; "ignored"
            in any case; "unfit" for this torch; "absent"; "unknown" if a version that decides is
            not known.
        caller: what calls ``ipex.optimize``. None if nothing does, or if it is not known.
        reason: the reason, with the versions that decide.
    """

    state: IpexState
    caller: Literal["Trainer", "accelerate"] | None = None
    reason: str

    @property
    def possible(self) -> bool:
        """Whether a run can use IPEX, and another run can leave it out."""
        return self.state in ("used unasked", "used when asked")


def ipex_use(versions: Versions, *, framework: Framework = "trainer") -> IpexUse:
    """Whether scripts of this framework use IPEX with these versions."""
    if "ipex" in versions.unreadable:
        return _unknown("intel_extension_for_pytorch")
    if versions.ipex is None:
        last = load().ipex[-1].version
        made_for = f"the last, {last}, is for torch {last.major}.{last.minor}"
        reason = f"intel_extension_for_pytorch is not installed ({made_for})"
        return IpexUse(state="absent", reason=reason)
    if versions.torch is None:
        return _unknown("torch")
    misfit = ipex_torch(versions)
    if misfit:
        return IpexUse(state="unfit", reason=f"{misfit}: importing it fails")
    if framework == "trainer":
        return _by_trainer(versions)
    return _by_accelerate(versions)


def _by_trainer(v: Versions) -> IpexUse:
    """Trainer calls IPEX itself, or passes the model to an accelerate that does."""
    if v.transformers is None:
        return _unknown("transformers")
    transformers, trainer = load().transformers, f"transformers {v.transformers}"
    prepares = transformers.does("trainer-prepares-by-accelerate", v.transformers)
    use = None
    if prepares:
        use = _by_accelerate(v)
    if use and use.possible and not transformers.does("switches-ipex-off", v.transformers):
        return use
    if transformers.does("trainer-calls-ipex", v.transformers):
        reason = f"Trainer of {trainer} calls ipex.optimize with --use_ipex"
        return IpexUse(state="used when asked", caller="Trainer", reason=reason)
    if use is None:
        return IpexUse(state="ignored", reason=f"Trainer of {trainer} does not use IPEX")
    if use.possible:
        off = f"{trainer} switches that off unless {IPEX_VARIABLE} is set"
        reason = f"accelerate {v.accelerate} calls ipex.optimize, and {off}"
        return IpexUse(state="used when asked", caller="accelerate", reason=reason)
    return IpexUse(state=use.state, reason=f"{use.reason}, and {trainer} leaves IPEX to it")


def _by_accelerate(v: Versions) -> IpexUse:
    """``Accelerator.prepare`` calls IPEX unless a variable switches it off, or never."""
    if v.accelerate is None:
        return _unknown("accelerate")
    if load().accelerate.does("uses-ipex-unasked", v.accelerate, v.torch):
        reason = f"accelerate {v.accelerate} calls ipex.optimize unless {IPEX_VARIABLE}=false"
        return IpexUse(state="used unasked", caller="accelerate", reason=reason)
    reason = f"accelerate {v.accelerate} with torch {v.torch} ignores IPEX"
    return IpexUse(state="ignored", reason=reason)


def _unknown(package: str) -> IpexUse:
    return IpexUse(state="unknown", reason=f"the version of {package} is not known")


def ipex_off(versions: Versions) -> dict[str, str]:
    """The variable for a run without IPEX. Empty if nothing uses IPEX unasked."""
    if versions.ipex is None and "ipex" not in versions.unreadable:
        return {}
    states = {ipex_use(versions, framework=each).state for each in FRAMEWORKS}
    if "used unasked" in states:
        return {IPEX_VARIABLE: "false"}
    return {}


def ccl_use(versions: Versions, *, framework: Framework = "trainer") -> str | None:
    """Why ranks cannot use oneCCL with these versions. None if they can.

    It needs the bindings for exactly this torch, and a Trainer and an accelerate with a ccl
    backend, or only the latter.
    """
    missing = _why_no_bindings(versions)
    if missing:
        return missing
    v = versions
    if framework != "trainer":
        v = replace(versions, transformers=None)
    refused = ccl_refusals(v)
    if refused:
        return "; ".join(refused)
    if framework == "trainer" and v.transformers is None:
        return "the version of transformers is not known"
    if v.accelerate is None and _asks_accelerate(v):
        return "the version of accelerate is not known"
    return None


# If CCL_WORKER_COUNT is smaller, accelerate uses gloo in any case
# (``PartialState._prepare_backend`` in accelerate/state.py).
LEAST_CCL_WORKERS = 1


def why_too_few_ccl_workers(workers: str | int | None) -> str | None:
    """Why ranks with this CCL_WORKER_COUNT do not use ccl. None if they may."""
    text = ""
    if workers is not None:
        text = str(workers).strip()
    if text.isascii() and text.isdigit() and int(text[:9]) >= LEAST_CCL_WORKERS:
        return None
    setting = "no CCL_WORKER_COUNT"
    if text:
        setting = f"CCL_WORKER_COUNT={text}"
    return f"with {setting} accelerate uses gloo: ccl needs {LEAST_CCL_WORKERS} or more"


def ccl_refusals(versions: Versions) -> tuple[str, ...]:
    """Why the installed transformers and accelerate reject ccl."""
    v, transformers, accelerate = versions, load().transformers, load().accelerate
    reasons = []
    if v.accelerate is not None and _asks_accelerate(v) and accelerate.does("no-ccl", v.accelerate):
        reasons.append(f"accelerate {v.accelerate} has no ccl backend")
    if v.transformers is None:
        return tuple(reasons)
    if "ccl" not in transformers.backends_of(v.transformers):
        reasons.append(f"transformers {v.transformers} does not take --ddp_backend ccl")
    elif not _asks_accelerate(v) and not transformers.does("trainer-imports-ccl", v.transformers):
        reasons.append(f"transformers {v.transformers} does not import the oneCCL bindings")
    return tuple(reasons)


def _asks_accelerate(v: Versions) -> bool:
    """Whether accelerate starts the process group, and not TrainingArguments."""
    started_by = load().transformers.does("accelerate-starts-ranks", v.transformers)
    return v.transformers is None or started_by is not None


def _why_no_bindings(v: Versions) -> str | None:
    name, last = "oneccl_bindings_for_pytorch", load().oneccl[-1]
    if "oneccl" in v.unreadable:
        return f"the version of {name} is not known"
    if v.oneccl is None:
        made_for = f"the last, {last.version}, is for torch {last.torch.lstrip('=')}"
        return f"{name} is not installed ({made_for})"
    if v.torch is None:
        return "the version of torch is not known"
    return oneccl_torch(v)


def oneccl_module(versions: Versions) -> str:
    """The import name of these oneCCL bindings; the latest one if their version is not known."""
    rows = load().oneccl
    modules = [rows[0].module]
    for row in rows:
        if versions.oneccl is None or row.version <= versions.oneccl:
            modules.append(row.module)
    return modules[-1]


def takes(versions: Versions, argument: str) -> bool:
    """Whether TrainingArguments of this transformers has an argument. Raises KeyError if the
    tables do not.
    """
    return load().transformers.argument(argument).covers(versions.transformers)


def has_argument(versions: Versions, name: str) -> bool:
    """Whether TrainingArguments of this transformers have any argument of this name."""
    presence = interface.argument("transformers", "TrainingArguments", name)
    version = versions.transformers or interface.newest("transformers")
    return presence is not None and version is not None and presence.at(version)


def cpu_flag(versions: Versions) -> str:
    """The flag that keeps a Trainer on the CPU."""
    if takes(versions, "use_cpu"):
        return "--use_cpu"
    return "--no_cuda"


def why_no_bf16(versions: Versions) -> str | None:
    """Why this Trainer cannot train in bf16 on a CPU. None if it can."""
    if load().transformers.does("bf16-on-cpu", versions.transformers):
        return None
    return f"transformers {versions.transformers} accepts --bf16 for GPUs only"


def why_no_masks(versions: Versions) -> str | None:
    """Why our dropout masks cannot replace those of this torch. None if they can."""
    if versions.torch is None:
        return "the version of torch is not known"
    if load().torch_does("kernels-in-python", versions.torch):
        return None
    return f"the kernels of torch {versions.torch} cannot be replaced from Python"


def backend_flags(versions: Versions, backend: str) -> tuple[str, ...]:
    """``--ddp_backend gloo`` as two words. Empty if this backend cannot be selected.

    From transformers 4.29 on accelerate starts the process group, and must support ccl.
    """
    transformers, accelerate = load().transformers, load().accelerate
    if backend not in transformers.backends_of(versions.transformers):
        return ()
    if not takes(versions, "ddp_backend"):
        return ("--xpu_backend", backend)
    if backend == "ccl" and accelerate.does("no-ccl", versions.accelerate):
        return ()
    return ("--ddp_backend", backend)


def optimizers(versions: Versions) -> tuple[str, ...]:
    """The values of ``--optim`` for AdamW that can step on a CPU."""
    return _named(load().transformers.optimizers, versions)


def default_optimizer(versions: Versions) -> str | None:
    """The default of ``--optim``. None if this transformers does not have the option."""
    return next(iter(_named(load().transformers.default_optimizers, versions)), None)


def _named(rows: tuple[Feature, ...], v: Versions) -> tuple[str, ...]:
    names: list[str] = []
    for row in rows:
        if row.covers(v.transformers) and row.beside(v.torch):
            names.append(row.name)
    return tuple(names)


class Fate(str, Enum):
    """Whether a flag, a key or a variable has an effect."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One flag, key or variable. ``reader`` is the package that reads it."""

    spelling: str
    state: Fate
    reader: str
    reason: str | None = None
    instead: str | None = None
    source: str = ""

    @property
    def advice(self) -> str:
        """What to do with it: ``write --use_cpu``, ``remove it: torch …``; empty if unknown."""
        if not self.instead:
            return ""
        if self.needless is None:
            return f"write {self.instead}"
        if self.needless:
            return f"remove it: {self.needless}"
        return "remove it"

    @property
    def needless(self) -> str | None:
        """Why nothing replaces it, empty if the tables have no reason; None if something does."""
        nothing, _, reason = (self.instead or "").partition(", ")
        if nothing == "nothing":
            return reason
        return None

    def describe(self) -> str:
        """For example ``--no_cuda (instead: --use_cpu)``."""
        notes = []
        if self.reason:
            notes.append(self.reason)
        if self.instead:
            notes.append(f"instead: {self.instead}")
        if not notes:
            return self.spelling
        return f"{self.spelling} ({'; '.join(notes)})"


def vocabulary(versions: Versions) -> tuple[Word, ...]:
    """All flags, keys and variables whose effect depends on versions, for this stack."""
    entries = list(_arguments(versions)) + list(_of_accelerate(versions))
    return tuple(sorted(entries, key=lambda word: tuple(Fate).index(word.state)))


def _word(spelling: str, row: Feature, library: Library, version: Version) -> Word:
    instead = row.instead(version)
    if instead and not instead.startswith("nothing"):
        instead = f"--{instead}"
    state = Fate.REFUSED
    if row.covers(version):
        state, instead = Fate.ACCEPTED, None
    return Word(
        spelling=spelling,
        state=state,
        reader=f"{library} {version}",
        instead=instead,
        source=row.source or load().library(library).source,
    )


def _arguments(v: Versions) -> Iterator[Word]:
    library, version = load().transformers, v.transformers
    if version is None:
        return
    for argument in library.arguments:
        word = _word(f"--{argument.name}", argument, "transformers", version)
        if argument.name == "use_ipex" and word.state is Fate.ACCEPTED:
            word = _use_ipex(v, word)
        yield word
    option = "--xpu_backend"
    if takes(v, "ddp_backend"):
        option = "--ddp_backend"
    for backend in library.backends:
        word = _word(f"{option} {backend.name}", backend, "transformers", version)
        if backend.name == "ccl":
            word = _ccl(v, word)
        yield word
    fp16_rows = (
        ("fp16-trains-in-fp32", Fate.IGNORED, "on a CPU it trains in fp32"),
        ("fp16-refused", Fate.REFUSED, "on a CPU it is a ValueError"),
    )
    for behaviour, state, reason in fp16_rows:
        fp16 = library.does(behaviour, version, v.torch)
        if fp16 is not None:
            word = _word("--fp16", fp16, "transformers", version)
            instead = "--bf16"
            if why_no_bf16(v):
                instead = "nothing"
            yield replace(word, state=state, reason=reason, instead=instead)


def _use_ipex(v: Versions, word: Word) -> Word:
    use = ipex_use(v)
    effects = {
        "absent": (Fate.REFUSED, "IPEX is not installed"),
        "unfit": (Fate.REFUSED, "IPEX does not fit torch"),
        "ignored": (Fate.IGNORED, "neither Trainer nor accelerate calls IPEX"),
        "unknown": (Fate.ACCEPTED, use.reason),
    }
    called = (Fate.ACCEPTED, f"{use.caller} calls ipex.optimize")
    state, reason = effects.get(use.state, called)
    return replace(word, state=state, reason=reason)


def _ccl(v: Versions, word: Word) -> Word:
    """The effect of ``--ddp_backend ccl``, which depends on transformers and accelerate."""
    word = replace(word, source="huggingface/accelerate#3883")
    lacks = v.accelerate is not None and load().accelerate.does("no-ccl", v.accelerate)
    if word.state is Fate.ACCEPTED and not lacks:
        reason = (
            f"with the bindings of this torch and CCL_WORKER_COUNT of {LEAST_CCL_WORKERS} or more"
        )
        return replace(word, reason=reason)
    reason = "it was removed"
    if lacks:
        reason = f"accelerate {v.accelerate} has no ccl"
    instead = word.spelling.replace("ccl", "gloo")
    return replace(word, state=Fate.REFUSED, reason=reason, instead=instead)


def _of_accelerate(v: Versions) -> Iterator[Word]:
    library, version = load().accelerate, v.accelerate
    if version is None:
        return
    for key in library.keys:
        # Keys that every release has had are left out.
        if key.first is not None and key.first >= (0, 19):
            yield _word(f"{key.name}:", key, "accelerate", version)
    read: dict[str, object] = {
        IPEX_VARIABLE: not library.does("no-ipex", version),
        "CCL_WORKER_COUNT": not library.does("no-ccl", version),
    }
    if "mpirun_config" in library.keys_of(version):
        read["mpirun_config.mpirun_ccl:"] = library.does("reads-mpirun-ccl", version)
    for spelling, is_read in read.items():
        state = Fate.IGNORED
        if is_read:
            state = Fate.ACCEPTED
        yield Word(
            spelling=spelling,
            state=state,
            reader=f"accelerate {version}",
            source="huggingface/accelerate#3883",
        )
