"""How busy the machine is, who computes beside us, and whether it is quiet enough to measure on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from cputune.host import Host, Process
from cputune.host.facts import BusyProcess, Load
from cputune.host.probing._look import Look, decimal, whole_number

BUSY_SHARE = 0.2
"""CPUs. The time of a look is some hundredths of a second long, a tick of the kernel one."""
MOST_BUSY = 8
"""Processes that are named; the rest is no help."""


AVERAGES = "/proc/loadavg"


def read_load(look: Look) -> Load:
    """Load averages, pressure stall information (10 s), and steal since the machine started."""

    def pressure(resource: str) -> float | None:
        fact, path = f"load.{resource}_pressure_percent", f"/proc/pressure/{resource}"
        return look.parsed(fact, path, _pressure)

    return Load(
        average_1min=look.parsed(
            "load.average_1min", AVERAGES, lambda text: decimal(_word(text, 0))
        ),
        cpu_pressure_percent=pressure("cpu"),
        memory_pressure_percent=pressure("memory"),
        steal_share=look.parsed("load.steal_share", "/proc/stat", _steal),
        running_threads=look.parsed(
            "load.running_threads",
            AVERAGES,
            lambda text: whole_number(_word(text, 3).partition("/")[0]),
        ),
    )


def _word(text: str, place: int) -> str:
    return "".join(text.split()[place : place + 1])


def busiest(processes: tuple[Process, ...]) -> tuple[BusyProcess, ...]:
    """Who computed while we looked, the busiest first."""
    found = [
        BusyProcess(pid=process.pid, name=process.name, cpu_share=round(process.cpu_share, 2))
        for process in processes
        if process.cpu_share is not None and process.cpu_share >= BUSY_SHARE
    ]
    return tuple(sorted(found, key=lambda process: (-process.cpu_share, process.pid))[:MOST_BUSY])


def _pressure(text: str) -> float | None:
    """Percent of the last ten seconds in which some thread waited for the resource."""
    found = re.search(r"^some\s.*\bavg10=([0-9.]{1,12})\b", text, re.MULTILINE)
    return decimal(found[1]) if found else None


def _steal(text: str) -> float | None:
    """Time the hypervisor gave to others, as a share of all CPU time."""
    ticks = _ticks(text)
    return ticks[-1] / sum(ticks) if len(ticks) == _TICKS and sum(ticks) > 0 else None


LOOK_SECONDS = 0.5
LOUD_CPUS = 0.4
"""CPUs that others may use together. One busy neighbour uses 1.0, and costs a factor of nine."""

LOUD_STEAL = 0.03
LOUD_PRESSURE_PERCENT = 25.0
"""Of the last ten seconds some task has waited for a CPU. Where we see no process that
computes, those are of other containers."""


def look_around(host: Host, pause: Callable[[float], None] = time.sleep) -> tuple[str, ...]:
    """Who else uses this machine for half a second, in words, the busiest first.

    Nothing of ours may be running. Nobody is named where it is quiet.
    """
    look = Look(host)
    host.processes()
    first = _ticks(look.text("/proc/stat") or "")
    pause(LOOK_SECONDS)
    busy, last = busiest(host.processes() or ()), _ticks(look.text("/proc/stat") or "")
    names = tuple(f"{p.name} (process {p.pid}) {100 * p.cpu_share:.0f} % of a CPU" for p in busy)
    found = names if sum(process.cpu_share for process in busy) >= LOUD_CPUS else ()
    passed = sum(last) - sum(first)
    if len(first) == len(last) == _TICKS and passed > 0:
        steal = (last[-1] - first[-1]) / passed
        if steal >= LOUD_STEAL:
            found += (f"other virtual machines on this host (steal {100 * steal:.0f} %)",)
    pressure = read_load(look).cpu_pressure_percent
    if not names and pressure is not None and pressure >= LOUD_PRESSURE_PERCENT:
        found += (f"other containers (CPU pressure {pressure:.0f} %)",)
    return found


_TICKS = 8
"""user nice system idle iowait irq softirq steal: the first line of /proc/stat (proc(5))."""


def _ticks(text: str) -> tuple[int, ...]:
    name, *fields = text.partition("\n")[0].split()[: _TICKS + 1] or [""]
    ticks = (whole_number(field) for field in fields)
    return tuple(n for n in ticks if n is not None and n >= 0) if name == "cpu" else ()
