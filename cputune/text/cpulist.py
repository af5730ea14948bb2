"""Sets of logical CPUs as text: kernel lists ("0-3,8"), kernel bitmaps, hex masks.

Formats: ``Documentation/admin-guide/kernel-parameters.rst`` ("cpu lists") and ``bitmap_parse`` and
``bitmap_parselist`` in ``lib/bitmap-str.c`` of the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def parse(text: str) -> tuple[int, ...]:
    """Parse a kernel CPU list such as ``"0-3,8"`` into sorted, distinct CPU numbers.

    Raises ValueError for other text, and for ranges that repeat so often that the list must be
    damaged.
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
            raise ValueError(f"CPU number {last} is too large: the limit is {MAX_CPUS - 1}")
        listed += last - first + 1
        if listed > 8 * MAX_CPUS:
            raise ValueError("the CPU list repeats itself too often")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


_SPAN = re.compile(r"([0-9]{1,99})(?:-([0-9]{1,99}))?")

# No distribution kernel has NR_CPUS above 8192, so a larger number is damage.
MAX_CPUS = 1 << 16


def render(cpus: Iterable[int]) -> str:
    """``(0, 1, 2, 8)`` becomes ``"0-2,8"``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    texts = []
    for first, last in runs:
        if first == last:
            texts.append(str(first))
        else:
            texts.append(f"{first}-{last}")
    return ",".join(texts)


def parse_mask(text: str) -> tuple[int, ...]:
    """Parse a hex bitmap as the kernel writes it: ``"00000000,0000000f"`` or ``"0xf"``.

    Groups between commas have 32 bits each, the most significant first. Raises ValueError.
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
