"""How long threads of this process were kept waiting for a CPU.

``/proc/PID/task/TID/schedstat``: time on the CPU, time runnable but not running (both in
nanoseconds), time slices (kernel, Documentation/scheduler/sched-stats.rst). The second
field is the one that tells a slow plan from a busy machine.
"""

from __future__ import annotations

import os

KEPT_OPEN = 128
"""Files kept open between laps, a third of the cost of opening each; the rest are opened
each time, so that a rank with many threads does not run out of descriptors."""


class RunDelay:
    """The largest run delay of any thread, lap by lap."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._nanoseconds: dict[str, int] = {}
        self.lap()

    def lap(self) -> float:
        """Seconds that the most delayed thread waited since the last lap.

        0.0 where the kernel keeps no such account (CONFIG_SCHED_INFO).
        """
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
