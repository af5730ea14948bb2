"""How busy the machine is at the moment."""

from __future__ import annotations

import re

from cputune.facts import BusyProcess, Load
from cputune.host import Process
from cputune.probing._look import Look, decimal, whole_number

BUSY_SHARE = 0.2
"""CPUs. The time of a look is some hundredths of a second long, a tick of the kernel one."""
MOST_BUSY = 8


def read_load(look: Look) -> Load:
    """Load averages, pressure stall information (10 s), and steal since the machine started."""
    averages = (look.text("/proc/loadavg") or "").split()
    running = averages[3].partition("/")[0] if len(averages) > 3 else None
    load = Load(
        average_1min=decimal(averages[0] if averages else None),
        average_5min=decimal(averages[1] if len(averages) > 1 else None),
        cpu_pressure_percent=_pressure(look, "cpu"),
        memory_pressure_percent=_pressure(look, "memory"),
        steal_share=_steal(look),
        running_threads=whole_number(running),
    )
    for fact, path in (
        ("average_1min", "/proc/loadavg"),
        ("average_5min", "/proc/loadavg"),
        ("cpu_pressure_percent", "/proc/pressure/cpu"),
        ("memory_pressure_percent", "/proc/pressure/memory"),
        ("steal_share", "/proc/stat"),
        ("running_threads", "/proc/loadavg"),
    ):
        if getattr(load, fact) is None:
            look.not_known(f"load.{fact}", look.why(path))
    return load


def busiest(processes: tuple[Process, ...]) -> tuple[BusyProcess, ...]:
    """Who computed while we looked, the busiest first."""
    found = [
        BusyProcess(pid=process.pid, name=process.name, cpu_share=round(process.cpu_share, 2))
        for process in processes
        if process.cpu_share is not None and process.cpu_share >= BUSY_SHARE
    ]
    return tuple(sorted(found, key=lambda process: (-process.cpu_share, process.pid))[:MOST_BUSY])


def _pressure(look: Look, resource: str) -> float | None:
    """Percent of the last ten seconds in which some thread waited for the resource."""
    text = look.text(f"/proc/pressure/{resource}") or ""
    found = re.search(r"^some\s.*\bavg10=([0-9.]{1,12})\b", text, re.MULTILINE)
    return decimal(found[1]) if found else None


def _steal(look: Look) -> float | None:
    """Time the hypervisor gave to others, as a share of all CPU time (proc(5), /proc/stat)."""
    first = (look.text("/proc/stat") or "").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu":
        return None
    ticks = [whole_number(text) or 0 for text in first[1:9]]
    return ticks[7] / sum(ticks) if sum(ticks) > 0 and min(ticks) >= 0 else None
