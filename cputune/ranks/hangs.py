"""A launch that computes nothing before its first step: what its processes wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil

from cputune.records.steps import NOTHING_COMPUTED

# The share of a CPU: processes that use less together compute nothing.
IDLE_SHARE = 0.02
# After this time without computing the stacks of the processes are read.
IDLE_SECONDS = 10.0
LOOK_SECONDS = 2.0  # between two looks at the CPU time of a process


@dataclass(kw_only=True)
class IdleWatch:
    """Measures for how long the processes of a launch, which ``below`` finds, have used no CPU."""

    below: Callable[[], Sequence[psutil.Process]]
    _since: float | None = None
    _looked: float = 0.0
    _seconds: float = 0.0
    _stacks_read: bool = False
    _reason: str = field(default="")

    def idle_seconds(self, now: float) -> float:
        """For how long they have computed nothing; 0 before the second look."""
        if now - self._looked < LOOK_SECONDS and self._since is not None:
            return now - self._since
        used = sum(_cpu_seconds(process) for process in self.below())
        if self._since is None or used - self._seconds > IDLE_SHARE * (now - self._looked):
            self._since = now
            self._stacks_read = False
        self._looked, self._seconds = now, used
        return now - self._since

    def deadlock(self, now: float) -> str:
        """Why the processes will never go on; empty as long as that is not certain.

        The stacks are read once in each time without computing.
        """
        if self.idle_seconds(now) < IDLE_SECONDS or self._stacks_read:
            return ""
        self._stacks_read = True
        self._reason, certain = why_idle(self.below())
        return self._reason if certain else ""

    def waits_for(self, now: float) -> str:
        """What they wait for, if they have computed nothing for long enough; else empty."""
        seconds = self.idle_seconds(now)
        if seconds < IDLE_SECONDS:
            return ""
        if not self._stacks_read:
            self._stacks_read = True
            self._reason, _ = why_idle(self.below())
        return f"{NOTHING_COMPUTED} for {seconds:.0f} s: {self._reason}" if self._reason else ""


def _cpu_seconds(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def why_idle(processes: Sequence[psutil.Process]) -> tuple[str, bool]:
    """What the first of these that is stuck waits for, and whether that is a deadlock."""
    # Most launches never need these.
    from cputune.doctor.running_job import wait_in_family
    from cputune.host import LiveHost
    from cputune.host.process_tree import look_at

    try:
        family = look_at(LiveHost(), [process.pid for process in processes])
        wait = wait_in_family(family, LiveHost())
    except (OSError, ValueError):  # processes that end meanwhile wait for nothing
        wait = None
    if wait is None:
        return "", False
    return wait.as_text, wait.is_deadlock
