"""Reads how busy the machine is, and whether it is quiet enough for a measurement."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from cputune.host import Host, Process
from cputune.host.facts import BusyProcess, Load
from cputune.host.probing._look import Look, decimal, whole_number

# CPUs. The kernel counts CPU time in ticks of 0.01 s, and an examination takes some of them.
BUSY_SHARE = 0.2
MOST_BUSY = 8  # processes that are named


AVERAGES = "/proc/loadavg"


def read_load(look: Look) -> Load:
    """Load averages, pressure stall information (10 s), and steal since boot."""

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
    """The processes that computed during the examination, the busiest first."""
    busy = [
        BusyProcess(pid=process.pid, name=process.name, cpu_share=round(process.cpu_share, 2))
        for process in processes
        if process.cpu_share is not None and process.cpu_share >= BUSY_SHARE
    ]
    return tuple(sorted(busy, key=lambda process: (-process.cpu_share, process.pid))[:MOST_BUSY])


def _pressure(text: str) -> float | None:
    """Percent of the last ten seconds in which a thread waited for the resource."""
    match = re.search(r"^some\s.*\bavg10=([0-9.]{1,12})\b", text, re.MULTILINE)
    if not match:
        return None
    return decimal(match[1])


def _steal(text: str) -> float | None:
    """CPU time that the hypervisor gave to other machines, as a share of all CPU time."""
    ticks = _ticks(text)
    if len(ticks) != _TICKS or sum(ticks) <= 0:
        return None
    return ticks[-1] / sum(ticks)


LOOK_SECONDS = 0.5  # the machine is watched so long
# CPUs that other processes may use together. One busy process uses 1.0, and slowed training 9
# times.
LOUD_CPUS = 0.4

LOUD_STEAL = 0.03  # a share of the CPU time
# Percent of the last ten seconds in which a task waited for a CPU. Without a process of ours,
# the tasks belong to other containers.
LOUD_PRESSURE_PERCENT = 25.0


def look_around(host: Host, pause: Callable[[float], None] = time.sleep) -> tuple[str, ...]:
    """Describe who else uses this machine during half a second, the busiest first.

    No process of ours may compute meanwhile.
    """
    look = Look(host)
    host.processes()
    first = _ticks(look.text("/proc/stat") or "")
    pause(LOOK_SECONDS)
    busy, last = busiest(host.processes() or ()), _ticks(look.text("/proc/stat") or "")
    names = tuple(f"{p.name} (process {p.pid}) {100 * p.cpu_share:.0f} % of a CPU" for p in busy)
    others: tuple[str, ...] = ()
    if sum(process.cpu_share for process in busy) >= LOUD_CPUS:
        others = names
    passed = sum(last) - sum(first)
    if len(first) == len(last) == _TICKS and passed > 0:
        steal = (last[-1] - first[-1]) / passed
        if steal >= LOUD_STEAL:
            others += (f"other virtual machines on this host (steal {100 * steal:.0f} %)",)
    pressure = read_load(look).cpu_pressure_percent
    if not names and pressure is not None and pressure >= LOUD_PRESSURE_PERCENT:
        others += (f"other containers (CPU pressure {pressure:.0f} %)",)
    return others


# Fields of the first line of /proc/stat: user nice system idle iowait irq softirq steal
# (proc(5)).
_TICKS = 8


def _ticks(text: str) -> tuple[int, ...]:
    fields = text.partition("\n")[0].split()[: _TICKS + 1]
    if fields[:1] != ["cpu"]:
        return ()
    ticks = (whole_number(field) for field in fields[1:])
    return tuple(tick for tick in ticks if tick is not None and tick >= 0)
