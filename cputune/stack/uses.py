"""What a stack uses, accepts, refuses and ignores: IPEX, oneCCL, flags, keys and variables.

A script trains with the Trainer of transformers, or with an Accelerator of its own; what
one of them uses the other may leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from packaging.version import Version

from cputune.stack.fit import ipex_torch, oneccl_torch
from cputune.stack.tables import Feature, Library, Versions, load

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
        last = load().ipex[-1].version
        made_for = f"the last, {last}, is for torch {last.major}.{last.minor}"
        reason = f"intel_extension_for_pytorch is not installed ({made_for})"
        return IpexUse(state="absent", reason=reason)
    if versions.torch is None:
        return _unknown("torch")
    said = ipex_torch(versions)
    if said:
        return IpexUse(state="unfit", reason=f"{said}: importing it fails")
    return _by_trainer(versions) if framework == "trainer" else _by_accelerate(versions)


def _by_trainer(v: Versions) -> IpexUse:
    """Trainer calls IPEX itself, or hands the model to an accelerate that does."""
    if v.transformers is None:
        return _unknown("transformers")
    transformers, trainer = load().transformers, f"transformers {v.transformers}"
    prepares = transformers.does("trainer-prepares-by-accelerate", v.transformers)
    use = _by_accelerate(v) if prepares else None
    if use and use.possible and not transformers.does("switches-ipex-off", v.transformers):
        return use
    if transformers.does("trainer-calls-ipex", v.transformers):
        reason = f"Trainer of {trainer} calls ipex.optimize with --use_ipex"
        return IpexUse(state="used when asked", caller="Trainer", reason=reason)
    if use is None:
        return IpexUse(state="ignored", reason=f"Trainer of {trainer} knows no IPEX")
    if use.possible:
        off = f"{trainer} switches that off where {IPEX_VARIABLE} is not set"
        reason = f"accelerate {v.accelerate} calls ipex.optimize, and {off}"
        return IpexUse(state="used when asked", caller="accelerate", reason=reason)
    return IpexUse(state=use.state, reason=f"{use.reason}, and {trainer} leaves IPEX to it")


def _by_accelerate(v: Versions) -> IpexUse:
    """``Accelerator.prepare`` calls IPEX unless it is told not to, or never."""
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
    """The variable that a run without IPEX needs; empty where nobody uses IPEX unasked."""
    if versions.ipex is None and "ipex" not in versions.unreadable:
        return {}
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
    """Why the installed transformers and accelerate refuse ccl; empty where they do not."""
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
    name, last = "oneccl_bindings_for_pytorch", load().oneccl[-1]
    if "oneccl" in v.unreadable:
        return f"the version of {name} is not known"
    if v.oneccl is None:
        made_for = f"the last, {last.version}, is for torch {last.torch.lstrip('=')}"
        return f"{name} is not installed ({made_for})"
    return oneccl_torch(v) if v.torch is not None else "the version of torch is not known"


def oneccl_module(versions: Versions) -> str:
    """The module that these oneCCL bindings bring; today's name where they are not known."""
    rows = load().oneccl
    at = [row.module for row in rows if versions.oneccl is None or row.version <= versions.oneccl]
    return at[-1] if at else rows[0].module


def takes(versions: Versions, argument: str) -> bool:
    """Whether TrainingArguments of this transformers has the argument (``use_ipex``).

    Raises KeyError for an argument that the tables do not hold.
    """
    return load().transformers.argument(argument).covers(versions.transformers)


def cpu_flag(versions: Versions) -> str:
    """The flag that keeps a Trainer on the CPU."""
    return "--use_cpu" if takes(versions, "use_cpu") else "--no_cuda"


def why_no_bf16(versions: Versions) -> str | None:
    """Why this Trainer cannot train in bf16 on a CPU; None where it can."""
    if load().transformers.does("bf16-on-cpu", versions.transformers):
        return None
    return f"transformers {versions.transformers} takes --bf16 for GPUs only"


def why_no_masks(versions: Versions) -> str | None:
    """Why masks of ours cannot take the place of this torch's; None where they can."""
    if versions.torch is None:
        return "the version of torch is not known"
    there = load().torch_does("kernels-in-python", versions.torch)
    return None if there else f"torch {versions.torch} lets no kernel take the place of its own"


def backend_flags(versions: Versions, backend: str) -> tuple[str, ...]:
    """``--ddp_backend gloo`` as two words; none where this backend cannot be named.

    From transformers 4.29 on accelerate starts the process group, and must know ccl.
    """
    transformers, accelerate = load().transformers, load().accelerate
    if backend not in transformers.backends_of(versions.transformers):
        return ()
    if not takes(versions, "ddp_backend"):
        return ("--xpu_backend", backend)
    refused = backend == "ccl" and accelerate.does("no-ccl", versions.accelerate)
    return () if refused else ("--ddp_backend", backend)


def optimizers(versions: Versions) -> tuple[str, ...]:
    """The spellings of AdamW that ``--optim`` takes and that can step on a CPU."""
    return _named(load().transformers.optimizers, versions)


def default_optimizer(versions: Versions) -> str | None:
    """What ``--optim`` is where nobody says it; None for a transformers that has no ``--optim``."""
    return next(iter(_named(load().transformers.default_optimizers, versions)), None)


def _named(rows: tuple[Feature, ...], v: Versions) -> tuple[str, ...]:
    return tuple(row.name for row in rows if row.covers(v.transformers) and row.beside(v.torch))


class Fate(str, Enum):
    """What becomes of a flag, a key or a variable."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One spelling and what becomes of it. ``reader`` is the package that reads it."""

    spelling: str
    state: Fate
    reader: str
    why: str | None = None
    instead: str | None = None
    source: str = ""

    def describe(self) -> str:
        """``--no_cuda (write --use_cpu)``."""
        notes = [self.why] if self.why else []
        if self.instead:
            notes.append(f"instead: {self.instead}")
        return self.spelling + (f" ({'; '.join(notes)})" if notes else "")


def vocabulary(versions: Versions) -> tuple[Word, ...]:
    """Every word whose fate differs between versions, as this stack takes it."""
    found = [*_arguments(versions), *_of_accelerate(versions)]
    return tuple(sorted(found, key=lambda word: tuple(Fate).index(word.state)))


def _word(spelling: str, row: Feature, library: Library, version: Version) -> Word:
    there, instead = row.covers(version), row.instead(version)
    if instead and not instead.startswith("nothing"):
        instead = f"--{instead}"
    return Word(
        spelling=spelling,
        state=Fate.ACCEPTED if there else Fate.REFUSED,
        reader=f"{library} {version}",
        instead=None if there else instead,
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
    option = "--ddp_backend" if takes(v, "ddp_backend") else "--xpu_backend"
    for backend in library.backends:
        word = _word(f"{option} {backend.name}", backend, "transformers", version)
        if backend.name == "ccl":
            word = _ccl(v, word)
        yield word
    for behaviour, state, why in (
        ("fp16-trains-in-fp32", Fate.IGNORED, "on a CPU it trains in fp32"),
        ("fp16-refused", Fate.REFUSED, "on a CPU it is a ValueError"),
    ):
        fp16 = library.does(behaviour, version, v.torch)
        if fp16 is not None:
            word = _word("--fp16", fp16, "transformers", version)
            instead = "nothing" if why_no_bf16(v) else "--bf16"
            yield replace(word, state=state, why=why, instead=instead)


def _use_ipex(v: Versions, word: Word) -> Word:
    use = ipex_use(v)
    state, why = {
        "absent": (Fate.REFUSED, "IPEX is not there"),
        "unfit": (Fate.REFUSED, "IPEX does not fit torch"),
        "ignored": (Fate.IGNORED, "neither Trainer nor accelerate calls IPEX"),
        "unknown": (Fate.ACCEPTED, use.reason),
    }.get(use.state, (Fate.ACCEPTED, f"{use.caller} calls ipex.optimize"))
    return replace(word, state=state, why=why)


def _ccl(v: Versions, word: Word) -> Word:
    """What becomes of ``--ddp_backend ccl``: transformers and accelerate both decide."""
    word = replace(word, source="huggingface/accelerate#3883")
    lacks = v.accelerate is not None and load().accelerate.does("no-ccl", v.accelerate)
    if word.state is Fate.ACCEPTED and not lacks:
        why = f"with the bindings of this torch and CCL_WORKER_COUNT of {LEAST_CCL_WORKERS} or more"
        return replace(word, why=why)
    why = f"accelerate {v.accelerate} has no ccl" if lacks else "the word is gone"
    instead = word.spelling.replace("ccl", "gloo")
    return replace(word, state=Fate.REFUSED, why=why, instead=instead)


def _of_accelerate(v: Versions) -> Iterator[Word]:
    """Keys of its YAML and variables."""
    library, version = load().accelerate, v.accelerate
    if version is None:
        return
    for key in library.keys:
        # What every release has known is no news.
        if key.first is not None and key.first >= (0, 19):
            yield _word(f"{key.name}:", key, "accelerate", version)
    read: dict[str, object] = {
        IPEX_VARIABLE: not library.does("no-ipex", version),
        "CCL_WORKER_COUNT": not library.does("no-ccl", version),
    }
    if "mpirun_config" in library.keys_of(version):
        read["mpirun_config.mpirun_ccl:"] = library.does("reads-mpirun-ccl", version)
    for spelling, known in read.items():
        yield Word(
            spelling=spelling,
            state=Fate.ACCEPTED if known else Fate.IGNORED,
            reader=f"accelerate {version}",
            source="huggingface/accelerate#3883",
        )
