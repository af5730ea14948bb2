"""Whether versions fit each other: one rule for each pair of packages, none of a machine.

The checks of ``versions.py`` say what a broken rule means to a person; ``version_changes.py``
looks for versions that break none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from packaging.version import Version

from cputune.stack.tables import (
    BUILT_FOR_TORCH,
    COMPILED,
    DISTRIBUTIONS,
    LIBRARIES,
    REMEMBERED,
    Compiled,
    Library,
    Versions,
    load,
    minor,
    satisfies,
)

Rule = Callable[[Versions], "str | None"]
"""What is wrong, in words with both versions; None if it fits, or if nothing is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A rule that is broken. ``names`` are the packages that can be changed to keep it, by our
    short names.
    """

    names: tuple[str, ...]
    said: str


def declared(v: Versions, name: Library, other: str, *, key: str = "") -> str | None:
    """What a release declares that it needs of another package, if that is not met.

    ``key`` is the column of the table, if it is not called as the other package is.
    """
    version, found = v.get(name), v.get(other)
    if version is None or found is None:
        return None
    return _declared(name, version, other, found, key or other)


@lru_cache(maxsize=REMEMBERED)
def _declared(
    name: Library, version: Version, other: str, found: Version, column: str
) -> str | None:
    needs = load().library(name).needs_of(version)
    specifier = getattr(needs, column, "")
    if satisfies(found, specifier):
        return None
    return f"{name} {version} needs {other} {specifier}, found {found}"


def transformers_torch(v: Versions) -> str | None:
    """Below this transformers behaves as if there were no torch, or breaks."""
    return declared(v, "transformers", "torch", key="torch_at_run_time")


def ipex_torch(v: Versions) -> str | None:
    """IPEX checks major.minor of torch when it is imported, and is linked against it."""
    if v.ipex is None or v.torch is None or minor(v.ipex) == minor(v.torch):
        return None
    return f"intel_extension_for_pytorch {v.ipex} was built for torch {_x(v.ipex)}, not {v.torch}"


def oneccl_torch(v: Versions) -> str | None:
    """The bindings are linked against one torch release; newer than the tables, one minor."""
    return built_for_torch(v, "oneccl")


def built_for_torch(v: Versions, name: Compiled) -> str | None:
    """A package that is linked against one torch release, beside another one.

    Bindings that are newer than the tables fit the torch of their own minor; of an unknown
    torchvision or torchaudio nothing is said.
    """
    version = v.get(name)
    if version is None or v.torch is None:
        return None
    row = load().row(name, version)
    if row is not None:
        built_for = row.torch
    elif name == "oneccl":
        built_for = f"=={_x(version)}.*"
    else:
        return None
    if satisfies(v.torch, built_for):
        return None
    package = f"{DISTRIBUTIONS[name]} {version}"
    return f"{package} was built for torch {built_for.lstrip('=')}, not {v.torch}"


def trainer_arguments(v: Versions) -> str | None:
    """A type that transformers 4.56 takes from accelerate must be there for scripts to parse."""
    return _beside_accelerate(v, "trainer-arguments")


def trainer_calls(v: Versions) -> str | None:
    """Trainer calls accelerate in ways that some releases of it do not know, or no longer."""
    return _beside_accelerate(v, "trainer-calls")


def _beside_accelerate(v: Versions, behaviour: str) -> str | None:
    """What happens beside the releases of accelerate that a row of transformers names."""
    if v.transformers is None or v.accelerate is None:
        return None
    row = load().transformers.does(behaviour, v.transformers)
    if row is None or not satisfies(v.accelerate, row.accelerate):
        return None
    return f"transformers {v.transformers} beside accelerate {v.accelerate}: {row.claim}"


def numpy_torch(v: Versions) -> str | None:
    """Before 2.3, torch was compiled against numpy 1 and cannot talk to numpy 2."""
    row = load().row("torch", v.torch)
    if v.numpy is None or row is None or satisfies(v.numpy, row.numpy):
        return None
    return f"torch {v.torch} needs numpy {row.numpy}, found {v.numpy}"


def numpy_libraries(v: Versions) -> str | None:
    """Some releases of transformers and accelerate declare that they want numpy below 2."""
    return declared(v, "transformers", "numpy") or declared(v, "accelerate", "numpy")


def python_wheels(v: Versions) -> str | None:
    """Compiled packages have wheels for some Pythons, libraries in Python declare a minimum."""
    return next((said for name in DISTRIBUTIONS if (said := python_wheel(v, name))), None)


def python_wheel(v: Versions, name: str) -> str | None:
    """Why this package of the stack cannot be installed into this Python; None if it can."""
    if v.python is None:
        return None
    if name in LIBRARIES:
        return declared(v, name, "python")
    if name not in COMPILED:
        return None
    row = load().row(name, v.get(name))
    tag = f"cp{v.python.major}{v.python.minor}"
    if row is None or row.tags is None or tag in row.tags:
        return None
    package = f"{DISTRIBUTIONS[name]} {v.get(name)}"
    return f"{package} has no wheel for Python {_x(v.python)}, only {', '.join(row.tags)}"


def _transformers_torch(v: Versions) -> str | None:
    return transformers_torch(v) or declared(v, "transformers", "torch")


def _rules() -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Each rule, and the packages of which it can be broken.

    What follows another package comes last: a search decides about the other one first.
    """
    for name in DISTRIBUTIONS:
        yield (name,), partial(python_wheel, name=name)
    yield ("transformers", "torch"), _transformers_torch
    for rule in (trainer_arguments, trainer_calls):
        yield ("transformers", "accelerate"), rule
    pinned = ("numpy", "tokenizers", "huggingface_hub")
    for library in LIBRARIES:
        for other in sorted(DISTRIBUTIONS, key=pinned.__contains__):
            needed = any(getattr(row, other, "") for row in load().library(library).needs)
            # transformers says at run time which torch it takes
            if needed and (library, other) != ("transformers", "torch"):
                yield (library, other), partial(declared, name=library, other=other)
    yield ("numpy", "torch"), numpy_torch
    yield ("ipex", "torch"), ipex_torch
    for built in BUILT_FOR_TORCH:
        yield (built, "torch"), partial(built_for_torch, name=built)


@cache
def rules() -> tuple[tuple[tuple[str, ...], Rule], ...]:
    """All rules, each with the packages of which it can be broken."""
    return tuple(_rules())


def declared_by(name: str, version: Version | None) -> Iterator[tuple[str, str]]:
    """What the tables say that this release requires: packages by short name, and specifiers."""
    if version is None:
        return
    if name in LIBRARIES:
        needs = load().library(name).needs_of(version)
        for other in DISTRIBUTIONS:
            specifier = getattr(needs, other, "")
            if specifier:
                yield other, specifier
    elif name in BUILT_FOR_TORCH:
        row = load().row(name, version)
        if row is not None and row.torch:
            yield "torch", row.torch


@cache
def pythons() -> tuple[str, ...]:
    """Releases of Python that some torch of the tables was built for, the oldest first."""
    tags = {tag.rstrip("t") for torch in load().torch for tag in torch.tags or ()}
    return tuple(sorted((f"{tag[2]}.{tag[3:]}" for tag in tags), key=Version))


def pythons_for(versions: Versions) -> tuple[str, ...]:
    """The Pythons that all of these packages have wheels for, the oldest first."""
    return tuple(
        text for text in pythons() if not python_wheels(versions.changed(python=Version(text)))
    )


def broken(versions: Versions) -> tuple[Misfit, ...]:
    """Every rule that these versions break."""
    found = []
    for names, said in _said(versions):
        found.append(Misfit(names=names, said=said))
    return tuple(found)


def misfits(versions: Versions) -> tuple[str, ...]:
    """Every rule that these versions break, in words."""
    return tuple(said for _, said in _said(versions))


def first_misfit(versions: Versions) -> Misfit | None:
    """One rule that these versions break; None if all fit."""
    return next((Misfit(names=names, said=said) for names, said in _said(versions)), None)


def _said(versions: Versions) -> Iterator[tuple[tuple[str, ...], str]]:
    """A rule whose packages are not all there cannot be broken, so most are never asked."""
    there = {name for name in DISTRIBUTIONS if versions.get(name) is not None}
    for names, rule in rules():
        if there.issuperset(names):
            said = rule(versions)
            if said is not None:
                yield names, said


def _x(version: Version) -> str:
    return f"{version.major}.{version.minor}"
