"""Who computes beside us: whether a machine is quiet enough to measure on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cputune.facts import BusyProcess
from cputune.host import Host
from cputune.probing._look import Look
from cputune.probing.load import busiest, read_load

LOOK_SECONDS = 0.5
LOUD_CPUS = 0.4
"""CPUs that others may use together. One busy neighbour uses 1.0, and costs a factor of nine."""

LOUD_STEAL = 0.03
LOUD_PRESSURE_PERCENT = 25.0
"""Of the last ten seconds some task has waited for a CPU. Where we see no process that
computes, those are of other containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What others did with the machine while it was looked at.

    ``steal_share`` is the share of CPU time that the hypervisor gave to others;
    ``pressure_percent`` of time some task has waited for a CPU. None is not known.
    """

    busy: tuple[BusyProcess, ...] = ()
    steal_share: float | None = None
    pressure_percent: float | None = None

    def neighbours(self) -> tuple[str, ...]:
        """Who disturbs, in words, the busiest first; nobody where it is quiet."""
        names = [
            f"{process.name} (process {process.pid}) {100 * process.cpu_share:.0f} % of a CPU"
            for process in self.busy
        ]
        found = names if sum(p.cpu_share for p in self.busy) >= LOUD_CPUS else []
        if self.steal_share is not None and self.steal_share >= LOUD_STEAL:
            found.append(
                f"other virtual machines on this host (steal {100 * self.steal_share:.0f} %)"
            )
        pressure = self.pressure_percent
        if not names and pressure is not None and pressure >= LOUD_PRESSURE_PERCENT:
            found.append(f"other containers (CPU pressure {pressure:.0f} %)")
        return tuple(found)


def look_around(host: Host, pause: Callable[[float], None] = time.sleep) -> Surroundings:
    """Look for half a second at what others do; nothing of ours may be running."""
    host.processes()
    before = _ticks(host)
    pause(LOOK_SECONDS)
    processes, after = host.processes(), _ticks(host)
    passed = sum(after) - sum(before)
    known = len(before) == len(after) == _TICKS and passed > 0
    load = read_load(Look(host))
    return Surroundings(
        busy=busiest(processes or ()),
        steal_share=(after[-1] - before[-1]) / passed if known else None,
        pressure_percent=load.cpu_pressure_percent,
    )


_TICKS = 8
"""user nice system idle iowait irq softirq steal: the first line of /proc/stat (proc(5))."""


def _ticks(host: Host) -> tuple[int, ...]:
    text = Look(host).text("/proc/stat") or ""
    fields = text.partition("\n")[0].split()[1 : _TICKS + 1]
    return tuple(int(field) for field in fields if field.isdigit())
