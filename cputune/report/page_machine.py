"""The machine on the page: sockets, NUMA nodes, cores, and who of the best plan has which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from cputune import cpulist
from cputune.plan import Plan
from cputune.portrait import Place
from cputune.report.page_markup import Markup, table, tag
from cputune.report.page_parts import pairs, section
from cputune.report.summary import Summary, allowed_cpus, places
from cputune.result import Result

MOST_CORES = 1024
"""Above that nobody counts cells any more; the table names the CPUs."""

MOST_PARTIES = 64
COLORS = 8
"""Of ranks, before they come again; page.css has them."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A core as it is drawn: its sign, its classes, what it is in words."""

    sign: str
    look: str
    words: str


def machine_section(result: Result, said: Summary) -> Markup:
    """The drawing, what its signs mean, and everybody's CPUs as a table."""
    plan = result.best.plan
    parts = [pairs(said.machine)]
    cores = sum(len(place.cores) for place in result.places)
    if not cores:
        parts.append(tag("p", "The result does not say which cores the machine has."))
    elif cores > MOST_CORES:
        parts.append(tag("p", f"{cores} cores are too many to draw."))
    else:
        parts += [_drawing(result), _legend(plan)]
    if plan.as_found:
        free = "Nothing is bound: the kernel puts every thread on any CPU that is allowed."
        parts.append(tag("p", free))
    else:
        parts.append(_parties(plan))
    if plan.nodes > 1:
        parts.append(tag("p", f"The same on each of {plan.nodes} machines."))
    return section("Who runs where", *parts)


def _drawing(result: Result) -> Markup:
    allowed, plan = allowed_cpus(result), result.best.plan
    sockets = []
    for socket, members in groupby(result.places, key=lambda place: place.socket):
        nodes = [_node(place, plan, allowed) for place in members]
        sockets.append(tag("div", tag("h3", f"Socket {socket}"), *nodes, class_="socket"))
    return tag("div", *sockets, class_="machine")


def _node(place: Place, plan: Plan, allowed: frozenset[int] | None) -> Markup:
    cells = [_cell(core, plan, allowed) for core in place.cores]
    counted = Counter(cell.words for cell in cells)
    name = "no node is known" if place.numa_node is None else f"node {place.numa_node}"
    count = f"{len(cells)} core" + "s" * (len(cells) > 1)
    listed = ", ".join(f"{number} × {words}" for words, number in counted.items())
    drawn = [
        tag(
            "span",
            cell.sign,
            class_=f"core {cell.look}",
            title=f"CPUs {cpulist.render(core)}: {cell.words}",
        )
        for core, cell in zip(place.cores, cells, strict=True)
    ]
    grid = tag(
        "div",
        *drawn,
        class_="cores",
        role="img",
        aria_label=f"Socket {place.socket}, {name}, {count}: {listed}",
    )
    return tag("div", tag("p", f"{name}, {count}", class_="dim"), grid, class_="node")


def _cell(core: tuple[int, ...], plan: Plan, allowed: frozenset[int] | None) -> _Cell:
    """Who has this core: of several the first rank is drawn, and all are named."""
    cpus = set(core)
    holders = [] if plan.as_found else list(_holders(cpus, plan))
    if len(holders) > 1:
        return _Cell("+", f"{holders[0].look} several", " and ".join(h.words for h in holders))
    if holders:
        return holders[0]
    if allowed is not None and not cpus & allowed:
        return _Cell("·", "closed", "not allowed")
    return _Cell("", "idle", "allowed" if plan.as_found else "idle")


def _holders(cpus: set[int], plan: Plan) -> Iterator[_Cell]:
    for rank, own in enumerate(plan.cpus):
        if not cpus.isdisjoint(own):
            yield _Cell(str(rank), f"rank{rank % COLORS}", f"rank {rank}")
    for rank, own in enumerate(plan.ccl_cpus):
        if not cpus.isdisjoint(own):
            yield _Cell(f"w{rank}", f"rank{rank % COLORS} worker", f"oneCCL worker of rank {rank}")


def _legend(plan: Plan) -> Markup:
    if plan.as_found:
        words = "Each box is a core; a dot: not allowed."
    else:
        words = "Each box is a core. A number: the rank whose threads it has; empty: idle"
        words += "; w and a number: the oneCCL worker of that rank" if any(plan.ccl_cpus) else ""
        words += "; +: several of them; a dot: not allowed."
    return tag("p", words, class_="dim")


def _parties(plan: Plan) -> Markup:
    """Everybody's CPUs, as far as a table is of use."""
    found = [(who, cpulist.render(cpus) or "none") for who, cpus in places(plan).items()]
    left = len(found) - MOST_PARTIES
    more = tag("p", f"And {left} more, which the result file holds.") if left > 0 else Markup()
    rows: list[tuple[str, ...]] = list(found[:MOST_PARTIES])
    return Markup(table("Logical CPUs of each", ("who", "CPUs"), rows) + more)
