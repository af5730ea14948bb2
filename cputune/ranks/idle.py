"""Is anything still going on? A script that computes nothing for minutes hangs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from cputune.host.children import below

LOOK_EVERY_SECONDS = 20.0
IDLE_SHARE = 0.002
"""A process that uses less than this share of one CPU waits for nothing to come; a download
of half a megabyte per second uses several times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited for the steps of a job, in seconds.

    Attributes:
        startup: for the first step; a script may download and tokenize before it trains.
        idle: for the first step while nothing is computed.
        step: for each later step; None adapts it to the slowest so far.
    """

    startup: float = 1800.0
    idle: float = 180.0
    step: float | None = None


class IdleWatch:
    """Watches processes by the CPU time that they use.

    ``cpu_seconds`` tells it; None where it is not known, and then nothing is taken for idle.
    """

    def __init__(self, cpu_seconds: Callable[[], float | None], patience_seconds: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._patience = patience_seconds
        self._seconds = cpu_seconds()
        self._looked = self._busy_until = time.monotonic()

    def idle_seconds(self) -> float:
        """For how long nothing was computed, as far as the last looks could tell."""
        now = time.monotonic()
        if now - self._looked >= min(LOOK_EVERY_SECONDS, self._patience / 2):
            seconds, before = self._cpu_seconds(), self._seconds
            least = IDLE_SHARE * (now - self._looked)
            if seconds is None or before is None or seconds - before > least:
                self._busy_until = now
            self._looked, self._seconds = now, seconds
        return self._looked - self._busy_until

    @property
    def next_look_seconds(self) -> float:
        """How long to wait before looking again."""
        return max(
            0.0, self._looked + min(LOOK_EVERY_SECONDS, self._patience / 2) - time.monotonic()
        )

    @property
    def hangs(self) -> bool:
        """Whether patience is at an end."""
        return self.idle_seconds() >= self._patience


def cpu_seconds(root: int) -> float:
    """CPU time of all living processes below ``root``."""
    import psutil

    total = 0.0
    for process in below(root):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system
    return total
