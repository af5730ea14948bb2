"""A machine: its sockets, NUMA nodes, cores and CPUs, and the CPUs of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from cputune.host.facts import Core, Topology
from cputune.plans.plan import Plan
from cputune.records.result import WIDTH
from cputune.report.figures.canvas import DIM, GROUND, INK, LINE, RANKS, ink_on, new_figure
from cputune.text.plain import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The rank of each logical CPU.
Owners = Mapping[int, int]

# Size of a CPU's box in inches. In a smaller one its number cannot be read.
LEAST_CPU, LARGEST_CPU = 0.2, 0.36

# Cores of a NUMA node in a row before the next socket goes below.
WIDEST_NODE = 16

# Width of a frame in boxes, so that its name fits.
LEAST_WIDTH = 7

# In boxes: the height of a name, the space between rows of cores and between frames, the margin in
# a frame.
NAME, GAP, MARGIN = 0.9, 0.3, 0.25

# Size of a box in inches from which a number of three digits can be read. In smaller ones only the
# first and the last core of a row are numbered.
NAMED_FROM_INCHES = 0.24

# Heights of the title and of a line of the legend.
TITLE_INCHES, LEGEND_INCHES = 0.42, 0.24


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    cores: tuple[Core, ...]


def machine(topology: Topology, plan: Plan | None = None, *, width: float = WIDTH) -> Figure:
    """Draw the CPUs of a machine, core by core, with one colour for each rank of a ``plan``.

    A box is a logical CPU. Boxes that touch are one core (its SMT siblings). A frame is a NUMA node
    of a socket. CPUs that may not be used are hatched.
    """
    sockets = _sockets(topology)
    threads = topology.threads_per_core
    nodes = [node for nodes_of_socket in sockets for node in nodes_of_socket]
    most = max(len(node.cores) for node in nodes)
    boxes = int(width / LEAST_CPU)
    across = min(len(sockets), max(1, boxes // (max(min(most, WIDEST_NODE), LEAST_WIDTH) + 2)))
    in_a_row = _in_a_row(most, boxes // across - 2)
    wide = max(in_a_row + 2 * MARGIN, LEAST_WIDTH)
    size = min(LARGEST_CPU, width / (across * (wide + GAP) + GAP))
    node_high = max(_node_height(_rows(node, in_a_row), threads) for node in nodes) + GAP
    socket_high = max(map(len, sockets)) * node_high
    rows = ceil(len(sockets) / across) * socket_high
    legend = _legend(topology, plan)
    lines = ceil(len(legend) / _columns(width))
    below = LEGEND_INCHES * lines + 0.1
    figure, axes = new_figure(width, below + size * rows, _title(topology, plan))
    height = below + size * rows + TITLE_INCHES * (1 + 0.5 * figure.get_suptitle().count("\n"))
    figure.set_figheight(height)
    figure.set_layout_engine("none")
    axes.set_position((0, below / height, 1, size * rows / height))
    axes.set_xlim(-GAP, width / size - GAP)
    axes.set_ylim(rows, 0)
    axes.axis("off")
    drawer = _NodeDrawer(axes, topology, _owners(plan), in_a_row, size)
    for place, nodes in enumerate(sockets):
        x, y = (place % across) * (wide + GAP), (place // across) * socket_high
        for node in nodes:
            drawer.draw(node, x, y, wide)
            y += node_high
    _draw_legend(figure, legend)
    return figure


def _sockets(topology: Topology) -> list[list[_Node]]:
    cores_of: dict[tuple[int, int], list[Core]] = {}
    for core in topology.cores:
        cores_of.setdefault((core.socket, core.numa_node or 0), []).append(core)
    several = len({node for _, node in cores_of}) > 1
    sockets: dict[int, list[_Node]] = {}
    for (socket, node), cores in sorted(cores_of.items()):
        name = f"socket {socket}"
        if several:
            name += f", NUMA node {node}"
        sockets.setdefault(socket, []).append(_Node(name, tuple(cores)))
    return list(sockets.values())


def _in_a_row(cores: int, most: int) -> int:
    """The number of cores in a row. Rows have equal lengths if possible."""
    if cores <= most:
        return cores
    for number in range(most, most // 2, -1):
        if cores % number == 0:
            return number
    return ceil(cores / ceil(cores / most))


def _rows(node: _Node, in_a_row: int) -> int:
    return ceil(len(node.cores) / in_a_row)


def _node_height(rows: int, threads: int) -> float:
    return NAME + rows * threads + (rows - 1) * GAP + MARGIN


def _owners(plan: Plan | None) -> Owners:
    if plan is None:
        return {}
    by_cpu = {}
    for rank, cpus in enumerate(plan.cpus):
        for cpu in cpus:
            by_cpu[cpu] = rank
    return by_cpu


def _title(topology: Topology, plan: Plan | None) -> str:
    sockets, cores = topology.sockets, topology.physical_cores
    title = f"{count(sockets, 'socket')}, {count(cores, 'core')}"
    if topology.threads_per_core > 1:
        title += f", {len(topology.online)} CPUs"
    if plan is None:
        return title
    return f"{title}: {plan.short()}"


@dataclass(frozen=True, slots=True)
class _NodeDrawer:
    """Draws NUMA nodes. Lengths are in boxes, ``size`` is that of a box in inches."""

    axes: Axes
    topology: Topology
    owners: Owners
    in_a_row: int
    size: float

    def draw(self, node: _Node, x: float, y: float, wide: float) -> None:
        from matplotlib.patches import Rectangle

        threads = self.topology.threads_per_core
        high = _node_height(_rows(node, self.in_a_row), threads)
        frame = Rectangle((x, y), wide, high, facecolor="none", edgecolor=LINE, linewidth=1)
        self.axes.add_patch(frame)
        self.axes.text(x + 0.3, y + 0.45, node.name, va="center", color=INK, fontsize=8.5)
        for place, core in enumerate(node.cores):
            row, column = divmod(place, self.in_a_row)
            at_end = place == len(node.cores) - 1 or column in (0, self.in_a_row - 1)
            top = y + NAME + row * (threads + GAP)
            for sibling, cpu in enumerate(core.cpus):
                named = at_end or self.size >= NAMED_FROM_INCHES
                self._draw_cpu(x + MARGIN + column, top + sibling, cpu, named=named)

    def _draw_cpu(self, x: float, y: float, cpu: int, *, named: bool) -> None:
        from matplotlib.patches import Rectangle

        rank = self.owners.get(cpu)
        fill, colour, hatch = GROUND, DIM, None
        if rank is not None:
            fill = RANKS[rank % len(RANKS)]
            colour = ink_on(fill)
        if cpu not in self.topology.allowed:
            hatch = "/////"
        box = Rectangle(
            (x + 0.06, y), 0.88, 1, facecolor=fill, edgecolor=LINE, hatch=hatch, linewidth=0.8
        )
        self.axes.add_patch(box)
        if not named:
            return
        digits = len(str(cpu))
        points = min(8.0, 72 * self.size * 0.85 / (0.65 * digits))
        self.axes.text(
            x + 0.5, y + 0.5, str(cpu), ha="center", va="center", color=colour, fontsize=points
        )


# At most this many ranks of one colour are named.
MOST_RANKS_NAMED = 3


def _legend(topology: Topology, plan: Plan | None) -> list[tuple[str, str, str | None]]:
    """(text, colour, hatch) of each kind of box."""
    kinds: list[tuple[str, str, str | None]] = []
    ranks = 0
    if plan is not None:
        ranks = len(plan.cpus)
    for first, colour in enumerate(RANKS[:ranks]):
        alike = [str(rank) for rank in range(first, ranks, len(RANKS))]
        name = f"rank {', '.join(alike[:MOST_RANKS_NAMED])}"
        if len(alike) > MOST_RANKS_NAMED:
            name += ", …"
        kinds.append((name, colour, None))
    if plan is not None and set(topology.allowed) - set(_owners(plan)):
        kinds.append(("no rank", GROUND, None))
    if set(topology.allowed) != set(topology.online):
        kinds.append(("may not be used here", GROUND, "/////"))
    return kinds


def _columns(width: float) -> int:
    return max(2, int(width / 1.2))


def _draw_legend(figure: Figure, kinds: list[tuple[str, str, str | None]]) -> None:
    from matplotlib.patches import Patch

    if not kinds:
        return
    boxes = []
    for label, colour, hatch in kinds:
        boxes.append(
            Patch(facecolor=colour, edgecolor=DIM, hatch=hatch, label=label, linewidth=0.6)
        )
    columns = _columns(figure.get_figwidth())
    legend = figure.legend(
        handles=boxes,
        loc="lower left",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=1.2,
        columnspacing=1.2,
        borderaxespad=0.1,
    )
    for text in legend.get_texts():
        text.set_color(INK)
