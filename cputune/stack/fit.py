"""Whether versions fit each other: one rule for each pair of packages, none of a machine.

The checks of ``versions.py`` say what a broken rule means to a person; ``ways.py`` looks
for versions that break none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from packaging.version import Version

from cputune.stack.tables import (
    COMPILED,
    DISTRIBUTIONS,
    Library,
    Versions,
    load,
    minor,
    satisfies,
)

Rule = Callable[[Versions], "str | None"]
"""What is wrong, in words with both versions; None where it fits, or cannot be told."""


def declared(v: Versions, name: Library, other: str, *, key: str = "") -> str | None:
    """What a release declares that it needs of another package, where that is not met.

    ``key`` is the column of the table, where it is not called as the other package is.
    """
    version, found = v.get(name), v.get(other)
    needs = load().library(name).needs_of(version) if version is not None else None
    specifier = getattr(needs, key or other, "")
    if found is None or satisfies(found, specifier):
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
    if v.oneccl is None or v.torch is None:
        return None
    row = load().row("oneccl", v.oneccl)
    built_for = row.torch if row is not None else f"=={_x(v.oneccl)}.*"
    if satisfies(v.torch, built_for):
        return None
    return f"oneccl_bind_pt {v.oneccl} was built for torch {built_for.lstrip('=')}, not {v.torch}"


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
    """Compiled packages have wheels for some Pythons, transformers and accelerate a minimum."""
    if v.python is None:
        return None
    tag = f"cp{v.python.major}{v.python.minor}"
    for name in COMPILED:
        row = load().row(name, v.get(name))
        if row is not None and row.tags is not None and tag not in row.tags:
            package = f"{DISTRIBUTIONS[name]} {v.get(name)}"
            return f"{package} has no wheel for Python {_x(v.python)}, only {', '.join(row.tags)}"
    return declared(v, "transformers", "python") or declared(v, "accelerate", "python")


RULES: tuple[Rule, ...] = (
    python_wheels,
    ipex_torch,
    oneccl_torch,
    numpy_torch,
    numpy_libraries,
    lambda v: transformers_torch(v) or declared(v, "transformers", "torch"),
    lambda v: declared(v, "accelerate", "torch"),
    lambda v: declared(v, "transformers", "accelerate"),
    trainer_arguments,
    trainer_calls,
)


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


def misfits(versions: Versions) -> tuple[str, ...]:
    """Every rule that these versions break, in words."""
    return tuple(said for rule in RULES if (said := rule(versions)) is not None)


def _x(version: Version) -> str:
    return f"{version.major}.{version.minor}"
