"""Which parts a plan needs, and those that set it in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from cputune.inside.applying.force import Force
from cputune.inside.applying.shared import Setting


class Part(NamedTuple):
    """A class of a module, and whether it is made with ``say`` or with a ``Setting``.

    Its objects have a ``name``, ``hooks()``, and ``report()``: what a rank shows of it.
    """

    module: str
    name: str
    takes: str


# What is set for every framework, by its key in ``Force.torch``.
LEVERS = {
    "dropout": Part("dropout", "Masks", "say"),
    "padding": Part("padding", "Cutter", "say"),
    "order": Part("order", "Order", "say"),
    "gradients": Part("gradient_traffic", "Gradients", "setting"),
    "gradient_precision": Part("gradient_traffic", "Gradients", "setting"),
}


def needed(force: Force) -> tuple[Part, ...]:
    """The parts that set this."""
    parts = list(dict.fromkeys(part for name, part in LEVERS.items() if name in force.torch))
    if force.world_size:
        parts += (part for part in _of_objects(force) if part.module not in force.without)
    return tuple(parts)


def _of_objects(force: Force) -> Iterator[Part]:
    if force.world_size:
        if not force.loop_alone:
            yield Part("trainer", "TrainerPart", "setting")
        if force.rescales or (force.find_unused and force.world_size > 1):
            yield Part("ranks", "RanksPart", "setting")
        if force.other_ranks and force.world_size > 1:
            yield Part("dispatch", "Dispatch", "setting")
            yield Part("apart", "DrawsPart", "setting")
        if not force.by_flags:
            yield Part("loop", "LoopPart", "setting")


def made(
    force: Force,
    refuse: Callable[[str], NoReturn],
    say: Callable[[str], None] = lambda text: None,
) -> list[Any]:
    """These parts. ``refuse`` gets the reason why a script cannot run as planned, and ends it."""
    setting = Setting(force, refuse, say)
    made_parts = []
    for part in needed(force):
        module = importlib.import_module(f"cputune.inside.applying.{part.module}")
        part_of_plan = getattr(module, part.name)(setting if part.takes == "setting" else say)
        if part == LEVERS["padding"]:
            part_of_plan.cuts = force.torch["padding"] == "cut"
        made_parts.append(part_of_plan)
    return made_parts


def did() -> dict[str, list[str]] | None:
    """What the parts have changed so far in this process, by part; None if none can say."""
    for part in the_parts().values():
        setting = getattr(part, "_setting", None)
        if isinstance(setting, Setting):
            return setting.did
    return None


def the_parts() -> Mapping[str, Any]:
    """The parts that set a plan in this process, by name, imported here or in ``apply_plan.py``."""
    parts: Mapping[str, Any] = getattr(sys.modules.get("cputune_applied"), "parts", {})
    return parts
