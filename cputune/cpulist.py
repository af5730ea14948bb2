"""Sets of logical CPUs as text: kernel lists ("0-3,8"), kernel bitmaps, hex masks.

The kernel's own formats: ``Documentation/admin-guide/kernel-parameters.rst`` ("cpu
lists") and ``bitmap_parse``/``bitmap_parselist`` in ``lib/bitmap-str.c``.
"""

from __future__ import annotations

from collections.abc import Iterable


def parse(text: str) -> tuple[int, ...]:
    """Read a kernel CPU list, ``"0-3,8,16-30:2/4"``, as sorted distinct CPU numbers.

    Ranges may carry the kernel's stride, ``first-last:used/group``. White space and
    an empty list are fine, as in an empty cpuset. Raises ValueError on anything else.
    """
    cpus: set[int] = set()
    for part in text.strip().strip("\0").split(","):
        chunk = part.strip()
        if not chunk:
            continue
        span, _, stride = chunk.partition(":")
        first_text, dash, last_text = span.partition("-")
        first = _number(first_text, text)
        last = _number(last_text, text) if dash else first
        if last < first:
            raise ValueError(f"a CPU range runs backwards: {chunk!r}")
        if last >= MAX_CPUS:
            raise ValueError(f"no machine has a CPU {last}")
        if stride:
            used_text, slash, group_text = stride.partition("/")
            used, group = _number(used_text, text), _number(group_text, text)
            if not slash or used == 0 or group < used:
                raise ValueError(f"not a CPU range with a stride: {chunk!r}")
            cpus.update(c for c in range(first, last + 1) if (c - first) % group < used)
        else:
            cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


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

    Groups between commas are 32 bits each, the most significant first.
    """
    groups = text.strip().strip("\0").removeprefix("0x").split(",")
    value = 0
    for group in groups:
        value = (value << 32) | int(group, 16)
    return tuple(bit for bit in range(value.bit_length()) if value >> bit & 1)


def render_mask(cpus: Iterable[int]) -> str:
    """Write CPU numbers as one hex mask with its prefix: ``(0, 1)`` is ``"0x3"``."""
    return hex(sum(1 << cpu for cpu in set(cpus)))


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"not a CPU list: {whole.strip()!r}")
    return int(text)
