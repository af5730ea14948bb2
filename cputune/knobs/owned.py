"""What a script decides itself, where nothing of ours reaches into its training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cputune.knobs.record import Choices, KnobValue, LeftOut

if TYPE_CHECKING:
    from cputune.plan import Plan
    from cputune.workload import Workload

_LOOP = "the script trains by a loop of its own"
_LIGHTNING = "the script trains with Lightning"

OWNED: Mapping[str, Mapping[str, str]] = {
    "pytorch": {
        "ranks": f"{_LOOP}, which alone can divide its batches over ranks",
        "precision": f"{_LOOP}: its precision is its own",
        "backend": f"{_LOOP}, and starts its process group itself",
        "ipex": f"{_LOOP}: only the script itself can call ipex.optimize",
        "optimizer": f"{_LOOP}, and makes its own optimizer",
    },
    "lightning": {
        "backend": f"{_LIGHTNING}, whose ranks on CPUs speak gloo",
        "ipex": f"{_LIGHTNING}: only the script itself can call ipex.optimize",
    },
}
"""By what a script trains with: the knobs that stay as they are today, and why."""


def owned(workload: Workload, today: Plan) -> dict[str, KnobValue]:
    """The knobs that the script decides, at their values of today's launch."""
    values: dict[str, KnobValue] = {
        "ranks": today.processes_per_node,
        "precision": today.precision,
        "backend": today.backend,
        "ipex": today.ipex,
        "optimizer": today.setting("optimizer"),
    }
    return {name: values[name] for name in OWNED.get(workload.framework or "", {})}


def why_owned(workload: Workload, name: str) -> LeftOut:
    """Why a knob is not varied, in words for the list of what was left out."""
    return LeftOut(what=name, why=OWNED[workload.framework or ""][name])


def only(workload: Workload, name: str, value: KnobValue) -> Choices:
    """The one value that a knob of the script's own has."""
    return Choices(values=(value,), left_out=(why_owned(workload, name),))
