"""Whether versions fit each other: one rule for each pair of packages, none of a machine.

The checks of ``versions.py`` say what a broken rule means to a person; ``ways.py`` looks
for versions that break none.

Which transformers was seen training beside which accelerate stands in ``pairs.json``, by their
minors: ``benchmarks/pairs.py`` makes it by training every pair it can install. What it did not try
is *not tried*, which is never the same as fitting.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from packaging.version import Version

from cputune.stack.tables import Minor, Stack, Versions, load, minor, satisfies, tag_of

Rule = Callable[[Stack, Versions], "str | None"]
"""What is wrong, in words with both versions; None where it fits, or cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A pair that was trained with, beside ``torch``. ``error`` is how it ended, None where it ran.

    ``blames_pair``: each of the two ran beside others there, so that no other torch mends it.
    """

    transformers: Version
    accelerate: Version
    torch: Version
    date: str
    error: str | None
    blames_pair: bool

    def describe(self) -> str:
        """The trial in words, without its outcome."""
        return (
            f"transformers {self.transformers} beside accelerate {self.accelerate} and torch "
            f"{self.torch}, tried {self.date}"
        )


@cache
def pairs() -> dict[tuple[Minor, Minor], Tried]:
    """All that were tried, by the minor releases of transformers and accelerate."""
    text = resources.files("cputune.stack").joinpath("pairs.json").read_text(encoding="utf-8")
    document = json.loads(text)
    rows = [(t, a, n) for t, row in document["pairs"].items() for a, n in row.items()]
    ran = {version for *pair, failure in rows if failure < 0 for version in pair}
    failures = [next(iter(failure.values())) for failure in document["failures"]]
    found = {}
    for transformers, accelerate, failure in rows:
        tried = Tried(
            transformers=Version(transformers),
            accelerate=Version(accelerate),
            torch=Version(document["torch"]),
            date=document["date"],
            error=None if failure < 0 else failures[failure],
            blames_pair=transformers in ran and accelerate in ran,
        )
        found[minor(tried.transformers), minor(tried.accelerate)] = tried
    return found


def tried(versions: Versions) -> Tried | None:
    """The trial that tells of these versions; None where nobody tried.

    A failure tells of its own torch alone, unless the two are to blame.
    """
    if versions.transformers is None or versions.accelerate is None:
        return None
    found = pairs().get((minor(versions.transformers), minor(versions.accelerate)))
    if found is None or found.error is None or found.blames_pair:
        return found
    same = versions.torch is not None and minor(versions.torch) == minor(found.torch)
    return found if same else None


def was_seen_training(versions: Versions) -> bool:
    """Whether transformers and accelerate of these versions ran together, here or in an era."""
    found = tried(versions)
    if found is not None:
        return found.error is None
    pair = (versions.transformers, versions.accelerate)
    return any(
        pair == (era.versions["transformers"], era.versions["accelerate"]) for era in load().eras
    )


def ipex_torch(stack: Stack, v: Versions) -> str | None:
    """IPEX checks major.minor of torch when it is imported, and is linked against it."""
    if v.ipex is None or v.torch is None or minor(v.ipex) == minor(v.torch):
        return None
    return f"intel_extension_for_pytorch {v.ipex} was built for torch {_x(v.ipex)}, not {v.torch}"


def oneccl_torch(stack: Stack, v: Versions) -> str | None:
    """The bindings are linked against one torch release."""
    if v.oneccl is None or v.torch is None:
        return None
    row = stack.bindings_row(v.oneccl)
    if row is not None and satisfies(v.torch, row.torch):
        return None
    if row is None and minor(v.oneccl) == minor(v.torch):
        return None
    built_for = row.torch.lstrip("=") if row is not None else _x(v.oneccl)
    return f"oneccl_bind_pt {v.oneccl} was built for torch {built_for}, not {v.torch}"


def transformers_torch(stack: Stack, v: Versions) -> str | None:
    """Below its minimum of torch, transformers switches torch off (from 4.52 on) or breaks."""
    if v.transformers is None or v.torch is None:
        return None
    needs = stack.transformers.needs_of(v.transformers)
    if needs is None:
        return None
    for specifier in (needs.torch_at_run_time, needs.torch):
        if not satisfies(v.torch, specifier):
            return f"transformers {v.transformers} needs torch {specifier}, found {v.torch}"
    return None


def transformers_accelerate(stack: Stack, v: Versions) -> str | None:
    """Trainer refuses an accelerate below its minimum."""
    if v.transformers is None or v.accelerate is None:
        return None
    needs = stack.transformers.needs_of(v.transformers)
    if needs is None or satisfies(v.accelerate, needs.accelerate):
        return None
    return (
        f"transformers {v.transformers} needs accelerate {needs.accelerate}, found {v.accelerate}"
    )


def trainer_arguments(stack: Stack, v: Versions) -> str | None:
    """A type that transformers 4.56 takes from accelerate must be there for scripts to parse."""
    if v.transformers is None or v.accelerate is None:
        return None
    row = stack.transformers.does("trainer-arguments", v.transformers)
    if row is None or not satisfies(v.accelerate, row.accelerate):
        return None
    return f"transformers {v.transformers} beside accelerate {v.accelerate}: {row.claim}"


def trained(stack: Stack, v: Versions) -> str | None:
    """What was tried, and did not train; a declared minimum or a known error says it better."""
    found = tried(v)
    if found is None or found.error is None:
        return None
    if transformers_accelerate(stack, v) or trainer_arguments(stack, v):
        return None
    return (
        f"transformers {v.transformers} does not train beside accelerate {v.accelerate}: "
        f"{found.error} ({found.describe()})"
    )


def accelerate_torch(stack: Stack, v: Versions) -> str | None:
    """What accelerate declares as its minimum of torch, it also uses."""
    if v.accelerate is None or v.torch is None:
        return None
    needs = stack.accelerate.needs_of(v.accelerate)
    if needs is None or satisfies(v.torch, needs.torch):
        return None
    return f"accelerate {v.accelerate} needs torch {needs.torch}, found {v.torch}"


def numpy_torch(stack: Stack, v: Versions) -> str | None:
    """Before 2.3, torch was compiled against numpy 1 and cannot talk to numpy 2."""
    row = stack.torch_row(v.torch) if v.torch is not None else None
    if v.numpy is None or row is None or satisfies(v.numpy, row.numpy):
        return None
    return f"torch {v.torch} needs numpy {row.numpy}, found {v.numpy}"


def numpy_libraries(stack: Stack, v: Versions) -> str | None:
    """Some releases of transformers and accelerate declare that they want numpy below 2."""
    for name, library in (("transformers", stack.transformers), ("accelerate", stack.accelerate)):
        version = v.get(name)
        needs = library.needs_of(version) if version is not None else None
        if v.numpy is not None and needs is not None and not satisfies(v.numpy, needs.numpy):
            return f"{name} {version} needs numpy {needs.numpy}, found {v.numpy}"
    return None


def python_wheels(stack: Stack, v: Versions) -> str | None:
    """Compiled packages have wheels for some Pythons only."""
    if v.python is None:
        return None
    tag = tag_of(v.python)
    torch = stack.torch_row(v.torch) if v.torch is not None else None
    ipex = next((row for row in stack.ipex if row.version == v.ipex), None)
    bindings = stack.bindings_row(v.oneccl) if v.oneccl is not None else None
    compiled = (
        ("torch", v.torch, torch.tags if torch else None),
        ("intel_extension_for_pytorch", v.ipex, ipex.tags if ipex else None),
        ("oneccl_bind_pt", v.oneccl, bindings.tags if bindings else None),
    )
    for name, version, tags in compiled:
        if tags is not None and tag not in tags:
            return (
                f"{name} {version} has no wheel for Python {_x(v.python)}, only {', '.join(tags)}"
            )
    return None


def python_libraries(stack: Stack, v: Versions) -> str | None:
    """The minimum of Python that transformers and accelerate declare."""
    for name, library in (("transformers", stack.transformers), ("accelerate", stack.accelerate)):
        version = v.get(name)
        needs = library.needs_of(version) if version is not None else None
        if v.python is not None and needs is not None and not satisfies(v.python, needs.python):
            return f"{name} {version} needs Python {needs.python}, found {v.python}"
    return None


RULES: tuple[Rule, ...] = (
    python_wheels,
    python_libraries,
    ipex_torch,
    oneccl_torch,
    numpy_torch,
    numpy_libraries,
    transformers_torch,
    accelerate_torch,
    transformers_accelerate,
    trainer_arguments,
    trained,
)


PYTHONS = tuple(f"3.{small}" for small in range(7, 16))
"""Releases of Python that some row of the tables was built for."""


def pythons_for(versions: Versions) -> tuple[str, ...]:
    """The Pythons that all of these packages have wheels for, the oldest first."""
    stacks = {text: versions.changed(python=Version(text)) for text in PYTHONS}
    rules = (python_wheels, python_libraries)
    return tuple(text for text, v in stacks.items() if not any(rule(load(), v) for rule in rules))


def misfits(versions: Versions, stack: Stack | None = None) -> tuple[str, ...]:
    """Every rule that these versions break, in words."""
    tables = stack or load()
    return tuple(said for rule in RULES if (said := rule(tables, versions)) is not None)


def _x(version: Version) -> str:
    return f"{version.major}.{version.minor}"
