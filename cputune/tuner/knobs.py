"""What may be varied on this machine with these packages, and why the rest is left out.

One function per knob that depends on more than the layout of the cores. Each returns
the values that live here and the reasons for those that do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from cputune.facts import HostFacts
from cputune.layout import NATIVE_BF16, native_precisions

KnobValue = int | str | bool

NAMES = (
    "ranks",
    "threads",
    "smt",
    "backend",
    "ccl_workers",
    "precision",
    "ipex",
    "allocator",
    "openmp",
)
"""Every knob, in the order that they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One thing that is varied, and the values that any plan of the space takes for it."""

    name: str
    values: tuple[KnobValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A knob or a value that is not in the space, and why."""

    what: str
    why: str

    def to_json(self) -> dict[str, str]:
        """A mapping of plain JSON values."""
        return {"what": self.what, "why": self.why}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values of one knob that live here, the one of today first, and what was left out."""

    values: tuple[KnobValue, ...]
    left_out: tuple[LeftOut, ...] = ()


def precisions(facts: HostFacts, *, allow_slow: bool) -> Choices:
    """fp32, and bf16 where the CPU multiplies it in hardware (or where that is waived)."""
    left_out = [
        LeftOut(
            what="precision=fp16",
            why="accelerate skips fp16 autocast on CPU: such a run trains in fp32 without a word",
        )
    ]
    if "bf16" in native_precisions(facts) or allow_slow:
        return Choices(values=("fp32", "bf16"), left_out=tuple(left_out))
    left_out.append(
        LeftOut(
            what="precision=bf16",
            why=f"this CPU has none of {', '.join(NATIVE_BF16)}: bf16 is then 3 to 4 times slower "
            "than fp32 (--allow-slow-precision tries it all the same)",
        )
    )
    return Choices(values=("fp32",), left_out=tuple(left_out))


def allocators(facts: HostFacts) -> Choices:
    """The malloc of libc, and those that were found by their real path."""
    return _preloaded(facts, "allocator", ("tcmalloc", "jemalloc"))


def openmp_runtimes(facts: HostFacts) -> Choices:
    """The OpenMP runtime that torch brings, and Intel's where it was found."""
    return _preloaded(facts, "openmp", ("libiomp5",))


def _preloaded(facts: HostFacts, knob: str, names: tuple[str, ...]) -> Choices:
    found: list[KnobValue] = ["default"]
    left_out = []
    for name in names:
        if facts.library(name) is not None:
            found.append(name)
        else:
            left_out.append(
                LeftOut(what=f"{knob}={name}", why=f"no lib{name.removeprefix('lib')} was found")
            )
    return Choices(values=tuple(found), left_out=tuple(left_out))


def ipex(facts: HostFacts) -> Choices:
    """IPEX on or off, where the installed trainer would really use it.

    Last IPEX for CPU: 2.8.0. The Trainer optimizes by itself in transformers 4.20 to
    4.52; up to 4.56 it leaves that to accelerate, which does so in 0.19 to 1.7 always
    and in 1.8 to 1.12 only with torch below 2.7 (``Accelerator._prepare_ipex``).
    """
    why = _why_no_ipex(facts)
    if why is None:
        return Choices(values=(False, True))
    return Choices(values=(False,), left_out=(LeftOut(what="ipex", why=why),))


def _why_no_ipex(facts: HostFacts) -> str | None:
    torch = version_of(facts, "torch")
    own = version_of(facts, "intel_extension_for_pytorch")
    transformers = version_of(facts, "transformers")
    accelerate = version_of(facts, "accelerate")
    if own is None:
        return "intel_extension_for_pytorch is not installed (the last, 2.8.0, is for torch 2.8)"
    if torch is None:
        return "the version of torch is not known"
    if own.release[:2] != torch.release[:2]:
        return f"intel_extension_for_pytorch {own} does not fit torch {torch}: importing it fails"
    if transformers is None:
        return "the version of transformers is not known"
    if not _between(transformers, "4.20", "4.56"):
        return f"transformers {transformers} does not use IPEX (4.20 to 4.56 did)"
    if _between(transformers, "4.20", "4.52"):
        return None
    if accelerate is not None and (
        _between(accelerate, "0.19", "1.7")
        or (_between(accelerate, "1.8", "1.12") and torch < Version("2.7"))
    ):
        return None
    return (
        f"accelerate {accelerate or 'of unknown version'} with torch {torch} ignores IPEX, "
        f"and transformers {transformers} leaves it to accelerate"
    )


def ccl(facts: HostFacts) -> Choices:
    """Whether the backend may be ccl: values are "gloo", and "ccl" where it lives.

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
    if transformers is None or not _between(transformers, "4.29", "5.0"):
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


def _between(version: Version, first: str, last: str) -> bool:
    """Whether ``first <= version``, and its major.minor is not above ``last``."""
    return Version(first) <= version and version.release[:2] <= Version(last).release[:2]
