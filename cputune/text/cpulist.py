"""Sets of logical CPUs as text: kernel lists ("0-3,8"), kernel bitmaps, hex masks.

The kernel's own formats: ``Documentation/admin-guide/kernel-parameters.rst`` ("cpu
lists") and ``bitmap_parse``/``bitmap_parselist`` in ``lib/bitmap-str.c``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def parse(text: str) -> tuple[int, ...]:
    """Read a kernel CPU list, ``"0-3,8"``, as sorted distinct CPU numbers.

    White space and an empty list are fine, as in an empty cpuset. Raises ValueError on anything
    else, also where ranges repeat so often that only damage can be the reason.
    """
    cpus: set[int] = set()
    listed = 0
    for part in filter(None, map(str.strip, text.strip().strip("\0").split(","))):
        span = _SPAN.fullmatch(part)
        if span is None:
            raise ValueError(f"not a CPU list: {text.strip()[:80]!r}")
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise ValueError(f"a CPU range runs backwards: {part!r}")
        if last >= MAX_CPUS:
            raise ValueError(f"no machine has a CPU {last}")
        listed += last - first + 1
        if listed > 8 * MAX_CPUS:
            raise ValueError("a CPU list that repeats itself without end")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


_SPAN = re.compile(r"([0-9]{1,99})(?:-([0-9]{1,99}))?")

MAX_CPUS = 1 << 16
"""Above the largest NR_CPUS of any distribution kernel (8192): a larger number is damage."""


def render(cpus: Iterable[int]) -> str:
    """Write CPU numbers as the kernel does: ``(0, 1, 2, 8)`` is ``"0-2,8"``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_mask(text: str) -> tuple[int, ...]:
    """Read a hex bitmap as the kernel writes it, ``"00000000,0000000f"`` or ``"0xf"``.

    Groups between commas are 32 bits each, the most significant first; a mask without
    commas may be of any width. Raises ValueError on anything else.
    """
    stripped = text.strip().strip("\0").removeprefix("0x")
    groups = stripped.split(",")
    if len(stripped) > MAX_CPUS or not all(_HEX.fullmatch(group) for group in groups):
        raise ValueError(f"not a CPU mask: {stripped[:80]!r}")
    if len(groups) > 1 and any(len(group) > 8 for group in groups):
        raise ValueError(f"a group of more than 32 bits in {stripped[:80]!r}")
    cpus = []
    for position, group in enumerate(reversed(groups)):
        value, first = int(group, 16), 32 * position
        while value:
            lowest = (value & -value).bit_length() - 1
            cpus.append(first + lowest)
            value &= value - 1
    return tuple(cpus)


_HEX = re.compile(r"[0-9a-fA-F]+")
