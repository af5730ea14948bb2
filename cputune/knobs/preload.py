"""What the knobs share whose values are libraries in LD_PRELOAD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputune.knobs.record import Choices, LeftOut, State

if TYPE_CHECKING:
    from cputune.facts import HostFacts
    from cputune.plan import Plan


def found_here(facts: HostFacts, knob: str, names: tuple[str, ...]) -> Choices:
    """Of ``names`` ("default" first) those whose library was found on this machine."""
    missing = [name for name in names[1:] if facts.library(name) is None]
    return Choices(
        values=tuple(name for name in names if name not in missing),
        left_out=tuple(
            LeftOut(what=f"{knob}={name}", why=f"no lib{name.removeprefix('lib')} was found")
            for name in missing
        ),
    )


def seen_preloaded(state: State, name: str) -> tuple[str, ...]:
    """The paths in the LD_PRELOAD of a rank that hold this library."""
    library = f"lib{name.removeprefix('lib')}"
    paths = state.get("preload", ())
    return tuple(path for path in paths if path.startswith("/") and library in path)


def preloads(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """The paths that this plan preloads: its OpenMP runtime, then its allocator."""
    libraries = (facts.library(name) for name in (plan.openmp, plan.allocator))
    return tuple(library.path for library in libraries if library is not None)
