"""Memory and swap of the whole machine."""

from __future__ import annotations

from cputune.facts import Memory
from cputune.probing._look import Look, fields, kibibytes

MEMINFO = "/proc/meminfo"


def read_memory(look: Look) -> Memory:
    """Read /proc/meminfo. ``MemAvailable`` exists since Linux 3.14."""
    told = fields(look.text(MEMINFO))
    memory = Memory(
        total_bytes=kibibytes(told.get("MemTotal")),
        available_bytes=kibibytes(told.get("MemAvailable")),
        swap_total_bytes=kibibytes(told.get("SwapTotal")),
        swap_free_bytes=kibibytes(told.get("SwapFree")),
    )
    for fact in ("total_bytes", "available_bytes", "swap_total_bytes", "swap_free_bytes"):
        if getattr(memory, fact) is None:
            reason = f"{MEMINFO} has no such line" if told else look.why(MEMINFO)
            look.not_known(f"memory.{fact}", reason)
    return memory
