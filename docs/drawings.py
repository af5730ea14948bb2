"""The drawings of docs/: machines that were probed, with the ranks where cputune lays them out.

``make doc`` writes them. A machine is a recording of tests/hosts/ or one that its builder makes,
and who runs where is what `cputune.plans.layout` says, so that a drawing cannot differ from what is
launched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from hosts.builder import machine
from hosts.recordings import open_recording

import cputune
from cputune.host.facts import Core, HostFacts
from cputune.plans.cores import usable_cores
from cputune.plans.layout import make_plan
from cputune.plans.plan import Plan

INK, PAPER, LINE, SOCKET, NODE, IDLE = "#1b1f24", "#ffffff", "#8c959f", "#eaeef2", "#fff", "#d0d7de"
RANKS = ("#0a5c91", "#a03c00", "#00664a", "#8a2f67")
"""A colour for each rank; white writing on them can be read (contrast above 5 to 1)."""

CORE, GAP, PAD = 34, 6, 14


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="4" fill="{fill}" stroke="{stroke}"/>'


def text(
    x: float, y: float, words: str, *, size: int = 13, fill: str = INK, mid: bool = False
) -> str:
    anchor = ' text-anchor="middle"' if mid else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{anchor}>{escape(words)}</text>'
    )


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A picture on paper of its own, so that it is read on dark pages too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" font-family="sans-serif">'
    )
    paper = rect(0, 0, width, height, PAPER)
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *parts, "</svg>", ""])


def two_sockets(cores: int = 8) -> HostFacts:
    """Two sockets of so many cores, each a NUMA node, without SMT, as the probe reads them."""
    return cputune.probe(machine(None, sockets=2, cores=cores, smt=1))


def recorded(name: str) -> HostFacts:
    """A guest that ran, from its recording."""
    with tempfile.TemporaryDirectory() as folder:
        return cputune.probe(open_recording(name, Path(folder)))


def sockets(
    facts: HostFacts,
    y: float,
    cell: Callable[[Core, float, float], list[str]],
    *,
    high: float,
    gap: float = GAP,
) -> tuple[list[str], float]:
    """Sockets beside each other, each with its node and cores; and how wide that is."""
    parts: list[str] = []
    x = float(PAD)
    cores = sorted(facts.topology.cores, key=lambda core: (core.socket, core.cpus[0]))
    for socket, members in groupby(cores, key=lambda core: core.socket):
        inside = list(members)
        wide = len(inside) * (CORE + gap) - gap + 4 * PAD
        parts += [
            rect(x, y, wide, high + 62, SOCKET, LINE),
            text(x + PAD, y + 18, f"socket {socket}"),
        ]
        parts.append(rect(x + PAD, y + 26, wide - 2 * PAD, high + 26, NODE, LINE))
        node = inside[0].numa_node
        parts.append(text(x + 2 * PAD, y + 43, f"NUMA node {node}", size=11))
        for number, core in enumerate(inside):
            parts += cell(core, x + 2 * PAD + number * (CORE + gap), y + 48)
        x += wide + PAD
    return parts, x


def machine_drawing() -> str:
    """Sockets, nodes, cores and siblings of a guest that was recorded."""
    facts = recorded("whole")

    def siblings(core: Core, x: float, y: float) -> list[str]:
        drawn = [rect(x - 4, y + 2, CORE + 8, 2 * CORE + GAP + 8, IDLE, LINE)]
        for number, cpu in enumerate(core.cpus):
            top = y + 6 + number * (CORE + GAP)
            drawn.append(rect(x, top, CORE, CORE, RANKS[0] if number == 0 else "#5c6773"))
            drawn.append(text(x + CORE / 2, top + 22, str(cpu), fill=PAPER, mid=True))
        return drawn

    high = 2 * CORE + GAP + 10
    parts, width = sockets(facts, 14, siblings, high=high, gap=16)
    y = 14 + 62 + high + 22
    parts.append(text(PAD, y, "grey box: a core. In it, the CPUs that Linux counts:"))
    parts.append(text(PAD, y + 18, "blue the first, grey its SMT sibling."))
    return drawing(max(width, 370), y + 32, "A machine of two sockets, seen by Linux", parts)


def ranks_drawing(plans: Sequence[tuple[str, Plan]], facts: HostFacts, title: str) -> str:
    """A machine under several plans: whose each core is."""
    parts: list[str] = []
    y, width = 8.0, 0.0
    for words, plan in plans:

        def owned(core: Core, x: float, y: float, plan: Plan = plan) -> list[str]:
            fill, sign = _owner(core, plan)
            return [
                rect(x, y, CORE, CORE, fill),
                text(x + CORE / 2, y + 22, sign, fill=PAPER, mid=True),
            ]

        parts.append(text(PAD, y + 16, words))
        drawn, width = sockets(facts, y + 24, owned, high=CORE)
        parts += drawn
        y += 24 + 62 + CORE + 16
    return drawing(width, y, title, parts)


def _owner(core: Core, plan: Plan) -> tuple[str, str]:
    for rank, cpus in enumerate(plan.cpus):
        if set(cpus) & set(core.cpus):
            return RANKS[rank % len(RANKS)], str(rank)
    if any(set(cpus) & set(core.cpus) for cpus in plan.ccl_cpus):
        return "#5c6773", "w"
    return IDLE, ""


def ranks_page() -> str:
    facts = two_sockets()
    cores = usable_cores(facts)
    plans = [
        (f"{ranks} × {16 // ranks} threads: {words}", make_plan(cores, ranks))
        for ranks, words in (
            (1, "one rank over everything (python train.py)"),
            (2, "a rank per NUMA node"),
            (4, "two ranks per NUMA node"),
        )
    ]
    return ranks_drawing(plans, facts, "One machine under three plans")


def workers_page() -> str:
    facts = two_sockets()
    plan = make_plan(usable_cores(facts), 2, ccl_workers=1, backend="ccl")
    words = "2 × 7 threads, 1 oneCCL worker (w) on a core of its own in each rank"
    return ranks_drawing([(words, plan)], facts, "oneCCL workers have cores of their own")


def batch_drawing(samples: int = 16) -> str:
    """The same samples of one optimizer step, divided over 1, 2 and 4 ranks."""
    parts = []
    for row, ranks in enumerate((1, 2, 4)):
        y = 12 + row * 44
        parts.append(text(PAD, y + 20, f"{ranks} rank{'s' if ranks > 1 else ''}"))
        for sample in range(samples):
            rank = sample * ranks // samples
            x = 90 + sample * 26 + rank * 8
            parts.append(rect(x, y, 22, 30, RANKS[rank]))
            parts.append(text(x + 11, y + 20, str(rank), fill=PAPER, mid=True))
    parts.append(text(90, 158, f"a square is one sample of the step; always {samples} together"))
    return drawing(90 + 16 * 26 + 3 * 8 + PAD, 172, "A global batch of 16 samples", parts)


def formats_drawing() -> str:
    """The bits of fp32, bf16 and fp16."""
    kinds = (("fp32", 8, 23), ("bf16", 8, 7), ("fp16", 5, 10))
    parts = []
    for row, (name, exponent, fraction) in enumerate(kinds):
        y = 14 + row * 40
        parts.append(text(PAD, y + 19, name))
        for bit in range(1 + exponent + fraction):
            which = 0 if bit == 0 else 1 if bit <= exponent else 2
            parts.append(rect(64 + bit * 17, y, 15, 28, ("#5c6773", RANKS[1], RANKS[0])[which]))
    for x, colour, words in (
        (64, "#5c6773", "sign"),
        (140, RANKS[1], "exponent: how large or small"),
        (370, RANKS[0], "fraction: how exact"),
    ):
        parts += [rect(x, 138, 15, 15, colour), text(x + 21, 150, words)]
    return drawing(64 + 32 * 17 + PAD, 166, "Bits of fp32, bf16 and fp16", parts)


def _bars(y: float, x: float, bars: Sequence[tuple[str, float, str]]) -> Iterator[str]:
    for words, wide, colour in bars:
        yield rect(x, y, wide - 2, 30, colour)
        yield text(x + wide / 2, y + 20, words, size=12, fill=PAPER, mid=True)
        x += wide


def step_drawing() -> str:
    """What two ranks do in one optimizer step; the slower one is waited for."""
    blue, red, grey = RANKS[0], RANKS[1], "#5c6773"
    both = [("all-reduce", 110.0, red), ("optimizer", 90.0, RANKS[2])]
    slow = [("forward", 110.0, blue), ("backward", 190.0, blue), *both]
    fast = [("forward", 100.0, blue), ("backward", 160.0, blue), ("wait", 40.0, grey), *both]
    parts = []
    for row, bars in enumerate((slow, fast)):
        y = 14 + row * 44
        parts.append(text(PAD, y + 20, f"rank {row}"))
        parts += _bars(y, 74, bars)
    parts.append(text(74, 122, "time → (not to scale): one optimizer step of the whole job"))
    return drawing(74 + 500 + PAD, 136, "One step of two ranks", parts)


def turns_drawing() -> str:
    """Two plans that live at once and take steps in turn; a block starts new processes."""
    first, wide, space = 90.0, 74.0, 24.0
    parts = []
    for row, name in enumerate(("baseline", "best")):
        y = 34 + row * 44
        parts.append(text(PAD, y + 20, name))
        for turn in range(8):
            runs = turn in ((0, 3, 4, 7), (1, 2, 5, 6))[row]
            x = first + turn * wide + (turn // 4) * space
            words = "steps" if runs else "stopped"
            parts += _bars(y, x, [(words, wide, RANKS[0] if runs else "#5c6773")])
    for block, words in enumerate(("block 1", "block 2: new processes")):
        left = first + block * (4 * wide + space)
        parts.append(rect(left - 6, 8, 4 * wide + 10, 136, "none", LINE))
        parts.append(text(left + 2 * wide, 25, words, size=12, mid=True))
        for number in range(2):
            x = left + (2 * number + 1) * wide
            parts.append(text(x, 136, f"round {2 * block + number + 1}", size=12, mid=True))
    width = first + 8 * wide + space + PAD
    return drawing(width, 152, "Blocks and rounds of a confirmation", parts)


def padding_drawing(longest: int = 24) -> str:
    """A batch of four samples: padded to one length, to its longest, and of like lengths."""
    parts: list[str] = []
    y = 12.0
    for words, lengths, width in (
        (f"padded to {longest} tokens", (9, 4, 12, 6), longest),
        ("padding=cut: to the longest of the batch", (9, 4, 12, 6), 12),
        ("order=length: samples of like length", (9, 10, 10, 9), 10),
    ):
        thrown = 1 - sum(lengths) / (len(lengths) * width)
        parts.append(text(PAD, y + 14, f"{words}: {thrown:.0%} of the work is padding"))
        for row, length in enumerate(lengths):
            for token in range(width):
                fill = RANKS[0] if token < length else IDLE
                parts.append(rect(PAD + token * 20, y + 22 + row * 16, 18, 14, fill))
        y += 22 + 4 * 16 + 14
    parts += [
        rect(PAD, y, 18, 14, RANKS[0]), text(PAD + 26, y + 12, "a token of a sample"),
        rect(PAD + 190, y, 18, 14, IDLE), text(PAD + 216, y + 12, "padding, computed all the same"),
    ]  # fmt: skip
    return drawing(2 * PAD + longest * 20, y + 26, "Padding of a batch", parts)


DRAWINGS: dict[str, Callable[[], str]] = {
    "drawings/batch.svg": batch_drawing,
    "drawings/formats.svg": formats_drawing,
    "drawings/machine.svg": machine_drawing,
    "drawings/padding.svg": padding_drawing,
    "drawings/ranks.svg": ranks_page,
    "drawings/step.svg": step_drawing,
    "drawings/turns.svg": turns_drawing,
    "drawings/workers.svg": workers_page,
}
