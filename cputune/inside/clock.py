"""How long others kept threads of this process waiting for a CPU.

The kernel counts for each thread how long it was runnable without running: the second field
of ``/proc/PID/task/TID/schedstat``, in nanoseconds (Documentation/scheduler/sched-stats.rst).
A thread may wait so for other processes, or for another thread of its own process: where a
rank has one core, the threads of gloo or oneCCL and the computing thread wait for each other,
a tenth of each step. The first is the machine's fault, the second is the plan's.

So a wait counts at most as much as the CPU time that other processes took on the CPUs of this
one: what ``/proc/stat`` counts for these CPUs minus our own. To that comes the time that a
hypervisor took away (``steal``), of which threads see nothing.
"""

from __future__ import annotations

import contextlib
import os
import time

KEPT_OPEN = 128
"""Files kept open between laps, a third of the cost of opening each; the rest are opened
each time, so that a rank with many threads does not run out of descriptors."""

TICK_SECONDS = 0.01
"""The unit of /proc/stat (USER_HZ): it cannot speak for less."""

LEAST_SECONDS = 0.001
"""A shorter wait is none: telling a step wakes whoever reads it, and that takes a CPU for 0.05
to 0.4 ms (read on two cores: most of a step of half a millisecond). A process that computes
keeps its CPU for 3 ms at least (the kernel's base slice)."""


class Delay:
    """Lap by lap, how long the most delayed thread waited because of others."""

    def __init__(self) -> None:
        self._threads = _ThreadDelays()
        self._cpus = _CpuTimes()
        self.lap()

    def lap(self) -> float:
        """Seconds since the last lap; 0.0 where the kernel keeps no such account."""
        waited = self._threads.lap()
        others, stolen = self._cpus.lap()
        if others is not None:
            waited = min(waited, others + TICK_SECONDS)
        return max(
            waited if waited >= LEAST_SECONDS else 0.0, stolen if stolen > TICK_SECONDS else 0.0
        )


class _ThreadDelays:
    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._nanoseconds: dict[str, int] = {}

    def lap(self) -> float:
        """The largest increase of any thread's run delay, in seconds."""
        try:
            threads = os.listdir("/proc/self/task")
        except OSError:
            return 0.0
        largest = 0
        seen = {}
        for thread in threads:
            delay = self._read(thread)
            if delay is not None:
                seen[thread] = delay
                largest = max(largest, delay - self._nanoseconds.get(thread, 0))
        for gone in self._files.keys() - seen.keys():
            os.close(self._files.pop(gone))
        self._nanoseconds = seen
        return largest / 1e9

    def _read(self, thread: str) -> int | None:
        file = self._files.get(thread)
        try:
            if file is not None:
                return int(os.pread(file, 96, 0).split()[1])
            file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.pread(file, 96, 0).split()[1])
            finally:
                if len(self._files) < KEPT_OPEN:
                    self._files[thread] = file
                else:
                    os.close(file)
        except (OSError, IndexError, ValueError):
            return None


class _CpuTimes:
    def __init__(self) -> None:
        self._cpus = {f"cpu{cpu}".encode() for cpu in _all_affinities()}
        self._busy: float | None = None
        self._own: dict[int, float] = {}
        self._steal: dict[bytes, int] = {}

    def lap(self) -> tuple[float | None, float]:
        """CPU seconds of others on our CPUs (None: unknown), and those stolen of the worst CPU."""
        own = {0: time.process_time(), **_children()}
        busy_ticks, steal, found = 0, {}, False
        try:
            with open("/proc/stat", "rb") as file:
                for line in file:
                    if not line.startswith(b"cpu"):
                        break
                    name, *fields = line.split()
                    if name in self._cpus:
                        found = True
                        # user nice system idle iowait irq softirq steal
                        busy_ticks += sum(map(int, fields[:3])) + sum(map(int, fields[5:7]))
                        steal[name] = int(fields[7])
        except (OSError, ValueError, IndexError):
            found = False
        if not found:
            return None, 0.0
        busy = busy_ticks * TICK_SECONDS
        others = None
        if self._busy is not None:
            ours = sum(seconds - self._own.get(pid, 0.0) for pid, seconds in own.items())
            others = max(0.0, busy - self._busy - ours)
        stolen = max(
            ((ticks - self._steal.get(cpu, ticks)) * TICK_SECONDS for cpu, ticks in steal.items()),
            default=0.0,
        )
        self._busy, self._own, self._steal = busy, own, steal
        return others, stolen


def _all_affinities() -> set[int]:
    """CPUs of all our threads: oneCCL's workers have some of their own."""
    cpus = set(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):
                cpus |= os.sched_getaffinity(int(thread))
    return cpus


def _children() -> dict[int, float]:
    """CPU seconds of our children, by process: the workers of a data loader are no others."""
    seconds = {}
    with contextlib.suppress(OSError):
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = file.read().split()
        for child in children:
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{child}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                seconds[int(child)] = (int(fields[11]) + int(fields[12])) * TICK_SECONDS
    return seconds
