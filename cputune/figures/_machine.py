"""A machine: its sockets, NUMA nodes, cores and CPUs, and which rank has which of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

from cputune.facts import Core, Topology
from cputune.figures.canvas import DIM, GROUND, INK, LINE, RANKS, WIDTH, ink_on, new_figure
from cputune.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_IN_A_ROW = 16
"""Cores of a NUMA node that stand side by side."""

MOST_NAMED = 64
"""With more CPUs than that their numbers would not be readable: only those of a row's ends stand
there."""

Owners = Mapping[int, int]
"""The rank of each logical CPU."""


def machine(topology: Topology, plan: Plan | None = None, *, width: float = WIDTH) -> Figure:
    """The CPUs of a machine, core by core; those of each rank of a ``plan`` in one colour.

    A column of boxes is a core, a box a logical CPU (a core with two has two SMT siblings), a frame
    a NUMA node. CPUs that may not be used are hatched. ``width`` is in inches. Raises
    MissingPackageError.
    """
    owners = {} if plan is None else _owners(plan)
    nodes = _nodes(topology)
    in_a_row = min(MOST_IN_A_ROW, max(len(cores) for _, cores in nodes))
    across = max(1, min(len(nodes), int(MOST_IN_A_ROW * 1.1 // in_a_row)))
    threads = topology.threads_per_core
    lines = [ceil(len(cores) / in_a_row) for _, cores in nodes]
    node_high = max(lines) * (threads + 0.25) + 1.1
    node_wide = in_a_row + 0.8
    rows = ceil(len(nodes) / across)
    scale = width / (across * node_wide + 0.4)
    scale = min(scale, 0.55)
    height = min(14.0, 1.1 + scale * rows * node_high)
    figure, axes = new_figure(width, height, _title(topology, plan))
    for place, (name, cores) in enumerate(nodes):
        x, y = (place % across) * node_wide, (place // across) * node_high
        _draw_node(axes, x, y, name, cores, in_a_row, topology, owners)
    axes.set_xlim(-0.2, max(across * node_wide, width / 0.55 - 0.4))
    axes.set_ylim(rows * node_high, -0.2)
    axes.set_aspect("equal", anchor="W")
    axes.axis("off")
    _draw_legend(figure, axes, topology, plan)
    return figure


def _draw_legend(figure: Figure, axes: Axes, topology: Topology, plan: Plan | None) -> None:
    from matplotlib.patches import Patch

    ranks = 0 if plan is None else min(len(plan.cpus), len(RANKS))
    boxes = [Patch(facecolor=RANKS[rank], label=f"rank {rank}") for rank in range(ranks)]
    if set(topology.allowed) != set(topology.online):
        not_allowed = Patch(
            facecolor=GROUND, edgecolor=DIM, hatch="////", label="may not be used here"
        )
        boxes.append(not_allowed)
    if boxes:
        columns = max(2, int(figure.get_figwidth() / 1.3))
        legend = figure.legend(
            handles=boxes, loc="outside lower left", ncols=columns, frameon=False, fontsize=8.5
        )
        for text in legend.get_texts():
            text.set_color(INK)


def _owners(plan: Plan) -> Owners:
    return {cpu: rank for rank, cpus in enumerate(plan.cpus) for cpu in cpus}


def _title(topology: Topology, plan: Plan | None) -> str:
    sockets, cores = topology.sockets, topology.physical_cores
    words = f"{sockets} socket{'s' * (sockets != 1)}, {cores} core{'s' * (cores != 1)}"
    if topology.threads_per_core > 1:
        words += f" with {topology.threads_per_core} threads each"
    return words if plan is None else f"{words}: {plan.short()}"


def _nodes(topology: Topology) -> list[tuple[str, list[Core]]]:
    """(name, cores) of each NUMA node of each socket, in the order of the sockets."""
    found: dict[tuple[int, int], list[Core]] = {}
    for core in topology.cores:
        found.setdefault((core.socket, core.numa_node or 0), []).append(core)
    several = len({node for _, node in found}) > 1
    named = []
    for (socket, node), cores in sorted(found.items()):
        name = f"socket {socket}, NUMA node {node}" if several else f"socket {socket}"
        named.append((name, cores))
    return named


def _draw_node(
    axes: Axes,
    x: float,
    y: float,
    name: str,
    cores: list[Core],
    in_a_row: int,
    topology: Topology,
    owners: Owners,
) -> None:
    from matplotlib.patches import Rectangle

    threads = topology.threads_per_core
    lines = ceil(len(cores) / in_a_row)
    high = lines * (threads + 0.25) + 0.75
    frame = Rectangle((x, y), in_a_row + 0.4, high, facecolor="none", edgecolor=LINE, linewidth=1)
    axes.add_patch(frame)
    axes.text(x + 0.2, y + 0.36, name, va="center", color=INK, fontsize=8.5)
    allowed = set(topology.allowed)
    every = len(topology.online) <= MOST_NAMED
    for place, core in enumerate(cores):
        left = x + 0.2 + place % in_a_row
        top = y + 0.65 + (place // in_a_row) * (threads + 0.25)
        named = every or place % in_a_row in (0, in_a_row - 1)
        for sibling, cpu in enumerate(core.cpus):
            label = str(cpu) if named else ""
            _draw_cpu(axes, left, top + sibling, label, cpu in allowed, owners.get(cpu))


def _draw_cpu(axes: Axes, x: float, y: float, label: str, allowed: bool, rank: int | None) -> None:
    from matplotlib.patches import Rectangle

    fill = GROUND if rank is None else RANKS[rank % len(RANKS)]
    hatch = None if allowed else "////"
    box = Rectangle(
        (x + 0.06, y + 0.06), 0.88, 0.88, facecolor=fill, edgecolor=LINE, hatch=hatch, linewidth=0.8
    )
    axes.add_patch(box)
    colour = DIM if rank is None else ink_on(fill)
    size = 7.5 if len(label) < 3 else 6
    axes.text(x + 0.5, y + 0.5, label, ha="center", va="center", color=colour, fontsize=size)
